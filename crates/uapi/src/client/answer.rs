//! Parses a daemon's answers. Unknown keys are ignored, as wg(8) does.

use std::num::NonZeroU16;
use std::time::{Duration, SystemTime};

use weft_config::device::{DeviceState, PeerState};
use weft_config::endpoint;
use weft_tunnel::{PrivateKey, PublicKey};

use super::Reported;
use crate::values;

/// Why an answer is invalid. The error contains no value, because a value may be a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerProblem {
    #[error("it is not text")]
    NotText,
    #[error("line {line} is no `key=value`")]
    NotALine { line: usize },
    #[error("the value of `{key}` in line {line} is not valid")]
    Value { key: &'static str, line: usize },
    #[error("`{key}` in line {line} belongs to a peer, but there is none before it")]
    NoPeer { key: &'static str, line: usize },
    #[error("it has no `errno`")]
    NoErrno,
}

/// Returns the `errno` of an answer to `set=1`.
pub fn parse_set(answer: &[u8]) -> Result<i32, AnswerProblem> {
    lines(answer)?
        .find_map(|line| line.strip_prefix("errno="))
        .and_then(|errno| errno.parse().ok())
        .ok_or(AnswerProblem::NoErrno)
}

/// Returns the state in an answer to `get=1`, or its `errno` if that is not 0.
pub fn parse_get(answer: &[u8]) -> Result<Result<Reported, i32>, AnswerProblem> {
    let mut reader = Reader::default();
    for (index, text) in lines(answer)?.enumerate() {
        let line = index + 1;
        if text.is_empty() {
            break;
        }
        let (key, value) = text.split_once('=').ok_or(AnswerProblem::NotALine { line })?;
        if key == "errno" {
            return match value.parse() {
                Ok(0) => Ok(Ok(reader.finish())),
                Ok(errno) => Ok(Err(errno)),
                Err(_) => Err(AnswerProblem::NoErrno),
            };
        }
        reader.line(key, value, line)?;
    }
    Err(AnswerProblem::NoErrno)
}

fn lines(answer: &[u8]) -> Result<impl Iterator<Item = &str>, AnswerProblem> {
    Ok(std::str::from_utf8(answer).map_err(|_| AnswerProblem::NotText)?.split('\n'))
}

/// The lines parsed so far.
#[derive(Default)]
struct Reader {
    state: DeviceState,
    own_public_key: Option<PublicKey>,
    /// The sum of the parts of the last peer's handshake time.
    handshake: Duration,
}

impl Reader {
    fn line(&mut self, key: &str, value: &str, line: usize) -> Result<(), AnswerProblem> {
        match key {
            "private_key" => {
                self.state.private_key =
                    values::private_key(value.as_bytes()).ok_or(wrong("private_key", line))?;
            }
            // boringtun sends this in place of the private key.
            "own_public_key" => {
                self.own_public_key =
                    Some(values::public_key(value.as_bytes()).ok_or(wrong("own_public_key", line))?);
            }
            "listen_port" => {
                self.state.listen_port = value.parse().map_err(|_| wrong("listen_port", line))?;
            }
            "fwmark" => self.state.fw_mark = value.parse().map_err(|_| wrong("fwmark", line))?,
            "public_key" => {
                let key = values::public_key(value.as_bytes()).ok_or(wrong("public_key", line))?;
                self.handshake = Duration::ZERO;
                self.state.peers.push(PeerState::new(key));
            }
            _ => return self.peer_line(key, value, line),
        }
        Ok(())
    }

    fn peer_line(&mut self, key: &str, value: &str, line: usize) -> Result<(), AnswerProblem> {
        const KEYS: [&str; 8] = [
            "preshared_key",
            "endpoint",
            "last_handshake_time_sec",
            "last_handshake_time_nsec",
            "tx_bytes",
            "rx_bytes",
            "persistent_keepalive_interval",
            "allowed_ip",
        ];
        let Some(key) = KEYS.into_iter().find(|&known| known == key) else { return Ok(()) };
        let peer = self.state.peers.last_mut().ok_or(AnswerProblem::NoPeer { key, line })?;
        let number = || value.parse::<u64>().map_err(|_| wrong(key, line));
        match key {
            "preshared_key" => {
                peer.settings.preshared_key =
                    values::preshared_key(value.as_bytes()).ok_or(wrong(key, line))?;
            }
            "endpoint" => peer.endpoint = Some(endpoint::parse(value).ok_or(wrong(key, line))?),
            "last_handshake_time_sec" => {
                self.handshake = self.handshake.saturating_add(Duration::from_secs(number()?));
                peer.last_handshake = time(self.handshake);
            }
            "last_handshake_time_nsec" => {
                let nanoseconds = number()?.min(999_999_999);
                self.handshake = self.handshake.saturating_add(Duration::from_nanos(nanoseconds));
                peer.last_handshake = time(self.handshake);
            }
            "tx_bytes" => peer.tx_bytes = number()?,
            "rx_bytes" => peer.rx_bytes = number()?,
            "persistent_keepalive_interval" => {
                let seconds = value.parse().map_err(|_| wrong(key, line))?;
                peer.settings.persistent_keepalive = NonZeroU16::new(seconds);
            }
            _ => peer.allowed_ips.push(value.parse().map_err(|_| wrong(key, line))?),
        }
        Ok(())
    }

    fn finish(self) -> Reported {
        let public_key = self.state.private_key.as_ref().map(PrivateKey::public_key).or(self.own_public_key);
        Reported { state: self.state, public_key }
    }
}

fn wrong(key: &'static str, line: usize) -> AnswerProblem {
    AnswerProblem::Value { key, line }
}

/// Converts Unix time; 0 means none.
fn time(since_epoch: Duration) -> Option<SystemTime> {
    if since_epoch.is_zero() { None } else { SystemTime::UNIX_EPOCH.checked_add(since_epoch) }
}
