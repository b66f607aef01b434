//! Opens a connection to one of several addresses (RFC 8305).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::network::{Connection, Network};

/// How long a destination has to accept a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// A further address of a name is tried beside the first ones after this time (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Addresses of a name that are tried.
const MAX_TRIED: usize = 16;
/// Addresses that are tried at once: each takes a socket.
const MAX_RACED: usize = 4;
/// How long an address may be silent while others wait for its place. The first packet to a peer may have to
/// wait for a handshake, which is tried again after 5 s. All addresses have their turn within
/// [`CONNECT_TIMEOUT`].
const TURN: Duration = Duration::from_secs(6);

/// Addresses, each with the network that it is reached by.
type Routes = VecDeque<(SocketAddr, Arc<dyn Network>)>;

/// Opens a connection to the first of these addresses that accepts it, in both families by turns. At most 16
/// are tried.
///
/// # Errors
/// The first failure, if none accepts it; [`io::ErrorKind::TimedOut`] after [`CONNECT_TIMEOUT`].
pub async fn connect_first(routes: Vec<(SocketAddr, Arc<dyn Network>)>) -> io::Result<Box<dyn Connection>> {
    let mut routes = alternate(routes);
    routes.truncate(MAX_TRIED);
    timeout(CONNECT_TIMEOUT, race(routes)).await?
}

/// Alternates between both families, the family of the first address first.
fn alternate(routes: Vec<(SocketAddr, Arc<dyn Network>)>) -> Routes {
    let is_v6 = routes.first().is_some_and(|(address, _)| address.is_ipv6());
    let (first, second): (Routes, Routes) =
        routes.into_iter().partition(|(address, _)| address.is_ipv6() == is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut order = Routes::new();
    loop {
        match (first.next(), second.next()) {
            (None, None) => return order,
            pair => order.extend([pair.0, pair.1].into_iter().flatten()),
        }
    }
}

/// Opens connections one after the other until one is accepted: the next one as soon as one fails, or after
/// [`ATTEMPT_DELAY`] while fewer than [`MAX_RACED`] are tried.
async fn race(mut routes: Routes) -> io::Result<Box<dyn Connection>> {
    let mut attempts = JoinSet::new();
    let mut first_failure = None;
    loop {
        if attempts.len() < MAX_RACED
            && let Some((address, network)) = routes.pop_front()
        {
            let is_waited_for = routes.len() >= MAX_RACED;
            attempts.spawn(async move {
                let connected = network.connect(address);
                if is_waited_for { timeout(TURN, connected).await? } else { connected.await }
            });
        }
        let next = Instant::now() + ATTEMPT_DELAY;
        let may_begin = !routes.is_empty() && attempts.len() < MAX_RACED;
        tokio::select! {
            attempt = attempts.join_next() => match attempt {
                Some(Ok(Ok(connection))) => return Ok(connection),
                Some(Ok(Err(error))) => drop(first_failure.get_or_insert(error)),
                Some(Err(ended)) => return Err(io::Error::other(ended)),
                None => return Err(first_failure.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into())),
            },
            () = sleep_until(next), if may_begin => {}
        }
    }
}
