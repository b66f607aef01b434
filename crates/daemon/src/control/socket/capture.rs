//! A capture over the control socket: the line that answers the request is followed by blocks of a pcapng
//! file, until the client closes its direction of the connection or the interface ends.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;
use weft_report::control_socket::line::Done;
use zeroize::Zeroizing;

use super::server::{error_line, ok, parse, write_all};
use super::{CaptureRequest, Manage, ManageError};
use crate::recording::Recording;

/// Time limit for a client to read the error line if a capture cannot begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves a client that requested a capture, until the end of its connection.
pub(super) async fn serve(stream: &UnixStream, line: Zeroizing<Vec<u8>>, manage: Arc<dyn Manage>) {
    // Blocks on the control thread and the packet thread.
    let begun = tokio::task::spawn_blocking(move || begin(&line, &*manage)).await;
    match begun {
        Ok(Ok(recording)) => {
            if let Err(error) = send(stream, recording).await {
                tracing::debug!(%error, "the client of the capture is gone");
            }
        }
        Ok(Err(error)) => {
            let _gone = timeout(PATIENCE, write_all(stream, &error_line(&error))).await;
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
async fn send(stream: &UnixStream, mut recording: Recording) -> io::Result<()> {
    let mut out = ok(&Done {}).map(|line| line.to_vec()).unwrap_or_default();
    recording.head(&mut out);
    let mut closed = pin!(until_closed(stream));
    let mut is_closed = false;
    loop {
        write_all(stream, &out).await?;
        out.clear();
        let goes_on = loop {
            tokio::select! {
                () = &mut closed, if !is_closed => {
                    is_closed = true;
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
    write_all(stream, &out).await
}

/// Waits until the client closes its direction, which is how it asks for the end.
async fn until_closed(stream: &UnixStream) {
    let mut bytes = [0; 64];
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut bytes) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}
