//! A capture over the control socket: the line that answers the request is followed by blocks of a pcapng
//! file, until the client sends another byte or closes its direction of the connection, or the interface
//! ends.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use weft_ipc::Stream;
use weft_report::control_socket::line::Done;
use zeroize::Zeroizing;

use super::lines::{error_line, ok, parse};
use super::{CaptureRequest, Manage, ManageError};
use crate::recording::Recording;

/// Time limit for a client to read the error line if a capture cannot begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves a client that requested a capture, until the end of its connection. Unless `goes_on`, the client
/// has asked for the end already.
pub(super) async fn serve(
    mut stream: impl Stream,
    line: Zeroizing<Vec<u8>>,
    goes_on: bool,
    manage: Arc<dyn Manage>,
) {
    // Blocks on the control thread and the packet thread.
    let begun = tokio::task::spawn_blocking(move || begin(&line, &*manage)).await;
    match begun {
        Ok(Ok(mut recording)) => {
            if !goes_on {
                recording.stop();
            }
            if let Err(error) = send(stream, recording).await {
                tracing::debug!(%error, "the client of the capture is gone");
            }
        }
        Ok(Err(error)) => {
            let _gone = timeout(PATIENCE, stream.write_all(&error_line(&error))).await;
        }
        Err(_) => {}
    }
}

fn begin(line: &[u8], manage: &dyn Manage) -> Result<Recording, ManageError> {
    let request = parse(line)?;
    let (peer, layer, snap_bytes) = (request.peer, request.stage, request.snap_bytes);
    manage.capture(&CaptureRequest { peer, layer, snap_bytes })
}

/// Sends the capture. A client that reads slowly has no time limit, because it blocks nothing.
async fn send(stream: impl Stream, mut recording: Recording) -> io::Result<()> {
    let mut out = ok(&Done {}).map(|line| line.to_vec()).unwrap_or_default();
    recording.head(&mut out);
    let (read, mut write) = tokio::io::split(stream);
    let mut ended = pin!(until_asked_to_end(read));
    let mut has_ended = false;
    loop {
        write.write_all(&out).await?;
        out.clear();
        let goes_on = loop {
            tokio::select! {
                () = &mut ended, if !has_ended => {
                    has_ended = true;
                    recording.stop();
                }
                goes_on = recording.next(&mut out) => break goes_on,
            }
        };
        if !goes_on {
            break;
        }
    }
    recording.tail(&mut out);
    write.write_all(&out).await
}

/// Waits until the client sends a byte or closes its direction, which is how it asks for the end.
async fn until_asked_to_end(mut stream: impl AsyncRead + Unpin) {
    let _ = stream.read(&mut [0]).await;
}
