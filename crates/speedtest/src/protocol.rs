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

use crate::sample::{Counters, Sample};

/// The most bytes of a line: a sample has fewer than 2 KiB.
const MAX_LINE: u64 = 64 << 10;
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
    /// The responder cannot run a test now.
    #[error("the responder failed: {0}")]
    Failed(String),
}

impl Refusal {
    /// Returns it without control characters, which a terminal would obey.
    pub(crate) fn printable(mut self) -> Self {
        if let Self::Congestion { name: text, reason: _ } | Self::Failed(text) = &mut self {
            *text = text.escape_debug().take(300).collect();
        }
        if let Self::Congestion { reason, .. } = &mut self {
            *reason = reason.escape_debug().take(300).collect();
        }
        self
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
pub(crate) async fn read<T: DeserializeOwned>(
    stream: &mut (impl AsyncBufRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<T, LineError> {
    let room = MAX_LINE.saturating_sub(buffer.len() as u64);
    stream.take(room).read_until(b'\n', buffer).await?;
    if buffer.last() != Some(&b'\n') {
        let is_long = buffer.len() as u64 >= MAX_LINE;
        return Err(if is_long { LineError::Garbled("a long line".to_owned()) } else { LineError::Closed });
    }
    let line = serde_json::from_slice(buffer).map_err(|error| LineError::Garbled(error.to_string()));
    buffer.clear();
    line
}

/// What a responder told, line by line. The properties of any bytes need it, and nothing else.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct TestLines {
    pub samples: Vec<Sample>,
    pub refusals: Vec<Refusal>,
    pub counters: Option<Counters>,
}

impl TestLines {
    /// Reads up to the first line that is none.
    pub async fn read(mut bytes: &[u8]) -> Self {
        // Those of a client are read by the responder.
        let _ = read::<Hello>(&mut { bytes }, &mut Vec::new()).await;
        let (mut lines, mut buffer) = (Self::default(), Vec::new());
        while let Ok(reply) = read(&mut bytes, &mut buffer).await {
            match reply {
                Reply::Sample(sample) => lines.samples.push(*sample),
                Reply::Refused(refusal) => lines.refusals.push(refusal.printable()),
                Reply::End { counters } => lines.counters = counters,
                Reply::Accepted { .. } | Reply::Begin => {}
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
        let read = read::<Reply>(&mut &long[..], &mut buffer).await;
        assert!(matches!(read, Err(LineError::Garbled(_))) && buffer.len() <= 64 << 10);
    }
}
