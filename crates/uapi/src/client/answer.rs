//! Parses a daemon's answers.

use std::num::NonZeroU16;
use std::time::{Duration, SystemTime};

use weft_config::device::{DeviceState, PeerState};
use weft_config::endpoint;
use weft_tunnel::{PrivateKey, PublicKey};

use super::Reported;
use crate::key::Key;
use crate::values;

/// Why an answer is invalid. The error contains no value, because a value may be a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerProblem {
    #[error("it is not text")]
    NotText,
    #[error("line {line} is no `key=value`")]
    NotALine { line: usize },
    #[error("the value of `{key}` in line {line} is not valid")]
    Value { key: Key, line: usize },
    #[error("`{key}` in line {line} belongs to a peer, but there is none before it")]
    NoPeer { key: Key, line: usize },
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
        // Unknown keys are ignored, as wg(8) does.
        match Key::exactly(key.as_bytes()) {
            Some(Key::Errno) => {
                return match value.parse() {
                    Ok(0) => Ok(Ok(reader.finish())),
                    Ok(errno) => Ok(Err(errno)),
                    Err(_) => Err(AnswerProblem::NoErrno),
                };
            }
            Some(key) => reader.line(key, value, line)?,
            None => {}
        }
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
    fn line(&mut self, key: Key, value: &str, line: usize) -> Result<(), AnswerProblem> {
        let wrong = AnswerProblem::Value { key, line };
        let (settings, bytes) = (&mut self.state.settings, value.as_bytes());
        match key {
            Key::PrivateKey => settings.private_key = values::private_key(bytes).map_err(|_| wrong)?,
            Key::OwnPublicKey => self.own_public_key = Some(values::public_key(bytes).map_err(|_| wrong)?),
            Key::ListenPort => settings.listen_port = value.parse().map_err(|_| wrong)?,
            Key::FwMark => settings.fw_mark = value.parse().map_err(|_| wrong)?,
            Key::PublicKey => {
                let key = values::public_key(bytes).map_err(|_| wrong)?;
                self.handshake = Duration::ZERO;
                self.state.peers.push(PeerState::new(key));
            }
            Key::PresharedKey => {
                self.peer(key, line)?.settings.preshared_key =
                    values::preshared_key(bytes).map_err(|_| wrong)?;
            }
            Key::Endpoint => {
                self.peer(key, line)?.endpoint = Some(endpoint::parse(value).ok_or(wrong)?);
            }
            Key::LastHandshakeSec => {
                let seconds = value.parse().map_err(|_| wrong)?;
                self.add_to_handshake(key, Duration::from_secs(seconds), line)?;
            }
            Key::LastHandshakeNsec => {
                let nanoseconds: u64 = value.parse().map_err(|_| wrong)?;
                self.add_to_handshake(key, Duration::from_nanos(nanoseconds.min(999_999_999)), line)?;
            }
            Key::TxBytes => self.peer(key, line)?.tx_bytes = value.parse().map_err(|_| wrong)?,
            Key::RxBytes => self.peer(key, line)?.rx_bytes = value.parse().map_err(|_| wrong)?,
            Key::PersistentKeepalive => {
                let seconds = value.parse().map_err(|_| wrong)?;
                self.peer(key, line)?.settings.persistent_keepalive = NonZeroU16::new(seconds);
            }
            Key::AllowedIp => {
                self.peer(key, line)?.allowed_ips.push(value.parse().map_err(|_| wrong)?);
            }
            Key::ProtocolVersion | Key::Errno => {}
            // Keys of requests.
            Key::ReplacePeers | Key::Remove | Key::UpdateOnly | Key::ReplaceAllowedIps => {}
        }
        Ok(())
    }

    fn peer(&mut self, key: Key, line: usize) -> Result<&mut PeerState, AnswerProblem> {
        self.state.peers.last_mut().ok_or(AnswerProblem::NoPeer { key, line })
    }

    fn add_to_handshake(&mut self, key: Key, part: Duration, line: usize) -> Result<(), AnswerProblem> {
        self.handshake = self.handshake.saturating_add(part);
        self.peer(key, line)?.last_handshake = time(self.handshake);
        Ok(())
    }

    fn finish(self) -> Reported {
        let public_key =
            self.state.settings.private_key.as_ref().map(PrivateKey::public_key).or(self.own_public_key);
        Reported { state: self.state, public_key }
    }
}

/// Converts Unix time; 0 means none.
fn time(since_epoch: Duration) -> Option<SystemTime> {
    if since_epoch.is_zero() { None } else { SystemTime::UNIX_EPOCH.checked_add(since_epoch) }
}
