//! Terminal colours.

use std::fmt::{self, Display};
use std::io::IsTerminal as _;

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Coloured,
}

impl Style {
    /// Chooses the style by WG_COLOR_MODE. If that is neither `always` nor `never`: coloured on a terminal
    /// unless NO_COLOR is set.
    pub(super) fn of_standard_output() -> Self {
        let mode = std::env::var("WG_COLOR_MODE").unwrap_or_default();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self::choose(&mode, no_color, std::io::stdout().is_terminal())
    }

    fn choose(mode: &str, no_color: bool, terminal: bool) -> Self {
        match mode {
            "always" => Self::Coloured,
            "never" => Self::Plain,
            _ if terminal && !no_color => Self::Coloured,
            _ => Self::Plain,
        }
    }

    /// Returns the beginning of the text of an interface, which resets the terminal's attributes.
    pub(super) fn start(self) -> &'static str {
        if self == Self::Coloured { RESET } else { "" }
    }

    pub(super) fn bold<T: Display>(self, text: T) -> Styled<T> {
        self.codes("\x1b[1m", text)
    }

    /// Formats a heading in a colour, in bold.
    pub(super) fn heading<T: Display>(self, colour: Colour, text: T) -> Styled<T> {
        let codes = match colour {
            Colour::Red => "\x1b[31m\x1b[1m",
            Colour::Green => "\x1b[32m\x1b[1m",
            Colour::Yellow => "\x1b[33m\x1b[1m",
            Colour::Cyan => "\x1b[36m\x1b[1m",
        };
        self.codes(codes, text)
    }

    pub(super) fn colour<T: Display>(self, colour: Colour, text: T) -> Styled<T> {
        let codes = match colour {
            Colour::Red => "\x1b[31m",
            Colour::Green => "\x1b[32m",
            Colour::Yellow => "\x1b[33m",
            Colour::Cyan => "\x1b[36m",
        };
        self.codes(codes, text)
    }

    fn codes<T>(self, codes: &'static str, text: T) -> Styled<T> {
        Styled { codes: Some(codes).filter(|_| self == Self::Coloured), text }
    }
}

/// The colours of wg(8).
#[derive(Clone, Copy, Debug)]
pub(super) enum Colour {
    Red,
    Green,
    Yellow,
    Cyan,
}

const RESET: &str = "\x1b[0m";

/// Text with escape codes.
pub(super) struct Styled<T> {
    codes: Option<&'static str>,
    text: T,
}

impl<T: Display> Display for Styled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.codes {
            Some(codes) => write!(f, "{codes}{}{RESET}", self.text),
            None => self.text.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_told_otherwise() {
        use Style::{Coloured, Plain};
        for (mode, no_color, terminal, expected) in [
            ("", false, true, Coloured),
            ("", false, false, Plain),
            ("", true, true, Plain),
            ("always", true, false, Coloured),
            ("never", false, true, Plain),
            ("auto", false, true, Coloured),
            ("bogus", false, false, Plain),
        ] {
            assert_eq!(Style::choose(mode, no_color, terminal), expected, "{mode} {no_color} {terminal}");
        }
    }
}
