//! What can be wrong, or odd, with a configuration file: each says where, what, and what to do.
//! No text of a key ever gets in here.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use weft_tunnel::{InvalidKey, PublicKey};

use super::Endpoint;

/// Where in a file something stands. Prints as `FILE:LINE: KEY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file as the user named it.
    pub file: Arc<Path>,
    /// The line, from 1.
    pub line: usize,
    /// The key or `[Section]`, as it is documented; nothing if the line has none that can be shown.
    pub key: Option<String>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)?;
        self.key.as_ref().map_or(Ok(()), |key| write!(f, ": {key}"))
    }
}

/// Text of a file that is safe to repeat: in backticks, control characters escaped, shortened, and hidden if
/// there may be a key in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(String);

impl Shown {
    /// What may be shown of `text`.
    pub fn new(text: &str) -> Self {
        if may_hold_a_key(text) {
            return Self("the text (not shown: it looks like a key)".to_owned());
        }
        let mut shown: String = text.chars().take(Self::MAX_CHARS).flat_map(char::escape_debug).collect();
        if text.chars().nth(Self::MAX_CHARS).is_some() {
            shown.push('…');
        }
        Self(format!("`{shown}`"))
    }

    const MAX_CHARS: usize = 80;
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether so many characters of base64 or hex follow each other that most of a key (44 or 64) could be there.
pub(super) fn may_hold_a_key(text: &str) -> bool {
    const MOST_OF_A_KEY: usize = 24;
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    // Without white space, so that a key which was broken into pieces stays hidden as well.
    let mut run = 0;
    text.bytes().filter(|byte| !byte.is_ascii_whitespace()).any(|byte| {
        run = if is_key(byte) { run + 1 } else { 0 };
        run >= MOST_OF_A_KEY
    })
}

/// Something that makes a configuration unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct ConfigError {
    /// Where.
    pub at: Location,
    /// What, and what to do.
    pub problem: Problem,
}

/// What makes a configuration unusable, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message documents the variant and its fields")]
pub enum Problem {
    #[error("this line is neither `[Section]` nor `Key = Value`; a comment begins with #")]
    NotALine,
    #[error("there is no such section; the sections are [Interface] and [Peer]")]
    UnknownSection,
    #[error("there is no [Interface] section; add one with at least `PrivateKey = …`")]
    NoInterface,
    #[error("a key before the first section; put [Interface] or [Peer] above it")]
    OutsideSection,
    #[error("there is no such key in [{section}]{}", did_you_mean(*.suggestion))]
    UnknownKey { section: &'static str, suggestion: Option<&'static str> },
    #[error("this key belongs into [{belongs}], not into [{section}]; move the line there")]
    WrongSection { section: &'static str, belongs: &'static str },
    #[error(
        "a comment that begins with `weft:` is a setting; write `# weft: KEY = VALUE`, or begin it otherwise"
    )]
    NotASetting,
    #[error("there is no such setting of weft{}", did_you_mean_setting(*.suggestion))]
    UnknownSetting { suggestion: Option<&'static str> },
    #[error("is missing; add `PrivateKey = …` to this section (`weft genkey` makes one)")]
    MissingPrivateKey,
    #[error("is missing; add `PublicKey = …` to this section (`weft pubkey` tells it on the other end)")]
    MissingPublicKey,
    #[error("{0}; copy the whole of it, with the `=` at its end")]
    Key(#[from] InvalidKey),
    #[error(
        "all of this key is zero, which means no key; put a real one here (`weft genkey`, `weft pubkey`)"
    )]
    ZeroKey,
    #[error("{file}: there is no such file{}; put the key there", not_a_credential(credential.as_deref()))]
    NoKeyFile { file: String, credential: Option<String> },
    #[error("{file}: cannot read the key: permission denied; run weft as root, or as a user who may read it")]
    KeyFileDenied { file: String },
    #[error("{file}: cannot read the key: {error}")]
    KeyFile { file: String, error: String },
    #[error(
        "this looks like a key, and here is the place for the path of a file; write `PrivateKey = …` or `PresharedKey = …`"
    )]
    KeyInPlaceOfFile,
    #[error("there is no value; {expected}")]
    Empty { expected: &'static str },
    #[error("{text} is not valid; {expected}")]
    Value { text: Shown, expected: &'static str },
    #[error("{mtu} is less than the 1280 that IPv6 needs; raise it or remove the IPv6 addresses")]
    MtuForIpv6 { mtu: u16 },
    #[error(
        "with a default route in AllowedIPs the mark is the number of its routing table as well, and {mark} is a \
         table of the kernel's own; choose another one, or remove the line to have it chosen"
    )]
    MarkOfAKernelTable { mark: u32 },
    #[error("{0} is the interface's own public key; put the other end's key here")]
    OwnKey(PublicKey),
    #[error("{key} is the peer of line {first} already; merge the two [Peer] sections")]
    PeerTwice { key: PublicKey, first: usize },
    #[error("the file is not UTF-8 text; save it as UTF-8 (it may be UTF-16 or no text at all)")]
    NotUtf8,
}

fn not_a_credential(file: Option<&str>) -> String {
    file.map(|file| format!(", and {file} is no credential of this service")).unwrap_or_default()
}

fn did_you_mean(suggestion: Option<&'static str>) -> String {
    suggestion.map_or_else(
        || "; remove the line, or begin it with # if it is a comment".to_owned(),
        |key| format!("; did you mean `{key}`?"),
    )
}

fn did_you_mean_setting(suggestion: Option<&'static str>) -> String {
    suggestion.map_or_else(
        || {
            "; in [Interface] there are KillSwitch, PathMtuDiscovery, MssClamp, Metrics and MetricsHost, in [Peer] \
             RateToPeer and RateFromPeer"
                .to_owned()
        },
        |key| format!("; did you mean `{key}`?"),
    )
}

/// Something that was accepted, but is probably not meant that way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where.
    pub at: Location,
    /// What was done with it.
    pub notice: Notice,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.notice)
    }
}

/// What is probably not meant that way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The key stood in the section before, and this value counts.
    Repeated {
        /// The line of the value that does not count.
        first: usize,
    },
    /// Another `[Interface]` section: its lines count as if they stood in the first.
    SecondInterface {
        /// The line of the first.
        first: usize,
    },
    /// An IPv6 endpoint without brackets: what is behind the last colon is the port.
    Unbracketed {
        /// As it is understood.
        endpoint: Endpoint,
    },
    /// A prefix with host bits: they were cleared.
    HostBits {
        /// As written.
        given: IpNet,
    },
    /// A prefix that an earlier peer had: it belongs to this one now.
    TakenOver {
        /// The prefix.
        prefix: IpNet,
        /// The line where the earlier peer has it.
        first: usize,
    },
    /// The same prefix or address again, in the same place.
    Duplicate {
        /// The prefix or address.
        prefix: IpNet,
        /// The line where it stands first.
        first: usize,
    },
    /// A peer's endpoint is within a prefix that is routed into the tunnel.
    EndpointInside {
        /// The endpoint.
        endpoint: SocketAddr,
        /// The prefix.
        prefix: IpNet,
    },
    /// Others than the owner can read the file of a key.
    ReadableKey {
        /// The permission bits of the file.
        mode: u32,
    },
    /// Others than the owner can read the private key.
    Readable {
        /// The permission bits of the file.
        mode: u32,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repeated { first } => {
                write!(f, "given again, the value of line {first} does not count; remove one of the two")
            }
            Self::SecondInterface { first } => {
                write!(
                    f,
                    "a second [Interface] section; its lines count as part of the one in line {first}, merge the two"
                )
            }
            Self::Unbracketed { endpoint } => {
                write!(f, "without brackets, what is behind the last colon is the port; write {endpoint}")
            }
            Self::HostBits { given } => {
                write!(f, "{given} has host bits, {} is used; write that", given.trunc())
            }
            Self::TakenOver { prefix, first } => write!(
                f,
                "{prefix} is given to the peer of line {first} as well; this peer takes it over, remove it from one"
            ),
            Self::Duplicate { prefix, first } => {
                write!(f, "{prefix} stands in line {first} already; remove one of the two")
            }
            Self::EndpointInside { endpoint, prefix } => write!(
                f,
                "{endpoint} is within {prefix}, which is routed into the tunnel: unless a better route leads there, \
                 what is sent to it goes round in circles; list narrower AllowedIPs"
            ),
            Self::ReadableKey { mode } => write!(
                f,
                "others can read the file of this key (mode {mode:04o}); take that away with chmod 600"
            ),
            Self::Readable { mode } => write!(
                f,
                "others can read this file and its private key (mode {mode:04o}); take that away with chmod 600"
            ),
        }
    }
}

/// All that is wrong with one file, in the order of its lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// What is wrong.
    pub errors: Vec<ConfigError>,
    /// How many more there are than were kept.
    pub more: usize,
    /// What is odd besides.
    pub warnings: Vec<Warning>,
}

impl ConfigErrors {
    /// Whether nothing is wrong but that files of keys are not there.
    pub fn lacks_only_keys(&self) -> bool {
        self.more == 0 && self.errors.iter().all(|error| matches!(error.problem, Problem::NoKeyFile { .. }))
    }

    /// Whether the only problem is a missing permission.
    pub fn is_permission_denied(&self) -> bool {
        let is_denied = |error: &ConfigError| matches!(error.problem, Problem::KeyFileDenied { .. });
        self.more == 0 && self.errors.iter().all(is_denied)
    }
}

impl fmt::Display for ConfigErrors {
    /// One line an error, without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_char('\n')?;
            }
            error.fmt(f)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_may_be_a_key_is_shown() {
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        let hex = "c809f3e5317e9575c9b5ed78b638b7ce530dabe85ddab614220241801ddf0669";
        let broken = key.chars().map(|c| format!("{c} ")).collect::<String>();
        for text in [key, hex, &format!("10.0.0.1/{key}"), &key[..30], &key.replace('+', "-"), &broken] {
            assert!(may_hold_a_key(text), "{text}");
            assert!(!Shown::new(text).to_string().contains(&text[..8]), "{text}");
        }
        for text in ["10.0.0.0/8", "2001:db8:1234:5678:9abc:def0:1234:5678/128", "vpn.example.com:51820"] {
            assert_eq!(Shown::new(text).to_string(), format!("`{text}`"));
        }
    }

    #[test]
    fn shown_text_is_one_short_line() {
        assert_eq!(Shown::new("a\u{1b}[31m\nb").to_string(), "`a\\u{1b}[31m\\nb`");
        assert_eq!(Shown::new(&". ".repeat(100)).to_string().chars().count(), 83);
    }
}
