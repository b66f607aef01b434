//! The result of a check: its level, one sentence, and advice.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is wrong.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// It does not work.
    Problem,
}

impl Level {
    /// Returns the printed name of the level.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    /// Returns the escape sequence that starts the colour of the level.
    fn colour(self) -> &'static str {
        match self {
            Self::Ok => "\x1b[32m",
            Self::Note => "\x1b[36m",
            Self::Warning => "\x1b[1;33m",
            Self::Problem => "\x1b[1;31m",
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check, such as `no_handshake` or `udp_buffers`. It is stable across releases.
    pub check: String,
    pub level: Level,
    /// The subject: a peer or an endpoint; `None` for the interface or machine as a whole.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub about: Option<String>,
    /// One sentence.
    pub says: String,
    /// What to do, often a command.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
}

impl Finding {
    /// Creates a finding about the interface or the machine as a whole.
    pub fn new(check: &str, level: Level, says: impl Into<String>) -> Self {
        Self { check: check.to_owned(), level, about: None, says: says.into(), advice: None }
    }

    /// Sets the subject: a peer or an endpoint.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// Sets the advice.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// Returns the worst level of the findings; [`Level::Ok`] if there are none.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

/// Formats the findings for people, the advice below each, in lines of at most `width` columns; none: of any
/// length. The text has colours; print it with `anstream`, which removes them if the output is no terminal.
pub fn lines(findings: &[Finding], width: Option<usize>) -> String {
    const INDENT: usize = 9;
    let mut text = String::new();
    for Finding { level, about, says, advice, .. } in findings {
        let about = about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
        let (colour, label) = (level.colour(), level.label());
        // Writing to a string cannot fail.
        let says = wrapped(&format!("{about}{says}"), INDENT, width);
        let _ = writeln!(text, "{colour}{label:>7}\x1b[0m  {says}");
        if let Some(advice) = advice {
            let _ = writeln!(text, "{:INDENT$}→ {}", "", wrapped(advice, INDENT + 2, width));
        }
    }
    text
}

/// Breaks a text that stands behind an indent between words, so that its lines fit `width` columns. Lines
/// after the first get the indent. A longer word stays whole.
pub fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    const LEAST: usize = 10;
    let room = width.map(|width| width.saturating_sub(indent)).filter(|room| *room >= LEAST);
    let Some(room) = room else { return text.to_owned() };
    let mut wrapped = String::with_capacity(text.len() + 64);
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > room {
            // Writing to a string cannot fail.
            let _ = write!(wrapped, "\n{:indent$}", "");
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_counts() {
        let finding = |level| Finding::new("x", level, "y");
        assert_eq!(worst(&[]), Level::Ok);
        assert_eq!(
            worst(&[finding(Level::Note), finding(Level::Problem), finding(Level::Warning)]),
            Level::Problem
        );
    }

    #[test]
    fn a_line_says_how_bad_about_what_and_what_to_do() {
        let finding =
            Finding::new("no_route", Level::Problem, "there is no route").about("peer").advise("ip route");
        let text = anstream::adapter::strip_str(&lines(&[finding], None)).to_string();
        assert_eq!(text, "problem  peer: there is no route\n         → ip route\n");
    }

    #[test]
    fn a_long_line_is_broken_between_words_and_a_long_word_is_not() {
        let finding = Finding::new("x", Level::Warning, "each of these words is a short one, and they wrap")
            .advise("see /a/path/that/is/longer/than/the/window first");
        let text = anstream::adapter::strip_str(&lines(&[finding], Some(30))).to_string();
        let expected = "warning  each of these words\n         is a short one, and\n         they wrap\n         \
                        → see\n           /a/path/that/is/longer/than/the/window\n           first\n";
        assert_eq!(text, expected);
        for width in [None, Some(3)] {
            assert_eq!(wrapped("a b", 9, width), "a b");
        }
    }
}
