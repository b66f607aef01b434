//! Parses requests from lines into checked types. The rules are those of wireguard-go, which is stricter than
//! wg(8) requires: numbers are decimal without a sign, and an allowed-ip has a prefix length.

use weft_config::device::{DeviceChange, PeerChange};

use crate::key::Key;
use crate::values::{self, Expected};

/// The maximum bytes of a request: hundreds of thousands of peers with several allowed-ips each.
const MAX_REQUEST: usize = 64 << 20;
/// The maximum length of an unknown key that an error shows.
const SHOWN: usize = 32;

/// A request of a client.
#[derive(Debug)]
pub enum Request {
    /// Read the state of the interface and its peers.
    Get,
    /// Apply a change.
    Set(DeviceChange),
}

/// The result of a line.
#[derive(Debug)]
pub enum Step {
    /// The request continues.
    More,
    /// The request is complete.
    Complete(Request),
    /// The request has ended, and is rejected as a whole.
    Rejected(Problem),
    /// The line does not begin a request: the client speaks another protocol.
    Foreign,
}

/// Why a request is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A line has no `=`.
    #[error("line {line} has no `=`")]
    NoEquals {
        /// The line number within the request.
        line: usize,
    },
    /// A key is unknown, or unknown in this place.
    #[error("line {line}: {place} has no key {key}")]
    UnknownKey {
        /// The line number within the request.
        line: usize,
        /// `an interface` or `a peer`.
        place: &'static str,
        /// The key, unless it may be a secret.
        key: String,
    },
    /// A value is invalid. It is not shown, because it may be a secret.
    #[error("line {line}: {key} is not {expected}")]
    Value {
        /// The line number within the request.
        line: usize,
        key: Key,
        /// The expected form of the value.
        expected: &'static str,
    },
    /// `get=1` is not followed by an empty line.
    #[error("`get=1` is not followed by an empty line")]
    Trailing,
    /// A line is longer than any valid line.
    #[error("line {line} has more than 65536 bytes")]
    LineTooLong {
        /// The line number within the request.
        line: usize,
    },
    /// The request is longer than any sensible request.
    #[error("the request has more than {} MiB", MAX_REQUEST >> 20)]
    TooLong,
    /// The client closed the connection before the empty line that ends the request.
    #[error("the request breaks off before the empty line that ends it")]
    Unfinished,
}

/// Parses requests line by line, without I/O.
pub struct RequestParser {
    state: State,
    /// The number of the last line of the request; `bytes` is the size of the request so far.
    line: usize,
    bytes: usize,
    /// Returns the index of a network interface, for addresses like `fe80::1%eth0`.
    scope_of: fn(&str) -> Option<u32>,
}

enum State {
    /// Between two requests.
    Idle,
    /// `get=1` was read.
    Get,
    /// `set=1` was read.
    Set(Box<SetState>),
    /// The rest of the request is read and ignored.
    Refused(Problem),
}

#[derive(Default)]
struct SetState {
    change: DeviceChange,
    /// Whether lines apply to the last of `change.peers`; otherwise they apply to the interface.
    in_peer: bool,
}

impl RequestParser {
    /// Creates a parser that expects the first line of a request.
    pub fn new(scope_of: fn(&str) -> Option<u32>) -> Self {
        Self { state: State::Idle, line: 0, bytes: 0, scope_of }
    }

    /// Reports whether the parser is between two requests.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Returns the bytes of the request so far.
    pub fn request_bytes(&self) -> usize {
        self.bytes
    }

    /// Processes a line, without its line break.
    pub fn line(&mut self, line: &[u8]) -> Step {
        self.line = self.line.saturating_add(1);
        self.bytes = self.bytes.saturating_add(line.len()).saturating_add(1);
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => {
                (self.line, self.bytes) = (1, line.len() + 1);
                self.state = match line {
                    b"get=1" => State::Get,
                    b"set=1" => State::Set(Box::default()),
                    _ => return Step::Foreign,
                };
                Step::More
            }
            State::Get if line.is_empty() => Step::Complete(Request::Get),
            // Rejected at once: this request should have ended, so its end is not known.
            State::Get => Step::Rejected(Problem::Trailing),
            State::Refused(problem) if line.is_empty() || line == b"\r" => Step::Rejected(problem),
            refused @ State::Refused(_) => {
                self.state = refused;
                Step::More
            }
            State::Set(set) => self.set_line(set, line.strip_suffix(b"\r").unwrap_or(line)),
        }
    }

    /// Processes a line that is too long for [`Self::line`].
    pub fn line_too_long(&mut self) -> Step {
        self.line = self.line.saturating_add(1);
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => Step::Foreign,
            State::Get => Step::Rejected(Problem::Trailing),
            State::Set(_) => self.refuse(Problem::LineTooLong { line: self.line }),
            refused @ State::Refused(_) => {
                self.state = refused;
                Step::More
            }
        }
    }

    /// Processes the end of the connection. Returns what is wrong with the unfinished request, if there is
    /// one.
    pub fn end(&mut self) -> Option<Problem> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => None,
            State::Get | State::Set(_) => Some(Problem::Unfinished),
            State::Refused(problem) => Some(problem),
        }
    }

    fn refuse(&mut self, problem: Problem) -> Step {
        self.state = State::Refused(problem);
        Step::More
    }

    fn set_line(&mut self, mut set: Box<SetState>, line: &[u8]) -> Step {
        if line.is_empty() {
            return Step::Complete(Request::Set(set.change));
        }
        if self.bytes > MAX_REQUEST {
            return self.refuse(Problem::TooLong);
        }
        match set.take(self.line, line, self.scope_of) {
            Ok(()) => {
                self.state = State::Set(set);
                Step::More
            }
            Err(problem) => self.refuse(problem),
        }
    }
}

impl SetState {
    fn take(&mut self, number: usize, line: &[u8], scope_of: fn(&str) -> Option<u32>) -> Result<(), Problem> {
        let Some(equals) = line.iter().position(|&byte| byte == b'=') else {
            return Err(Problem::NoEquals { line: number });
        };
        let (written, value) = (&line[..equals], &line[equals + 1..]);
        let key = Key::exactly(written);
        if key == Some(Key::PublicKey) {
            let key = values::public_key(value);
            let key =
                key.map_err(|expected| Problem::Value { line: number, key: Key::PublicKey, expected })?;
            self.change.peers.push(PeerChange::new(key));
            self.in_peer = true;
            return Ok(());
        }
        let (place, outcome) = match self.change.peers.last_mut().filter(|_| self.in_peer) {
            Some(peer) => ("a peer", key.map(|key| peer_line(peer, key, value, scope_of))),
            None => ("an interface", key.map(|key| device_line(&mut self.change, key, value))),
        };
        match (key, outcome) {
            (_, Some(Ok(()))) => Ok(()),
            (Some(key), Some(Err(Wrong::Value(expected)))) => {
                Err(Problem::Value { line: number, key, expected })
            }
            _ => Err(Problem::UnknownKey { line: number, place, key: shown(written) }),
        }
    }
}

/// Formats a key for an error. It is shown only if it looks like a word, and not like a secret in the wrong
/// place.
fn shown(key: &[u8]) -> String {
    let is_word = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'_';
    match std::str::from_utf8(key) {
        Ok(key) if key.len() <= SHOWN && key.bytes().all(|byte| is_word(&byte)) => format!("`{key}`"),
        _ => "of this name".to_owned(),
    }
}

/// What is wrong with a line.
enum Wrong {
    Key,
    Value(Expected),
}

impl From<Expected> for Wrong {
    fn from(expected: Expected) -> Self {
        Self::Value(expected)
    }
}

fn device_line(change: &mut DeviceChange, key: Key, value: &[u8]) -> Result<(), Wrong> {
    let settings = &mut change.settings;
    match key {
        Key::PrivateKey => settings.private_key = Some(values::private_key(value)?),
        Key::ListenPort => settings.listen_port = Some(values::listen_port(value)?),
        Key::FwMark => settings.fw_mark = Some(values::fw_mark(value)?),
        Key::ReplacePeers => change.replace_peers = values::truth(value)?,
        Key::PublicKey | Key::Remove | Key::UpdateOnly | Key::PresharedKey | Key::Endpoint => {
            return Err(Wrong::Key);
        }
        Key::PersistentKeepalive | Key::ReplaceAllowedIps | Key::AllowedIp => return Err(Wrong::Key),
        Key::ProtocolVersion | Key::LastHandshakeSec | Key::LastHandshakeNsec => return Err(Wrong::Key),
        Key::TxBytes | Key::RxBytes | Key::OwnPublicKey | Key::Errno => return Err(Wrong::Key),
    }
    Ok(())
}

/// Applies a line to a peer. For a peer that is removed, the line is only checked, and earlier settings are
/// discarded.
fn peer_line(
    peer: &mut PeerChange,
    key: Key,
    value: &[u8],
    scope_of: fn(&str) -> Option<u32>,
) -> Result<(), Wrong> {
    match key {
        Key::Remove => {
            let remove = values::truth(value)?;
            *peer = PeerChange { remove, update_only: peer.update_only, ..PeerChange::new(peer.public_key) };
        }
        Key::UpdateOnly => peer.update_only = values::truth(value)?,
        Key::PresharedKey => {
            let key = values::preshared_key(value)?;
            set(peer, |peer| peer.settings.preshared_key = Some(key));
        }
        Key::Endpoint => {
            let endpoint = values::endpoint(value, scope_of)?;
            set(peer, |peer| peer.endpoint = Some(endpoint));
        }
        Key::PersistentKeepalive => {
            let interval = values::persistent_keepalive(value)?;
            set(peer, |peer| peer.settings.persistent_keepalive = Some(interval));
        }
        Key::ReplaceAllowedIps => {
            values::truth(value)?;
            set(peer, |peer| {
                peer.replace_allowed_ips = true;
                peer.allowed_ips.clear();
            });
        }
        Key::AllowedIp => {
            let change = values::allowed_ip(value)?;
            set(peer, |peer| peer.allowed_ips.push(change));
        }
        Key::ProtocolVersion if value == b"1" => {}
        Key::ProtocolVersion => return Err(Wrong::Value("1")),
        Key::PrivateKey | Key::ListenPort | Key::FwMark | Key::ReplacePeers => return Err(Wrong::Key),
        Key::PublicKey | Key::LastHandshakeSec | Key::LastHandshakeNsec => return Err(Wrong::Key),
        Key::TxBytes | Key::RxBytes | Key::OwnPublicKey | Key::Errno => return Err(Wrong::Key),
    }
    Ok(())
}

fn set(peer: &mut PeerChange, change: impl FnOnce(&mut PeerChange)) {
    if !peer.remove {
        change(peer);
    }
}

#[cfg(test)]
mod tests;
