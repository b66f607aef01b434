//! One connection: reads requests and answers them in order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use weft_ipc::{Place, Stream};
use zeroize::Zeroizing;

use super::Limits;
use super::calls::{Reads, call};
use super::platform::scope_of;
use crate::lines::{Line, LineBuffer};
use crate::{Answer, Control, Errno, Problem, Request, RequestParser, Step, write_errno};

/// The bytes of an answer that are collected before they are written.
const CHUNK: usize = 64 * 1024;
/// The maximum bytes that are read and discarded at the end of a connection, so that the client can still
/// read the answer.
const LINGER: usize = 1 << 20;

/// Serves one connection.
pub(super) struct Client {
    pub(super) control: Arc<dyn Control>,
    pub(super) place: Arc<Place>,
    /// Held while a large request is read: one at a time.
    pub(super) large: Arc<Semaphore>,
    pub(super) reads: Arc<Reads>,
    pub(super) limits: Limits,
}

/// Why a connection ends.
enum End {
    /// The client closed the connection, was too slow, or speaks another protocol.
    Close,
    /// The server ends the connection, and the client may not have read the answer yet.
    Linger,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Close
    }
}

/// A request that is being read.
struct Reading {
    lines: LineBuffer,
    parser: RequestParser,
    /// The time by which the request has to be complete.
    deadline: Option<Instant>,
    large: Option<OwnedSemaphorePermit>,
}

impl Client {
    pub(super) async fn serve(self, mut stream: impl Stream) {
        match self.converse(&mut stream).await {
            End::Close => {}
            End::Linger => self.linger(&mut stream).await,
        }
    }

    async fn converse(&self, stream: &mut impl Stream) -> End {
        let mut reading = Reading {
            lines: LineBuffer::new(),
            parser: RequestParser::new(scope_of),
            deadline: None,
            large: None,
        };
        // Commands that come together connect before the first of them sends.
        self.place.expect_progress();
        loop {
            // Even if the next request has arrived already: a client that sends requests without a pause
            // keeps no other client out.
            self.place.expect_request();
            let request = self.next_request(stream, &mut reading).await;
            self.place.begin_serving();
            let outcome = match request {
                Ok(Ok(request)) => self.answer(request, stream).await,
                Ok(Err(problem)) => self.refuse(&problem, stream).await,
                Err(end) => Err(end),
            };
            reading.large = None;
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    async fn next_request(
        &self,
        stream: &mut impl Stream,
        reading: &mut Reading,
    ) -> Result<Result<Request, Problem>, End> {
        loop {
            let step = match reading.lines.next_line() {
                Line::Whole(line) => reading.parser.line(line),
                Line::TooLong => reading.parser.line_too_long(),
                Line::Unfinished => {
                    if self.read_more(stream, reading).await? == 0 {
                        return reading.parser.end().map_or(Err(End::Close), |problem| Ok(Err(problem)));
                    }
                    continue;
                }
            };
            match step {
                Step::More => {}
                Step::Complete(request) => return Ok(Ok(request)),
                Step::Rejected(problem) => return Ok(Err(problem)),
                Step::Foreign => {
                    tracing::debug!("a UAPI client sent what is no request");
                    return Err(End::Close);
                }
            }
        }
    }

    /// Reads once. Returns the number of bytes; 0 at the end of the connection.
    async fn read_more(&self, stream: &mut impl Stream, reading: &mut Reading) -> Result<usize, End> {
        let read = if reading.parser.is_idle() && reading.lines.is_empty() {
            // Without a deadline: a silent client keeps its place until another client needs it.
            reading.deadline = None;
            let read = stream.read(reading.lines.spare_mut()).await?;
            // Once per request: further bytes do not extend the time.
            self.place.expect_progress();
            read
        } else {
            if reading.large.is_none() && reading.parser.request_bytes() > self.limits.large {
                reading.large = Arc::clone(&self.large).acquire_owned().await.ok();
                reading.deadline = None;
                // Only one large request is read at a time, and it may take longer than the grace period.
                self.place.begin_serving();
            }
            let now = Instant::now();
            let deadline = *reading.deadline.get_or_insert(now + self.limits.request);
            let deadline = deadline.min(now + self.limits.read);
            match timeout_at(deadline, stream.read(reading.lines.spare_mut())).await {
                Ok(read) => read?,
                Err(_) => {
                    tracing::debug!("a UAPI client was too slow to send its request");
                    return Err(End::Close);
                }
            }
        };
        reading.lines.commit(read);
        // Other clients may have waited while the lines of a large request were parsed.
        tokio::task::yield_now().await;
        Ok(read)
    }

    async fn answer(&self, request: Request, stream: &mut impl Stream) -> Result<(), End> {
        let outcome = match request {
            Request::Get => match self.reads.get(&self.control).await {
                Ok(state) => return self.write_state(Answer::new(state), stream).await,
                Err(error) => Err(error),
            },
            Request::Set(change) => call(&self.control, |control| control.set(change)).await,
        };
        let errno = match outcome {
            Ok(()) => Errno::Success,
            Err(error) => {
                tracing::error!("a UAPI request failed: {error}");
                Errno::from(&error)
            }
        };
        self.write_outcome(errno, stream).await
    }

    async fn refuse(&self, problem: &Problem, stream: &mut impl Stream) -> Result<(), End> {
        tracing::error!("a UAPI request is refused: {problem}");
        self.write_outcome(problem.into(), stream).await?;
        // It is not known where the next request begins.
        if *problem == Problem::Trailing { Err(End::Linger) } else { Ok(()) }
    }

    async fn write_outcome(&self, errno: Errno, stream: &mut impl Stream) -> Result<(), End> {
        let mut text = Vec::new();
        write_errno(errno, &mut text)?;
        self.write(&text, stream).await
    }

    async fn write_state(&self, mut answer: Answer, stream: &mut impl Stream) -> Result<(), End> {
        // Never exceeds its capacity: a buffer that grows leaves copies of keys behind.
        let mut chunk = Zeroizing::new(Vec::with_capacity(CHUNK + Answer::MAX_PIECE));
        while answer.write_piece(&mut *chunk)? {
            if chunk.len() >= CHUNK {
                self.write(&chunk, stream).await?;
                chunk.clear();
                tokio::task::yield_now().await;
            }
        }
        self.write(&chunk, stream).await
    }

    async fn write(&self, text: &[u8], stream: &mut impl Stream) -> Result<(), End> {
        self.place.expect_progress();
        match timeout(self.limits.write, stream.write_all(text)).await {
            Ok(written) => Ok(written?),
            Err(_) => {
                tracing::debug!("a UAPI client was too slow to read its answer");
                Err(End::Close)
            }
        }
    }

    /// Discards unread bytes before the socket is closed. Closing a socket with unread bytes resets the
    /// connection, and the client loses the answer.
    async fn linger(&self, stream: &mut impl Stream) {
        let drain = async {
            let _ = stream.shutdown().await;
            let (mut left, mut waste) = (LINGER, Zeroizing::new([0; 4096]));
            while let Ok(read @ 1..) = stream.read(&mut waste[..]).await {
                left = left.saturating_sub(read);
                if left == 0 {
                    break;
                }
            }
        };
        let _ = timeout(self.limits.read.min(Duration::from_secs(1)), drain).await;
    }
}
