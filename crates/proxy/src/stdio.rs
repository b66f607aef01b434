//! Standard input and output as a connection into the tunnel, for ssh's ProxyCommand.

use std::fs::{File, OpenOptions};
use std::io;
use std::pin::pin;

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, Stdin, Stdout, WriteHalf, split,
    stdin, stdout,
};
use weft_network::Connection;

use crate::destination::Destination;
use crate::reach::{Reach, ReachError};
use crate::relay::BUFFER;

/// Standard input and output of this process.
#[derive(Debug)]
pub struct Stdio {
    input: Stdin,
    output: Stdout,
    /// What takes the place of standard output, so that its reader hears of the end while standard input is
    /// open. A confined thread cannot open it.
    nothing: File,
}

/// Why a connection of standard input and output did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The destination is not reached.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The destination has reset the connection, or does not answer any more.
    #[error("the connection to {0} has failed: {1}")]
    Failed(Destination, #[source] io::Error),
    /// Standard input cannot be read.
    #[error("cannot read standard input: {0}")]
    Input(#[source] io::Error),
    /// Standard output takes nothing more, as on a full disk.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

impl Stdio {
    /// Prepares them for [`connect_stdio`].
    ///
    /// # Errors
    /// Those of opening /dev/null.
    pub fn open() -> io::Result<Self> {
        let nothing = OpenOptions::new().write(true).open("/dev/null")?;
        Ok(Self { input: stdin(), output: stdout(), nothing })
    }
}

/// Connects standard input and output to a destination, until both directions have ended. The end of one is
/// passed on while the other one continues. Also ends when standard output has no reader any more.
///
/// # Errors
/// Those of [`StdioError`]: the destination sees a reset.
pub async fn connect_stdio(reach: &Reach, to: &Destination, stdio: Stdio) -> Result<(), StdioError> {
    let Stdio { mut input, mut output, nothing } = stdio;
    let remote = reach.connect(to).await?;
    let has_failed = remote.failed();
    let mut remote = Remote(Some(split(remote)));
    let Some((from, into)) = &mut remote.0 else { return Ok(()) };
    let failed = |error| StdioError::Failed(to.clone(), error);
    let result = {
        let mut sent = pin!(carry(&mut input, into, StdioError::Input, failed));
        let mut received = pin!(async {
            carry(from, &mut output, failed, StdioError::Output).await?;
            rustix::stdio::dup2_stdout(&nothing).map_err(|error| StdioError::Output(error.into()))
        });
        tokio::select! {
            biased;
            received = &mut received => match received {
                // Nothing is read any more that would tell of a failure.
                Ok(()) => tokio::select! {
                    biased;
                    sent = sent => sent,
                    () = has_failed => Err(failed(io::ErrorKind::ConnectionReset.into())),
                },
                error => error,
            },
            sent = &mut sent => match sent {
                Err(error @ StdioError::Input(_)) => Err(error),
                // A destination that takes nothing more may have said why.
                sent => received.await.and(sent),
            },
        }
    };
    if result.is_ok() {
        drop(remote.0.take());
    }
    match result {
        // Its reader wants no more.
        Err(StdioError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// The connection to the destination, until it has come to its end. Dropped before that, it is reset: the
/// destination must not take what it got for all that there was.
struct Remote(Option<(ReadHalf<Boxed>, WriteHalf<Boxed>)>);

type Boxed = Box<dyn Connection>;

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some((from, into)) = self.0.take() {
            from.unsplit(into).abort();
        }
    }
}

/// Carries bytes to the end of one direction, which is passed on.
async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    into: &mut (impl AsyncWrite + Unpin),
    unread: impl Fn(io::Error) -> StdioError,
    unwritten: impl Fn(io::Error) -> StdioError,
) -> Result<(), StdioError> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await.map_err(&unread)?;
        if count == 0 {
            return into.shutdown().await.map_err(&unwritten);
        }
        into.write_all(&buffer[..count]).await.map_err(&unwritten)?;
        // Standard output keeps it back, and says so late if it takes nothing.
        into.flush().await.map_err(&unwritten)?;
    }
}
