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

/// Formats the findings for people, one per line, the advice below each. The text has colours; print it with
/// `anstream`, which removes them if the output is not a terminal.
pub fn lines(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { level, about, says, advice, .. } in findings {
        let about = about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
        let (colour, label) = (level.colour(), level.label());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{colour}{label:>7}\x1b[0m  {about}{says}");
        if let Some(advice) = advice {
            let _ = writeln!(text, "         → {advice}");
        }
    }
    text
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
        let text = anstream::adapter::strip_str(&lines(&[finding])).to_string();
        assert_eq!(text, "problem  peer: there is no route\n         → ip route\n");
    }
}
