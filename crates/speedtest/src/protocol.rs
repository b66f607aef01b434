//! What the two ends tell each other: JSON objects, one a line.
//!
//! ```text
//! client                                   responder
//! {"test":{"direction":"up",…}}      →
//!                                    ←     {"accepted":{"token":"…"}}, or {"refused":{"busy":…}}
//! {"data":{"token":"…"}}             →     once on each further connection
//!                                    ←     "begin"      when all connections are there
//! bytes on the further connections, ←→     {"sample":{…}}, ten a second
//! or datagrams
//!                                    ←     {"end":{…}}
//! ```

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::sample::{Counters, Sample, Sent, is_text};
use crate::{MAX_SECONDS, MAX_STREAMS};

/// The most bytes of a line of the client.
const MAX_HELLO: usize = 1 << 10;
/// The most bytes of a line of the responder: a sample has fewer than 2 KiB, and more with many packet
/// threads.
const MAX_REPLY: usize = 16 << 10;
/// The most bytes of a token.
const MAX_TOKEN: usize = 64;
/// The most bytes of a name or a reason in a refusal.
const MAX_TEXT: usize = 512;
/// The most seconds that a refusal tells of: more than a test of any release takes.
const MAX_TOLD_SECONDS: u64 = 3600;
/// The most bytes of the name of a congestion control (`TCP_CA_NAME_MAX`, with its end).
const MAX_CONGESTION: usize = 15;
/// The highest rate of datagrams, in bits per second.
const MAX_RATE: u64 = 100_000_000_000;
/// The bytes of a datagram's number, with which it begins.
pub(crate) const NUMBER: usize = 8;
/// The most bytes of a datagram: those of UDP in IPv4.
const MAX_DATAGRAM: u16 = 65_507;
/// How long the other end may take for an answer, or for the connections of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The time after the last byte is sent until the counters of both daemons have seen it.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);

/// The direction of a test, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The client sends.
    Up,
    /// The responder sends.
    Down,
}

/// The first line of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hello {
    Test(Request),
    /// One of the connections of an accepted test.
    Data {
        token: String,
    },
}

/// The test that a client asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) milliseconds: u64,
    pub(crate) streams: u16,
    /// The congestion control of the sender; `None`: its default.
    pub(crate) congestion: Option<String>,
    /// Datagrams instead of connections.
    #[serde(default)]
    pub(crate) udp: Option<UdpRequest>,
}

impl Request {
    /// Checks every number and string of the request against its bound, at the client before it asks and at
    /// the responder before it does anything.
    ///
    /// # Errors
    /// The refusal that says which one is out of bounds.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let Self { direction: _, milliseconds, streams, congestion, udp } = self;
        if !(1..=MAX_SECONDS * 1000).contains(milliseconds) || !(1..=MAX_STREAMS).contains(streams) {
            return Err(Refusal::TooMuch { seconds: MAX_SECONDS, streams: MAX_STREAMS });
        }
        let out = |what: String| Err(Refusal::OutOfBounds(what));
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if let Some(name) = congestion
            && !((1..=MAX_CONGESTION).contains(&name.len()) && name.bytes().all(is_of_name))
        {
            return out(format!(
                "a congestion control has a name of at most {MAX_CONGESTION} letters and digits"
            ));
        }
        let Some(UdpRequest { bits_per_second, bytes, port }) = *udp else { return Ok(()) };
        if !(1..=MAX_RATE).contains(&bits_per_second) {
            return out(format!(
                "the rate of datagrams is at most {} Gbit/s, and not 0",
                MAX_RATE / 1_000_000_000
            ));
        }
        if !(NUMBER as u16..=MAX_DATAGRAM).contains(&bytes) {
            return out(format!("a datagram has {NUMBER} to {MAX_DATAGRAM} bytes"));
        }
        if port == 0 {
            return out("the port of the client cannot be 0".to_owned());
        }
        Ok(())
    }
}

/// The datagrams that a client asks for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct UdpRequest {
    /// The rate of payload.
    pub(crate) bits_per_second: u64,
    /// The bytes of a datagram.
    pub(crate) bytes: u16,
    /// The client's port. The responder has that of its connections.
    pub(crate) port: u16,
}

/// A line of the responder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Accepted {
        token: String,
    },
    Refused(Refusal),
    /// All connections are there: both ends begin.
    Begin,
    Sample(Box<Sample>),
    /// The last line of a test: the counters after the last bytes have arrived.
    End {
        counters: Option<Counters>,
    },
}

/// Why the responder refuses a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Another test runs.
    #[error("another speed test is running there; it ends within {seconds} s")]
    Busy {
        /// Seconds until it ends.
        seconds: u64,
    },
    /// No peer of the interface has the source address.
    #[error("the responder knows no peer with this address: allowed IPs there do not contain it")]
    NotAPeer,
    /// The request exceeds a limit.
    #[error("the responder allows at most {seconds} s and {streams} streams")]
    TooMuch {
        /// The longest test, in seconds.
        seconds: u64,
        /// The most connections.
        streams: u16,
    },
    /// The kernel does not offer this congestion control to the sender.
    #[error("the sender cannot use congestion control `{name}`: {reason}; {advice}", advice = CONGESTION_ADVICE)]
    Congestion {
        /// Its name.
        name: String,
        /// The kernel's reason.
        reason: String,
    },
    /// Another number or name of the request is out of bounds.
    #[error("the request is out of bounds: {0}")]
    OutOfBounds(String),
    /// The responder cannot run a test now.
    #[error("the responder failed: {0}")]
    Failed(String),
}

/// A line of one end: its most bytes, and the bounds of what it holds.
pub(crate) trait Line: DeserializeOwned {
    const MAX_BYTES: usize;

    /// Returns what is out of bounds. A [`Request`] is checked where it is answered.
    fn out_of_bounds(&self) -> Option<&'static str>;
}

impl Line for Hello {
    const MAX_BYTES: usize = MAX_HELLO;

    fn out_of_bounds(&self) -> Option<&'static str> {
        None
    }
}

const NO_REASON: &str = "a reason that is too long, or has control characters";

impl Line for Reply {
    const MAX_BYTES: usize = MAX_REPLY;

    fn out_of_bounds(&self) -> Option<&'static str> {
        match self {
            Self::Accepted { token } => (!is_text(token, MAX_TOKEN)).then_some("a token that is none"),
            Self::Refused(Refusal::Congestion { name, reason }) => {
                [name, reason].into_iter().any(|text| !is_text(text, MAX_TEXT)).then_some(NO_REASON)
            }
            Self::Refused(Refusal::OutOfBounds(reason) | Refusal::Failed(reason)) => {
                (!is_text(reason, MAX_TEXT)).then_some(NO_REASON)
            }
            Self::Sample(sample) => {
                let is_large = sample.counters.as_ref().is_some_and(Counters::is_large);
                is_large.then_some("a sample with too many counters")
            }
            Self::End { counters } => {
                counters.as_ref().is_some_and(Counters::is_large).then_some("too many counters")
            }
            Self::Refused(Refusal::Busy { seconds } | Refusal::TooMuch { seconds, .. }) => {
                (*seconds > MAX_TOLD_SECONDS).then_some("a time that no speed test takes")
            }
            Self::Refused(Refusal::NotAPeer) | Self::Begin => None,
        }
    }
}

/// What to do about a congestion control that the kernel refuses.
pub(crate) const CONGESTION_ADVICE: &str = "`sysctl net.ipv4.tcp_available_congestion_control` shows those of the \
    machine that sends, `net.ipv4.tcp_allowed_congestion_control` those that a responder may use";

/// Why a line cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("the other end closed the connection")]
    Closed,
    #[error("the other end sent something else than a speed test does: {0}")]
    Garbled(String),
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads a line. `buffer` keeps a part of it if the call is cancelled.
pub(crate) async fn read<T: Line>(
    stream: &mut (impl AsyncBufRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<T, LineError> {
    let garbled = |what: &str| LineError::Garbled(what.to_owned());
    let room = T::MAX_BYTES.saturating_sub(buffer.len());
    stream.take(room as u64).read_until(b'\n', buffer).await?;
    if buffer.last() != Some(&b'\n') {
        return Err(if buffer.len() >= T::MAX_BYTES { garbled("a long line") } else { LineError::Closed });
    }
    let line = serde_json::from_slice::<T>(buffer);
    buffer.clear();
    let line = line.map_err(|error| LineError::Garbled(error.to_string()))?;
    line.out_of_bounds().map_or(Ok(line), |what| Err(garbled(what)))
}

/// What each end makes of any bytes. Their properties need it, and nothing else.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct TestLines {
    /// What the client keeps.
    pub samples: Vec<Sample>,
    pub counters: Option<Counters>,
    /// The milliseconds and the connections that the responder agrees to, and the rate and bytes of
    /// datagrams.
    pub agreed: Option<(u64, u16)>,
    pub agreed_datagrams: Option<(u64, u16)>,
}

impl TestLines {
    /// Reads as both ends do.
    pub async fn read(mut bytes: &[u8]) -> Self {
        let (mut lines, mut buffer) = (Self::default(), Vec::new());
        if let Ok(Hello::Test(request)) = read(&mut { bytes }, &mut buffer).await
            && request.check().is_ok()
        {
            lines.agreed_datagrams = request.udp.map(|udp| (udp.bits_per_second, udp.bytes));
            lines.agreed = Some((request.milliseconds, request.streams));
        }
        buffer.clear();
        let most = Sent { bytes: u64::MAX, datagrams: u64::MAX };
        while let Ok(reply) = read(&mut bytes, &mut buffer).await {
            match reply {
                Reply::Sample(sample) => {
                    if !sample.keep(&mut lines.samples, most, Duration::MAX) {
                        break;
                    }
                }
                Reply::End { counters } => lines.counters = counters,
                Reply::Accepted { .. } | Reply::Begin | Reply::Refused(_) => {}
            }
        }
        lines
    }
}

pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    line: &impl Serialize,
) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    stream.write_all(&text).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_end_with_a_line_break_and_have_a_limit() {
        let mut buffer = Vec::new();
        let text = b"\"begin\"\n{\"data\":{\"token\":\"a\"}}\n\"begin\"";
        let mut stream = &text[..];
        assert!(matches!(read(&mut stream, &mut buffer).await, Ok(Reply::Begin)));
        assert!(matches!(read(&mut stream, &mut buffer).await, Ok(Hello::Data { token }) if token == "a"));
        assert!(matches!(read::<Reply>(&mut stream, &mut buffer).await, Err(LineError::Closed)));
        let long = vec![b' '; 1 << 20];
        buffer.clear();
        let reply = read::<Reply>(&mut &long[..], &mut buffer).await;
        assert!(matches!(reply, Err(LineError::Garbled(_))) && buffer.len() <= MAX_REPLY);
        buffer.clear();
        let hello = read::<Hello>(&mut &long[..], &mut buffer).await;
        assert!(matches!(hello, Err(LineError::Garbled(_))) && buffer.len() <= MAX_HELLO);
    }

    #[test]
    fn every_number_and_name_of_a_request_has_a_bound() {
        let udp = UdpRequest { bits_per_second: MAX_RATE, bytes: MAX_DATAGRAM, port: u16::MAX };
        let largest = Request {
            direction: Direction::Down,
            milliseconds: 60_000,
            streams: 32,
            congestion: Some("a_name-of_15-by".to_owned()),
            udp: Some(udp),
        };
        let least = Request {
            direction: Direction::Up,
            milliseconds: 1,
            streams: 1,
            congestion: Some("a".to_owned()),
            udp: Some(UdpRequest { bits_per_second: 1, bytes: 8, port: 1 }),
        };
        assert_eq!([largest.check(), least.check()], [Ok(()), Ok(())]);
        let with = |udp| Request { udp: Some(udp), ..largest.clone() };
        let named = |name: &str| Request { congestion: Some(name.to_owned()), ..largest.clone() };
        let refused = [
            Request { milliseconds: 0, ..largest.clone() },
            Request { milliseconds: 60_001, ..largest.clone() },
            Request { milliseconds: u64::MAX, ..largest.clone() },
            Request { streams: 0, ..largest.clone() },
            Request { streams: 33, ..largest.clone() },
            named(""),
            named("a_name-of_16-byt"),
            named("\x1b]52;c;aGk=\x07"),
            with(UdpRequest { bits_per_second: 0, ..udp }),
            with(UdpRequest { bits_per_second: MAX_RATE + 1, ..udp }),
            with(UdpRequest { bits_per_second: u64::MAX, ..udp }),
            with(UdpRequest { bytes: 0, ..udp }),
            with(UdpRequest { bytes: 7, ..udp }),
            with(UdpRequest { bytes: u16::MAX, ..udp }),
            with(UdpRequest { port: 0, ..udp }),
        ];
        for request in refused {
            assert!(request.check().is_err(), "{request:?}");
        }
    }

    /// What a sample takes in memory is bounded by what a daemon has, not by what fits a line.
    #[tokio::test]
    async fn a_reply_holds_no_more_than_a_daemon_tells() {
        let counters = |busy: usize, reasons: usize, bytes: usize| {
            let busy = vec!["0"; busy].join(",");
            let reasons: Vec<_> = (0..reasons).map(|number| format!("\"{number:0>bytes$}\":0")).collect();
            format!("{{\"busy_us\":[{busy}],\"drops\":{{{}}}}}", reasons.join(","))
        };
        let sample = |counters: String| format!("{{\"sample\":{{\"counters\":{counters}}}}}\n");
        let end = |counters: String| format!("{{\"end\":{{\"counters\":{counters}}}}}\n");
        let busy = |seconds: u64| format!("{{\"refused\":{{\"busy\":{{\"seconds\":{seconds}}}}}}}\n");
        let too_much = |seconds: u64| {
            format!("{{\"refused\":{{\"too_much\":{{\"seconds\":{seconds},\"streams\":1}}}}}}\n")
        };
        let ok = [
            sample(counters(256, 256, 8)),
            sample(counters(0, 10, 64)),
            end(counters(64, 100, 20)),
            busy(3600),
            too_much(3600),
        ];
        let refused = [
            sample(counters(257, 0, 0)),
            sample(counters(0, 257, 8)),
            sample(counters(0, 1, 65)),
            end(counters(257, 0, 0)),
            format!("{{\"accepted\":{{\"token\":\"{}\"}}}}\n", "a".repeat(65)),
            format!("{{\"refused\":{{\"failed\":\"{}\"}}}}\n", "a".repeat(513)),
            "{\"refused\":{\"failed\":\"a\\nerror: b\"}}\n".to_owned(),
            busy(3601),
            busy(u64::MAX),
            too_much(3601),
            "{\"refused\":{\"congestion\":{\"name\":\"a\\u001b\",\"reason\":\"\"}}}\n".to_owned(),
            "{\"end\":{\"counters\":{\"busy_us\":[],\"drops\":{\"a\\nb\":0}}}}\n".to_owned(),
            format!(
                "{{\"refused\":{{\"congestion\":{{\"name\":\"\",\"reason\":\"{}\"}}}}}}\n",
                "a".repeat(513)
            ),
        ];
        for (lines, is_ok) in [(&ok[..], true), (&refused, false)] {
            for line in lines {
                let reply = read::<Reply>(&mut line.as_bytes(), &mut Vec::new()).await;
                assert_eq!(reply.is_ok(), is_ok, "{reply:?}: {line}");
            }
        }
    }
}
