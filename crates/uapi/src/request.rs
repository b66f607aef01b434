//! Parses requests from lines into checked types. The rules are those of wireguard-go, which is stricter than
//! wg(8) requires: numbers are decimal without a sign, and an allowed-ip has a prefix length.

use std::num::NonZeroU16;

use weft_config::device::{DeviceChange, PeerChange};

use crate::values;

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
        key: &'static str,
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
        let (key, value) = (&line[..equals], &line[equals + 1..]);
        if key == b"public_key" {
            let key = values::public_key(value).ok_or(Problem::Value {
                line: number,
                key: "public_key",
                expected: values::KEY,
            })?;
            self.change.peers.push(PeerChange::new(key));
            self.in_peer = true;
            return Ok(());
        }
        let (place, outcome) = match self.change.peers.last_mut().filter(|_| self.in_peer) {
            Some(peer) => ("a peer", peer_line(peer, key, value, scope_of)),
            None => ("an interface", device_line(&mut self.change, key, value)),
        };
        outcome.map_err(|wrong| match wrong {
            Wrong::Key => Problem::UnknownKey { line: number, place, key: shown(key) },
            Wrong::Value(key, expected) => Problem::Value { line: number, key, expected },
        })
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
    Value(&'static str, &'static str),
}

fn device_line(change: &mut DeviceChange, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
    match key {
        b"private_key" => {
            let key = values::private_key(value).ok_or(Wrong::Value("private_key", values::KEY))?;
            change.private_key = Some(key);
        }
        b"listen_port" => {
            let port = values::number(value).ok_or(Wrong::Value("listen_port", values::PORT))?;
            change.listen_port = Some(port);
        }
        b"fwmark" => {
            let mark = values::number(value).ok_or(Wrong::Value("fwmark", values::MARK))?;
            change.fw_mark = Some(mark);
        }
        b"replace_peers" => change.replace_peers = truth("replace_peers", value)?,
        _ => return Err(Wrong::Key),
    }
    Ok(())
}

/// Applies a line to a peer. For a peer that is removed, the line is only checked, and earlier settings are
/// discarded.
fn peer_line(
    peer: &mut PeerChange,
    key: &[u8],
    value: &[u8],
    scope_of: fn(&str) -> Option<u32>,
) -> Result<(), Wrong> {
    match key {
        b"remove" => {
            let remove = truth("remove", value)?;
            *peer = PeerChange { remove, update_only: peer.update_only, ..PeerChange::new(peer.public_key) };
        }
        b"update_only" => peer.update_only = truth("update_only", value)?,
        b"preshared_key" => {
            let key = values::preshared_key(value).ok_or(Wrong::Value("preshared_key", values::KEY))?;
            set(peer, |peer| peer.settings.preshared_key = Some(key));
        }
        b"endpoint" => {
            let endpoint =
                values::endpoint(value, scope_of).ok_or(Wrong::Value("endpoint", values::ENDPOINT))?;
            set(peer, |peer| peer.endpoint = Some(endpoint));
        }
        b"persistent_keepalive_interval" => {
            let seconds: u16 = values::number(value)
                .ok_or(Wrong::Value("persistent_keepalive_interval", values::KEEPALIVE))?;
            set(peer, |peer| peer.settings.persistent_keepalive = Some(NonZeroU16::new(seconds)));
        }
        b"replace_allowed_ips" => {
            truth("replace_allowed_ips", value)?;
            set(peer, |peer| {
                peer.replace_allowed_ips = true;
                peer.allowed_ips.clear();
            });
        }
        b"allowed_ip" => {
            let change = values::allowed_ip(value).ok_or(Wrong::Value("allowed_ip", values::ALLOWED_IP))?;
            set(peer, |peer| peer.allowed_ips.push(change));
        }
        b"protocol_version" if value == b"1" => {}
        b"protocol_version" => return Err(Wrong::Value("protocol_version", "1")),
        _ => return Err(Wrong::Key),
    }
    Ok(())
}

fn set(peer: &mut PeerChange, change: impl FnOnce(&mut PeerChange)) {
    if !peer.remove {
        change(peer);
    }
}

fn truth(key: &'static str, value: &[u8]) -> Result<bool, Wrong> {
    if value == b"true" { Ok(true) } else { Err(Wrong::Value(key, "`true`")) }
}

#[cfg(test)]
mod tests;
