//! What a check found: how bad it is, one sentence about it, and what to do.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// It works, but worse than it could, or not for long.
    Warning,
    /// It does not work.
    Problem,
}

impl Level {
    /// The level as it is printed.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    /// The sequence that begins its colour on a terminal.
    fn colour(self) -> &'static str {
        match self {
            Self::Ok => "\x1b[32m",
            Self::Note => "\x1b[36m",
            Self::Warning => "\x1b[1;33m",
            Self::Problem => "\x1b[1;31m",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check, which stays the same from release to release: `no_handshake`, `udp_buffers`, …
    pub check: String,
    /// How bad it is.
    pub level: Level,
    /// What it is about, if not the interface or machine as a whole: a peer, an endpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub about: Option<String>,
    /// One sentence.
    pub says: String,
    /// What to do, often a command.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
}

impl Finding {
    /// A finding about the interface or the machine as a whole.
    pub fn new(check: &str, level: Level, says: impl Into<String>) -> Self {
        Self { check: check.to_owned(), level, about: None, says: says.into(), advice: None }
    }

    /// The same about a peer or an endpoint.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// The same with something to do.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// The worst level of some findings.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

/// The findings as lines for people, the advice below each. The colours go where `anstream` does not see a terminal.
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
