//! Serves the clients of a listening socket, a bounded number at a time. UAPI, the control socket and HTTP
//! share this code.
//!
//! Slow or silent clients do not keep a new client out: if all places are taken, one of them is disconnected
//! ([`Places`]). While no client may be asked for its place, some new ones wait. If more connect, one of the
//! source with the most places is turned away, so that the clients of others are seen behind them.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
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
/// How many accepted clients wait for a place.
const WAITING: usize = 32;

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
    let mut waiting: Vec<(S, Source)> = Vec::new();
    loop {
        let first = of_fewest(&places, &waiting);
        let is_full = waiting.len() > count.min(WAITING);
        let last = if is_full { of_most(&places, &waiting) } else { None };
        // As long as clients may be asked for their places, those that wait get them.
        let is_stuck = poll_fn(|_| if places.is_awaited() { Poll::Ready(()) } else { Poll::Pending });
        let accepted = tokio::select! {
            biased;
            (first, place) = take_for(&places, first) => {
                let (stream, source) = waiting.remove(first);
                let place = Arc::new(place);
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
                continue;
            }
            // After `take_for`, which finds that out.
            () = is_stuck, if last.is_some() => {
                if let Some(last) = last {
                    let (_, source) = waiting.remove(last);
                    if let Some(left_out) = disconnected.admit() {
                        tracing::warn!(left_out, "{full}; a client is turned away: {source}");
                    }
                    yield_now().await;
                }
                continue;
            }
            Some(ended) = clients.join_next() => {
                if let Err(error) = ended
                    && let Ok(panic) = error.try_into_panic()
                {
                    std::panic::resume_unwind(panic);
                }
                continue;
            }
            accepted = next(), if !is_full => accepted,
        };
        match accepted {
            Ok(client) => waiting.push(client),
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!("cannot accept a client: {error}");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Returns a place for the client with this index and source. Waits for ever if there is none.
async fn take_for(places: &Arc<Places>, client: Option<(usize, Source)>) -> (usize, Place) {
    match client {
        Some((index, source)) => (index, places.take(source).await),
        None => std::future::pending().await,
    }
}

/// What the source of a client has: places of its owner, its places, and clients that wait.
fn has<S>(places: &Places, waiting: &[(S, Source)], source: Source) -> ((usize, usize), usize) {
    (places.share(source), waiting.iter().filter(|(_, other)| *other == source).count())
}

/// Returns the client that waits for the next place, and its source.
fn of_fewest<S>(places: &Places, waiting: &[(S, Source)]) -> Option<(usize, Source)> {
    let clients = waiting.iter().map(|(_, source)| *source).enumerate();
    clients.min_by_key(|(_, source)| has(places, waiting, *source))
}

/// Returns the client that is turned away: the last one of the source that has the most. None of a source
/// that has no other client.
fn of_most<S>(places: &Places, waiting: &[(S, Source)]) -> Option<usize> {
    let clients = waiting.iter().enumerate().filter(|(_, (_, source))| source.may_be_turned_away());
    let clients = clients.map(|(index, (_, source))| (has(places, waiting, *source), index));
    let (((_, of_source), waits), last) = clients.max()?;
    (of_source + waits > 1).then_some(last)
}
