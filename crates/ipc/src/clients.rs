//! Serves the clients of a listening socket, a bounded number at a time. UAPI, the control socket and HTTP
//! share this code.
//!
//! Slow or silent clients do not keep a new client out: if all places are taken, one of them is disconnected
//! ([`Places`]).

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use crate::Refusals;

mod places;
mod source;

pub use places::{Place, Places};
pub use source::Source;

/// The server's end of a connection: a Unix socket, a named pipe, or TCP.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The pause after a failed accept, such as when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves each client that `next` accepts, at most `count` at once. Never returns: drop it to end.
///
/// `serve` reports to the [`Place`] whether the server waits for the client or serves its request. A client
/// that is asked for its place is disconnected; the log says that of the socket with this `name`.
pub async fn serve_each<S, F>(
    name: &str,
    count: usize,
    mut next: impl AsyncFnMut() -> io::Result<(S, Source)>,
    serve: impl Fn(S, Arc<Place>) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Places::new(count);
    let mut clients = JoinSet::new();
    let full: Arc<str> = format!("{name}: all {count} places are taken").into();
    let slow: Arc<str> = format!("{name}: an answer takes long").into();
    let disconnected = Arc::<Refusals>::default();
    let mut is_reported = false;
    loop {
        let accepted = tokio::select! {
            accepted = next() => accepted,
            Some(ended) = clients.join_next() => {
                if let Err(error) = ended
                    && let Ok(panic) = error.try_into_panic()
                {
                    std::panic::resume_unwind(panic);
                }
                continue;
            }
        };
        match accepted {
            Ok((stream, source)) => {
                let place = Arc::new(places.take(source).await);
                let client = serve(stream, Arc::clone(&place));
                let (full, slow, disconnected) =
                    (Arc::clone(&full), Arc::clone(&slow), Arc::clone(&disconnected));
                clients.spawn(async move {
                    tokio::select! {
                        biased;
                        () = client => {}
                        () = place.wanted() => {
                            if let Some(left_out) = disconnected.admit() {
                                let why = if place.is_asked() { full } else { slow };
                                tracing::warn!(left_out, "{why}; a client gives way to another one: {source}");
                            }
                        }
                    }
                });
                // Lets the client read a request that is already there, before the next client may need the
                // place.
                yield_now().await;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!("cannot accept a client: {error}");
                }
                sleep(PAUSE).await;
            }
        }
    }
}
