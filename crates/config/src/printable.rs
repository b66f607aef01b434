//! The one way from a text of others to a terminal, a log or a page: without what a terminal obeys and
//! without what turns the order of the text around.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The name of events of the log that have the text for a person whole, and fields for programs beside it.
pub const SAYS_ALL: &str = "says all";

/// How a character is written that is not printable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// `\u{1b}`, for people.
    Text,
    /// `\u001b`, inside the strings of JSON.
    Json,
    /// As [`Self::Text`], but weft's own colours pass.
    Coloured,
}

/// Reports whether a terminal obeys the character, or it changes the order or the place of others: control
/// characters (C0, DEL, C1), bidirectional controls, characters without a width, and the breaks of lines and
/// paragraphs of Unicode. Line breaks and tabs are not printable either.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        )
}

/// Returns the text with everything escaped that is [not printable](is_unprintable). Line breaks and tabs
/// stay. It is a copy only if there is something to escape.
pub fn printable(text: &str, notation: Notation) -> Cow<'_, str> {
    let is_kept = |c: char| matches!(c, '\n' | '\t') || !is_unprintable(c);
    if text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let mut len = next.len_utf8();
        if is_kept(next) {
            shown.push(next);
        } else if let Some(colour) = colour(rest).filter(|_| notation == Notation::Coloured) {
            shown.push_str(colour);
            len = colour.len();
        } else {
            // Writing to a string cannot fail. None of these characters is beyond 16 bits.
            let _ = match notation {
                Notation::Json => write!(shown, "\\u{:04x}", u32::from(next)),
                Notation::Text | Notation::Coloured => write!(shown, "{}", next.escape_unicode()),
            };
        }
        rest = &rest[len..];
    }
    Cow::Owned(shown)
}

/// The same for bytes that may not be UTF-8. What is not becomes U+FFFD.
pub fn printable_bytes(text: &[u8], notation: Notation) -> Cow<'_, [u8]> {
    match String::from_utf8_lossy(text) {
        Cow::Borrowed(text) => match printable(text, notation) {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        },
        Cow::Owned(text) => Cow::Owned(printable(&text, notation).into_owned().into_bytes()),
    }
}

/// Returns the sequence at the beginning of the text that sets a colour or a weight, or resets them: nothing
/// that hides text.
fn colour(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    let is_colour = |number: &str| {
        matches!(number.parse(), Ok(0..=4 | 22..=24 | 31..=37 | 39 | 90..=97)) || number.is_empty()
    };
    // Tables name a colour by its number of 256. The first 16 are those above, 0 and 8 are black and grey.
    let is_numbered = |number: &str| matches!(number.parse(), Ok(1..=7 | 9..=15));
    let is_short = end <= 16;
    let is_ours = parameters[end..].starts_with('m')
        && match parameters[..end].strip_prefix("38;5;") {
            Some(number) => is_numbered(number),
            None => parameters[..end].split(';').all(is_colour),
        };
    (is_short && is_ours).then(|| &text[..text.len() - parameters.len() + end + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let cases = [
            ("plain, ä €", "plain, ä €"),
            ("a\tb\n", "a\tb\n"),
            ("\x1b]52;c;aGk=\x07", r"\u{1b}]52;c;aGk=\u{7}"),
            ("\x1b[2J\x1b[31mred", r"\u{1b}[2J\u{1b}[31mred"),
            ("\u{9b}2J\u{9d}0;title\u{9c}", r"\u{9b}2J\u{9d}0;title\u{9c}"),
            ("over\rwritten\x08\x7f\0", r"over\u{d}written\u{8}\u{7f}\u{0}"),
            ("\u{202e}txt.exe\u{2066}\u{200f}", r"\u{202e}txt.exe\u{2066}\u{200f}"),
            ("a\u{2028}b\u{feff}", r"a\u{2028}b\u{feff}"),
            ("of\u{200b}fi\u{200d}ce\u{2060}", r"of\u{200b}fi\u{200d}ce\u{2060}"),
        ];
        for (text, shown) in cases {
            assert_eq!(printable(text, Notation::Text), shown);
            assert_eq!(printable_bytes(text.as_bytes(), Notation::Text), shown.as_bytes());
        }
        assert_eq!(&*printable_bytes(b"\x9b2J\xff", Notation::Text), "\u{fffd}2J\u{fffd}".as_bytes());
    }

    #[test]
    fn a_string_of_json_keeps_its_meaning() {
        let text = "\"\u{9b}2J \u{7f} \u{202e}\"";
        assert_eq!(printable(text, Notation::Json), r#""\u009b2J \u007f \u202e""#);
    }

    #[test]
    fn colours_pass_where_they_are_ours_and_nothing_else_does() {
        for text in
            ["\x1b[1;31merror:\x1b[0m x", "\x1b[m", "\x1b[2m\x1b[90m\x1b[22m", "\x1b[38;5;11m x\x1b[39m"]
        {
            assert_eq!(printable(text, Notation::Coloured), text);
            assert_ne!(printable(text, Notation::Text), text);
        }
        // Conceals, blinks, turns the colours around, paints black, moves, or does not end.
        for text in [
            "\x1b[8m",
            "\x1b[5m",
            "\x1b[7m",
            "\x1b[30m",
            "\x1b[38;5;0m",
            "\x1b[38;5;1;8m",
            "\x1b[40m",
            "\x1b[2J",
            "\x1b[1;1H",
            "\x1b[1",
            "\x1b",
        ] {
            assert!(!printable(text, Notation::Coloured).contains('\x1b'), "{text:?}");
        }
        let long = format!("\x1b[{}m", "1;".repeat(20));
        assert!(!printable(&long, Notation::Coloured).contains('\x1b'));
    }
}
