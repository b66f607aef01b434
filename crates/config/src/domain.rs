//! A DNS domain, checked.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The text is not a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a domain is 1 to 253 ASCII letters, digits, hyphens and underscores in parts of up to 63 between dots \
     (others as xn--…), or `.` for every name"
)]
pub struct InvalidDomain;

/// A DNS domain (RFC 1035, section 2.3.4, and underscores, which services use) in lower case and without a
/// trailing dot, or the root domain, which contains every name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Domain(String);

impl Domain {
    /// Returns the root domain, which contains every name.
    pub fn root() -> Self {
        Self(".".to_owned())
    }

    /// Reports whether it is the root domain.
    pub fn is_root(&self) -> bool {
        self.0 == "."
    }

    /// Returns the domain as text; the root domain is `.`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Domain {
    type Err = InvalidDomain;
    fn from_str(text: &str) -> Result<Self, InvalidDomain> {
        if text == "." {
            return Ok(Self::root());
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let valid = name.len() <= 253
            && name.split('.').all(|label| (1..=63).contains(&label.len()) && label.bytes().all(allowed));
        if valid { Ok(Self(name.to_ascii_lowercase())) } else { Err(InvalidDomain) }
    }
}

impl TryFrom<String> for Domain {
    type Error = InvalidDomain;
    fn try_from(text: String) -> Result<Self, InvalidDomain> {
        text.parse()
    }
}

impl From<Domain> for String {
    fn from(domain: Domain) -> Self {
        domain.0
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_those_of_dns_and_the_root() {
        for (text, domain) in [
            ("example", "example"),
            ("Corp.Example.", "corp.example"),
            ("_tcp.a-b.example", "_tcp.a-b.example"),
            ("10.in-addr.arpa", "10.in-addr.arpa"),
            (".", "."),
        ] {
            assert_eq!(text.parse::<Domain>().unwrap().as_str(), domain);
        }
        let long = format!("{}.example", "a".repeat(64));
        let longer = "a.".repeat(127) + "b";
        for text in
            ["", "..", ".example", "a..b", "a b", "a/b", "~a", "a\nnameserver", "ö.example", &long, &longer]
        {
            assert_eq!(text.parse::<Domain>(), Err(InvalidDomain), "{text:?}");
        }
        assert!(Domain::root().is_root());
        assert!(serde_json::from_str::<Domain>("\"a b\"").is_err());
    }
}
