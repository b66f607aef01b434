//! Errors in configuration files, and warnings about them. Each says where it is, describes the problem and
//! gives advice. None of them contains the text of a key.

use std::fmt::{self, Write as _};
use std::net::Ipv6Addr;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use weft_tunnel::{InvalidKey, PublicKey};

use super::dialect::{self, Dialect};
use super::keys::{InterfaceSetting, PeerSetting};
use super::{Endpoint, Expiry, as_root};

/// A place in a configuration file. Prints as `FILE:LINE: KEY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file as the user named it.
    pub file: Arc<Path>,
    /// The line number, from 1.
    pub line: usize,
    /// The key or `[Section]`: in its documented spelling if it is known, else as written. `None` if the line
    /// has none that is safe to print.
    pub key: Option<String>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)?;
        self.key.as_ref().map_or(Ok(()), |key| write!(f, ": {key}"))
    }
}

/// Text of a file in a form that is safe to print: in backticks, control characters escaped, shortened, and
/// hidden if it may contain a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(String);

impl Shown {
    /// Escapes and shortens `text`, or hides it if it may contain a key.
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

/// Reports whether `text` has a run of base64 or hex characters that is long enough to be most of a key (44
/// or 64 characters).
pub(super) fn may_hold_a_key(text: &str) -> bool {
    const MOST_OF_A_KEY: usize = 24;
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    // White space does not end a run, so that a key that is broken into pieces is hidden too.
    let mut run = 0;
    text.bytes().filter(|byte| !byte.is_ascii_whitespace()).any(|byte| {
        run = if is_key(byte) { run + 1 } else { 0 };
        run >= MOST_OF_A_KEY
    })
}

/// An error that makes a configuration unusable, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct ConfigError {
    /// The place of the error.
    pub at: Location,
    /// The error; its message says what to do.
    pub problem: Problem,
}

/// Returns the error that a text has another format, if it has.
pub fn foreign(text: &str, source: &Arc<Path>) -> Option<ConfigError> {
    let (line, key, dialect) = dialect::find(text)?;
    let at = Location { file: source.clone(), line, key: Some(key) };
    Some(ConfigError { at, problem: Problem::Foreign(dialect) })
}

/// An error that makes a configuration unusable. The message says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message documents the variant and its fields")]
pub enum Problem {
    #[error("this line is neither `[Section]` nor `Key = Value`; a comment begins with #")]
    NotALine,
    #[error("unknown section; the sections are [Interface] and [Peer]")]
    UnknownSection,
    #[error("there is no [Interface] section; add one with at least `PrivateKey = …`")]
    NoInterface,
    #[error("a key before the first section; put [Interface] or [Peer] above it")]
    OutsideSection,
    #[error("unknown key in [{section}]{}", did_you_mean(*.suggestion))]
    UnknownKey { section: &'static str, suggestion: Option<&'static str> },
    #[error(
        "a setting of weft stands in a comment, so that other programs can read the file; write `{line}`{}",
        .belongs.map(|section| format!(" in [{section}]")).unwrap_or_default()
    )]
    WithoutMark { line: String, belongs: Option<&'static str> },
    #[error("this key is one of {program}; {advice}")]
    ForeignKey { program: &'static str, advice: &'static str },
    #[error("{0}")]
    Foreign(Dialect),
    #[error("this key belongs into [{belongs}], not into [{section}]; move the line there")]
    WrongSection { section: &'static str, belongs: &'static str },
    #[error(
        "a comment that begins with `weft:` is a setting; write `# weft: KEY = VALUE`, or begin it otherwise"
    )]
    NotASetting,
    #[error(
        "this comment is no setting as it is written; write `# weft: {key} = …` in a separate line, or begin the \
         comment otherwise"
    )]
    SettingInComment { key: &'static str },
    #[error(
        "this key is wg-quick's; `weft strip FILE | weft … -` leaves such lines out (`weft syncconf` knows them, and \
         removes the peers that the file does not have)"
    )]
    WgQuickKey,
    #[error("unknown setting of weft{}", did_you_mean_setting(*.suggestion))]
    UnknownSetting { suggestion: Option<&'static str> },
    #[error("is missing; add `PrivateKey = …` to this section (`weft genkey` makes one)")]
    MissingPrivateKey,
    #[error("is missing; add `PublicKey = …` to this section (`weft pubkey` prints it on the other end)")]
    MissingPublicKey,
    #[error("{0}; copy the whole of it, with the `=` at its end")]
    Key(#[from] InvalidKey),
    #[error(
        "all of this key is zero, which means no key; put a real one here (`weft genkey`, `weft pubkey`)"
    )]
    ZeroKey,
    #[error("{file}: there is no such file{}; put the key there", not_a_credential(credential.as_deref()))]
    NoKeyFile { file: String, credential: Option<String> },
    #[error(
        "{file}: cannot read the key: permission denied; {}",
        as_root(
            "run weft as root, or as a user who may read it",
            "give it to the unit: a drop-in key.conf with LoadCredential=NAME:FILE, and PrivateKeyFile = NAME \
             (docs/SYSTEMD.md, Keys)"
        )
    )]
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
    #[error(
        "{mtu} is less than the 1280 that IPv6 needs; raise it, or remove the IPv6 addresses from Address and AllowedIPs"
    )]
    MtuForIpv6 { mtu: u16 },
    #[error(
        "{address} stands in line {first} with another prefix length, and an interface has an IPv6 address only once; \
         remove one of the two"
    )]
    AddressTwice { address: Ipv6Addr, first: usize },
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
            let list = |keys: Vec<&'static str>| match keys.split_last() {
                Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
                _ => keys.concat(),
            };
            format!(
                "; in [Interface] there are {}, in [Peer] {}",
                list(InterfaceSetting::ALL.iter().map(|key| key.text()).collect()),
                list(PeerSetting::ALL.iter().map(|key| key.text()).collect()),
            )
        },
        |key| format!("; did you mean `{key}`?"),
    )
}

/// A warning about a setting that is accepted but probably not intended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The place of the error.
    pub at: Location,
    /// The kind of warning; its message says how the setting was treated.
    pub notice: Notice,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.notice)
    }
}

/// A setting that is probably not intended, and how it was treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The key occurs twice in its section; the later value is used.
    Repeated {
        /// The line of the earlier value, which is ignored.
        first: usize,
    },
    /// A second `[Interface]` section: its lines are read as part of the first.
    SecondInterface {
        /// The line of the first `[Interface]`.
        first: usize,
    },
    /// An IPv6 endpoint without brackets: the port follows the last colon.
    Unbracketed {
        /// The endpoint as parsed.
        endpoint: Endpoint,
    },
    /// The address of the interface is that of its network, or the one of all hosts in it.
    NoHost {
        /// The address as written.
        address: IpNet,
    },
    /// A prefix with host bits, which were cleared.
    HostBits {
        /// The prefix as written.
        given: IpNet,
    },
    /// A prefix that an earlier peer lists too: it belongs to the later peer.
    TakenOver {
        /// The longest such prefix, except a default route.
        prefix: IpNet,
        /// The line of the earlier peer's entry.
        first: usize,
    },
    /// A prefix that one peer lists twice, or an address that the interface lists twice.
    Duplicate {
        /// The prefix or address.
        prefix: IpNet,
        /// The line of the first entry.
        first: usize,
    },
    /// Users other than the owner can read a key file.
    ReadableKey {
        /// The permission bits of the file.
        mode: u32,
    },
    /// Users other than the owner can read the configuration file, and with it the private key.
    Readable {
        /// The permission bits of the file.
        mode: u32,
    },
    /// Users other than the owner can change the configuration file, and with it the commands that it has.
    Writable {
        /// The permission bits of the file.
        mode: u32,
    },
    /// The configuration file is of a user other than root and the one who loads it.
    OwnedByAnother {
        /// The owner.
        user: u32,
    },
    /// The same as [`Self::Readable`] by an access list.
    ReadableByAll,
    /// The peer has ended.
    Expired {
        /// When it ended.
        expiry: Expiry,
    },
    /// Peers are told a port, and the interface listens at a random one.
    RandomPort {
        /// The port that peers are told.
        port: u16,
    },
    /// A comment has a setting of weft without its mark.
    SettingInComment {
        /// The setting.
        key: &'static str,
    },
    /// The name of a peer has characters that are not shown.
    HiddenInName,
    /// Further warnings of a kind, which were not kept.
    More {
        /// Their number.
        count: usize,
    },
    /// A key file cannot be used yet, and PreUp may write it.
    KeyFileToCome {
        /// What is wrong with it now.
        problem: Problem,
    },
}

impl Notice {
    /// Reports whether it is about who can read or change the files, and not about what they say.
    pub fn is_about_access(&self) -> bool {
        matches!(
            self,
            Self::ReadableKey { .. }
                | Self::Readable { .. }
                | Self::Writable { .. }
                | Self::OwnedByAnother { .. }
                | Self::ReadableByAll
        )
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repeated { first } => {
                write!(f, "given again, the value of line {first} does not count; remove one of the two")
            }
            Self::Expired { expiry } => {
                write!(f, "the peer ended at {expiry} and is not let in; give it a later date, or remove it")
            }
            Self::RandomPort { port } => write!(
                f,
                "peers are told port {port}, and without ListenPort the interface has another one after each start; add \
                 `ListenPort = {port}`"
            ),
            Self::SettingInComment { key } => Problem::SettingInComment { key }.fmt(f),
            Self::HiddenInName => f.write_str(
                "the name has invisible characters, which are left out; write it again without them \
                 (`weft peer rename`)",
            ),
            Self::More { count } => write!(f, "and {count} more like this"),
            Self::KeyFileToCome { problem } => {
                write!(f, "{problem}, or have PreUp write it: it is read again after PreUp")
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
            Self::NoHost { address } => write!(
                f,
                "{} is the {} of {}, and no address of a host; write another one of it, or {0}/32",
                address.addr(),
                if address.addr() == address.network() { "network" } else { "broadcast address" },
                address.trunc()
            ),
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
            Self::ReadableKey { mode } => write!(
                f,
                "others can read the file of this key (mode {mode:04o}); remove that access with chmod 600"
            ),
            Self::Readable { mode } => write!(
                f,
                "others can read this file and its private key (mode {mode:04o}); remove that access with chmod 600"
            ),
            Self::Writable { mode } => write!(
                f,
                "others can change this file, and its commands run as root (mode {mode:04o}); remove that access with \
                 chmod 600"
            ),
            Self::OwnedByAnother { user } => write!(
                f,
                "others can change this file, and its commands run as root (its owner is user {user}); make it root's \
                 with chown root"
            ),
            Self::ReadableByAll => f.write_str(
                "all users can read this file and its private key; remove that access with \
                 icacls FILE /inheritance:r /grant *S-1-5-18:F *S-1-5-32-544:F",
            ),
        }
    }
}

/// All errors in one file, in the order of their lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The errors, in the order of their lines.
    pub errors: Vec<ConfigError>,
    /// The number of further errors, which were not kept.
    pub more: usize,
    /// The warnings about the same file.
    pub warnings: Vec<Warning>,
}

impl ConfigErrors {
    /// Reports whether missing key files are the only errors.
    pub fn lacks_only_keys(&self) -> bool {
        self.more == 0 && self.errors.iter().all(|error| matches!(error.problem, Problem::NoKeyFile { .. }))
    }

    /// Reports whether missing permissions are the only errors.
    pub fn is_permission_denied(&self) -> bool {
        let is_denied = |error: &ConfigError| matches!(error.problem, Problem::KeyFileDenied { .. });
        self.more == 0 && self.errors.iter().all(is_denied)
    }
}

impl fmt::Display for ConfigErrors {
    /// Writes one line per error, without a line break at the end.
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
