//! Forwards of UDP: each source of datagrams gets a socket on the other side, through which its replies come
//! back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep};
use weft_ipc::Refusals;
use weft_network::{Datagrams, Network, datagram};

use crate::budget::{Account, Charge};
use crate::destination::Destination;
use crate::mapping::Sources;
use crate::reach::{Reach, ReachError};
use crate::replies::{OVERHEAD, Replies};

/// Datagrams of a source that wait until its mapping is ready, if the budget of the proxy has room for them.
const WAITING: usize = 8;
const EXPIRY_INTERVAL: Duration = Duration::from_secs(15);
/// A socket that fails again and again does not keep the thread busy.
const PAUSE: Duration = Duration::from_millis(10);

/// Where a forward of UDP leads.
pub(crate) enum Target {
    /// To a destination in the tunnel.
    Remote(Reach, Destination),
    /// To an address of the host.
    Host(Arc<dyn Network>, SocketAddr),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(_, to) => to.fmt(f),
            Self::Host(_, to) => to.fmt(f),
        }
    }
}

impl Target {
    /// Makes a socket for one source, and returns it with the address to send to.
    async fn open(&self) -> Result<(Arc<dyn Datagrams>, SocketAddr), ReachError> {
        let (to, network) = match self {
            Self::Remote(reach, to) => {
                let routes = reach.routes(to).await?;
                routes
                    .into_iter()
                    .next()
                    .ok_or_else(|| ReachError::Connect(to.clone(), io::ErrorKind::AddrNotAvailable.into()))?
            }
            Self::Host(network, to) => (*to, Arc::clone(network)),
        };
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = network.udp((any, 0).into());
        Ok((socket.map_err(|error| ReachError::Connect(to.into(), error))?, to))
    }
}

/// The mappings of one forward.
struct Mappings {
    /// When each source was last used, in either direction.
    used: Mutex<Sources>,
    replies: Replies,
    target: Arc<Target>,
    refusals: Refusals,
}

/// The mapping of one source.
#[derive(Default)]
struct Mapping(Mutex<Phase>);

enum Phase {
    /// The socket is being made; these datagrams wait for it.
    Opening(Vec<(Vec<u8>, Charge)>),
    Ready(Arc<dyn Datagrams>, SocketAddr),
}

impl Default for Phase {
    fn default() -> Self {
        Self::Opening(Vec::new())
    }
}

impl Mapping {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mappings {
    fn used(&self) -> MutexGuard<'_, Sources> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forwards the datagrams that arrive at a socket. `sources` has none yet. Datagrams that wait are charged to
/// one account, and the socket of each source to the other one. Never returns: drop it to end.
pub(crate) async fn serve(
    listening: Arc<dyn Datagrams>,
    sources: Sources,
    target: Arc<Target>,
    waiting: Arc<Account>,
    sockets: Arc<Account>,
) -> Infallible {
    let mappings = Arc::new(Mappings {
        used: Mutex::new(sources),
        replies: Replies::new(Arc::clone(&listening), Arc::clone(&waiting)),
        target,
        refusals: Refusals::default(),
    });
    let mut open: HashMap<SocketAddr, Open> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut expiry = interval(EXPIRY_INTERVAL);
    expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            received = datagram::receive(&*listening, 0) => {
                let (datagram, from) = match received {
                    Ok(received) => received,
                    Err(error) => {
                        pause(&error).await;
                        continue;
                    }
                };
                let is_new = !open.contains_key(&from);
                if is_new {
                    if !mappings.used().admit(from) {
                        let reason = format!("{} has too many new ones", from.ip());
                        mappings.refusals.report("a source of datagrams", &reason);
                        continue;
                    }
                    let charge = make_room(&sockets, &mappings, &mut open);
                    let mapping = Arc::<Mapping>::default();
                    let task = tasks.spawn(carry(Arc::clone(&mappings), Arc::clone(&mapping), from));
                    open.insert(from, Open { mapping, task, _charge: charge });
                }
                if let Some(source) = mappings.used().insert(from) {
                    close(&mut open, source);
                }
                let Some(Open { mapping, .. }) = open.get(&from) else { continue };
                send(mapping, datagram, &waiting).await;
                if is_new {
                    // Tasks of new sources run as fast as these come.
                    yield_now().await;
                }
            }
            Some(ended) = tasks.join_next_with_id() => {
                // A mapping that could not be opened is tried again with the next datagram.
                if let Ok((task, source)) = ended
                    && open.get(&source).is_some_and(|open| open.task.id() == task)
                {
                    mappings.used().remove(source);
                    open.remove(&source);
                }
            }
            _ = expiry.tick() => mappings.used().expire(|source| close(&mut open, source)),
        }
    }
}

/// The mapping of a source, with its task.
struct Open {
    mapping: Arc<Mapping>,
    task: AbortHandle,
    /// For its socket.
    _charge: Option<Charge>,
}

fn close(open: &mut HashMap<SocketAddr, Open>, source: SocketAddr) {
    if let Some(ended) = open.remove(&source) {
        // Its socket is closed before the one of a later task is opened.
        ended.task.abort();
    }
}

/// Takes a socket of the account for a new source. Other sources give way if there is none left. A forward
/// may always have one source.
fn make_room(
    sockets: &Arc<Account>,
    mappings: &Mappings,
    open: &mut HashMap<SocketAddr, Open>,
) -> Option<Charge> {
    loop {
        if let Some(charge) = sockets.charge(1) {
            return Some(charge);
        }
        let source = mappings.used().give_way()?;
        tracing::debug!("{source} gives way to another source of datagrams");
        close(open, source);
    }
}

/// Sends a datagram of a source, or lets it wait for its socket.
async fn send(mapping: &Mapping, datagram: Vec<u8>, account: &Arc<Account>) {
    let (socket, to) = match &mut *mapping.phase() {
        Phase::Opening(waiting) => {
            if waiting.len() < WAITING
                && let Some(charge) = account.charge(datagram.len() + OVERHEAD)
            {
                waiting.push((datagram, charge));
            }
            return;
        }
        Phase::Ready(socket, to) => (Arc::clone(socket), *to),
    };
    if let Err(error) = datagram::send(&*socket, &datagram, to).await {
        tracing::debug!("cannot send a datagram to {to}: {error}");
    }
}

/// Opens the socket of a source and passes on the replies. Returns the source if it cannot be opened.
async fn carry(mappings: Arc<Mappings>, mapping: Arc<Mapping>, source: SocketAddr) -> SocketAddr {
    let (socket, to) = match mappings.target.open().await {
        Ok(opened) => opened,
        Err(error) => {
            mappings.refusals.report("a source of datagrams", &format!("{}: {error}", mappings.target));
            return source;
        }
    };
    let ready = Phase::Ready(Arc::clone(&socket), to);
    let opening = std::mem::replace(&mut *mapping.phase(), ready);
    if let Phase::Opening(waiting) = opening {
        for (datagram, _charge) in waiting {
            let _ = datagram::send(&*socket, &datagram, to).await;
        }
    }
    loop {
        match datagram::receive(&*socket, 0).await {
            Ok((datagram, from)) if from == to => {
                if !mappings.used().refresh(source) {
                    continue;
                }
                if let Err(error) = mappings.replies.send(&datagram, 0, source).await {
                    tracing::debug!("cannot send a datagram to {source}: {error}");
                }
            }
            Ok(_) => {}
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::debug!("cannot receive a datagram: {error}");
    sleep(PAUSE).await;
}

#[cfg(test)]
#[path = "udp_forward/tests.rs"]
pub(crate) mod tests;
