//! UDP ASSOCIATE: the datagrams of one client, to and from any destination (RFC 1928, section 7).

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};
use weft_ipc::Place;
use weft_network::{Connection, Datagrams, Network, datagram};

use super::message::{DATAGRAM_HEADER, Reply, parse_datagram, prepend_header};
use crate::budget::{Account, Charge};
use crate::destination::{Destination, Host};
use crate::mapping::Peers;
use crate::owner::{self, Owner, Senders};
use crate::proxy::Proxy;
use crate::replies::{OVERHEAD, Replies};

/// Datagrams whose names are being looked up; further ones to names are dropped meanwhile.
const LOOK_UPS: usize = 16;
/// How often mappings are checked for their end.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(15);
/// A socket that fails again and again does not keep the thread busy.
const PAUSE: Duration = Duration::from_millis(10);

/// The end of an association on the host, which the client sends to.
struct Inside {
    replies: Replies,
    /// Is told what moves.
    place: Arc<Place>,
    /// The address of the client. Its port is that of its connection here.
    client: SocketAddr,
    /// The user that it is on this machine, if it is.
    user: Option<u32>,
    /// The port that it sends from, from its first datagram.
    port: OnceLock<u16>,
    /// The port that it has announced.
    announced: Option<u16>,
    senders: Arc<Senders>,
    /// When the socket on that port was seen to be the user's.
    checked: Mutex<Instant>,
    /// Ports of other users, for a while: their datagrams are not looked at again.
    of_others: Mutex<HashSet<u16>>,
}

/// A socket that the datagrams leave by.
struct Outside {
    socket: Arc<dyn Datagrams>,
    network: Arc<dyn Network>,
    is_ipv6: bool,
    peers: Mutex<Peers>,
    /// `None`: the association has it.
    _charge: Option<Charge>,
}

impl Outside {
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A destination with its address.
type Route = (SocketAddr, Arc<dyn Network>);
/// A datagram that waited for its name, where its payload begins, and what it took of the budget.
type LookedUp = (Option<Route>, Vec<u8>, usize, Charge);

/// Relays the datagrams of a client for as long as it keeps its connection. `host` and `port` are where it
/// will send from, if it knows.
pub(super) async fn serve(
    mut client: Box<dyn Connection>,
    place: &Arc<Place>,
    proxy: &Proxy,
    host: &Host,
    port: u16,
) -> io::Result<()> {
    let (Some(local), Some(peer)) = (client.local_addr(), client.peer_addr()) else {
        tracing::debug!("a client of a Unix socket asks for UDP, which needs an address");
        client.write_all(&Reply::CommandNotSupported.with(None)).await?;
        return client.shutdown().await;
    };
    let Some(charge) = proxy.associations.charge(1) else {
        let reason = "as many have it as the limit for descriptors allows";
        proxy.refusals.report("a SOCKS5 client that asks for UDP", &reason);
        client.write_all(&Reply::GeneralFailure.with(None)).await?;
        return client.shutdown().await;
    };
    let socket = match proxy.host.udp(with_port(local, 0)) {
        Ok(socket) => socket,
        Err(error) => {
            proxy.refusals.report("a SOCKS5 client that asks for UDP", &error);
            client.write_all(&Reply::GeneralFailure.with(None)).await?;
            return client.shutdown().await;
        }
    };
    // An address other than that of the connection would let the client send in the name of another one.
    let is_known = port != 0 && (*host == Host::Address(peer.ip().to_canonical()) || is_unspecified(host));
    let user = owner::of_connection(peer, local);
    if user.is_none() && peer.ip().to_canonical().is_loopback() && proxy.users.is_some() && !is_known {
        let reason = "the users of this machine's sockets cannot be read, and it announces no port";
        proxy.refusals.report("a SOCKS5 client that asks for UDP", &reason);
        client.write_all(&Reply::NotAllowed.with(None)).await?;
        return client.shutdown().await;
    }
    client.write_all(&Reply::Succeeded.with(socket.local_addr().ok())).await?;
    place.hold(false);
    let charged = proxy.budget.account();
    let inside = Inside {
        place: Arc::clone(place),
        replies: Replies::new(socket, Arc::clone(&charged)),
        client: peer,
        user,
        port: OnceLock::new(),
        senders: Arc::clone(&proxy.senders),
        checked: Mutex::new(Instant::now()),
        announced: is_known.then_some(port),
        of_others: Mutex::default(),
    };
    Association {
        proxy,
        inside: Arc::new(inside),
        outside: Vec::new(),
        replies: JoinSet::new(),
        charged,
        _first: charge,
    }
    .run(client)
    .await
}

/// Returns the address with another port. A link-local one keeps its zone, without which it means nothing.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

fn is_unspecified(host: &Host) -> bool {
    matches!(host, Host::Address(address) if address.is_unspecified())
}

struct Association<'a> {
    proxy: &'a Proxy,
    inside: Arc<Inside>,
    outside: Vec<(Arc<Outside>, AbortHandle)>,
    replies: JoinSet<()>,
    /// The datagrams that wait for a name or a socket, and the addresses that were sent to.
    charged: Arc<Account>,
    /// For the first socket that datagrams leave by.
    _first: Charge,
}

impl Association<'_> {
    /// Runs until the client ends its connection; what it sends there means nothing.
    async fn run(mut self, client: Box<dyn Connection>) -> io::Result<()> {
        let ended = client.ended();
        tokio::select! {
            never = self.relay() => match never {},
            () = ended => Ok(()),
        }
    }

    async fn relay(&mut self) -> Infallible {
        let mut expiry = interval(EXPIRY_INTERVAL);
        expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look_ups: JoinSet<LookedUp> = JoinSet::new();
        let inside = Arc::clone(&self.inside);
        loop {
            tokio::select! {
                received = datagram::receive(&*inside.replies.socket, 0) => match received {
                    Ok((datagram, from)) if inside.is_from_client(from) => {
                        inside.place.moved();
                        if let Some(charge) = self.charged.charge(datagram.len() + OVERHEAD) {
                            self.dispatch(datagram, charge, &mut look_ups).await;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => pause(&error).await,
                },
                Some(looked_up) = look_ups.join_next() => {
                    if let Ok((Some(route), datagram, payload, _charge)) = looked_up {
                        self.send(route, &datagram[payload..]).await;
                    }
                }
                _ = expiry.tick() => {
                    inside.of_others().clear();
                    self.outside.retain(|(outside, replies)| {
                        let has_ended = outside.peers().expire();
                        if has_ended {
                            replies.abort();
                        }
                        !has_ended
                    });
                }
                Some(_) = self.replies.join_next() => {}
            }
        }
    }

    /// Sends a datagram of the client to where its header says.
    async fn dispatch(&mut self, datagram: Vec<u8>, charge: Charge, look_ups: &mut JoinSet<LookedUp>) {
        let Some((host, port, payload)) = parse_datagram(&datagram) else { return };
        match host {
            Host::Address(address) => match self.proxy.reach.network_for(address) {
                Ok(network) => {
                    let route = (SocketAddr::new(address, port), Arc::clone(network));
                    self.send(route, &datagram[payload..]).await;
                }
                Err(error) => tracing::debug!("a datagram is dropped: {error}"),
            },
            Host::Name(_) if look_ups.len() < LOOK_UPS => {
                let reach = self.proxy.reach.clone();
                look_ups.spawn(async move {
                    let routes = reach.routes(&Destination { host, port }).await;
                    let routes =
                        routes.inspect_err(|error| tracing::debug!("a datagram is dropped: {error}"));
                    (routes.ok().and_then(|routes| routes.into_iter().next()), datagram, payload, charge)
                });
            }
            Host::Name(_) => {}
        }
    }

    async fn send(&mut self, (to, network): Route, payload: &[u8]) {
        let sent = match self.outside(to, network) {
            Ok(outside) => {
                outside.peers().insert(to, &self.charged);
                datagram::send(&*outside.socket, payload, to).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!("cannot send a datagram to {to}: {error}");
        }
    }

    /// Returns the socket for a destination, one for each network and family, so that the client has the same
    /// address for every destination (endpoint-independent mapping, RFC 4787, section 4.1).
    fn outside(&mut self, to: SocketAddr, network: Arc<dyn Network>) -> io::Result<Arc<Outside>> {
        let is_for =
            |outside: &Outside| Arc::ptr_eq(&outside.network, &network) && outside.is_ipv6 == to.is_ipv6();
        if let Some((outside, _)) = self.outside.iter().find(|(outside, _)| is_for(outside)) {
            return Ok(Arc::clone(outside));
        }
        let charge = if self.outside.is_empty() {
            None
        } else {
            let charge = self.proxy.associations.charge(1);
            Some(charge.ok_or_else(|| io::Error::other("associations have all their sockets"))?)
        };
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = network.udp((any, 0).into())?;
        let outside =
            Outside { socket, network, is_ipv6: to.is_ipv6(), peers: Mutex::default(), _charge: charge };
        let outside = Arc::new(outside);
        let replies = self.replies.spawn(return_replies(Arc::clone(&outside), Arc::clone(&self.inside)));
        self.outside.push((Arc::clone(&outside), replies));
        Ok(outside)
    }
}

impl Inside {
    /// Reports whether a datagram comes from the client of the association; its first one settles its port.
    /// On this machine it has to come from a socket of the same user: others have the same address.
    fn is_from_client(&self, from: SocketAddr) -> bool {
        if with_port(from, self.client.port()) != self.client {
            return false;
        }
        if let Some(port) = self.port.get() {
            return *port == from.port() && self.is_still_of_user(from);
        }
        let is_announced = self.announced.is_none_or(|port| port == from.port());
        is_announced && self.is_of_user(from) && self.port.set(from.port()).is_ok()
    }

    fn is_of_user(&self, from: SocketAddr) -> bool {
        let Some(user) = self.user else { return true };
        let mut of_others = self.of_others();
        if of_others.contains(&from.port()) {
            return false;
        }
        // Another user may have closed its socket already.
        let is_of_user = owner::of_datagrams(from, user) == Owner::Same;
        if !is_of_user {
            tracing::debug!("a datagram from {from} is dropped: it is of another user than its association");
            of_others.insert(from.port());
        }
        is_of_user
    }

    /// Looks again from time to time: the client may have closed its socket, and another user have its port.
    fn is_still_of_user(&self, from: SocketAddr) -> bool {
        let Some(user) = self.user else { return true };
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.elapsed() < Senders::AGE {
            return true;
        }
        let (owner, at) = self.senders.look(from, user, *checked);
        if owner == Owner::Same {
            *checked = at;
        }
        owner == Owner::Same
    }

    fn of_others(&self) -> MutexGuard<'_, HashSet<u16>> {
        self.of_others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes the datagrams of destinations to the client.
async fn return_replies(outside: Arc<Outside>, inside: Arc<Inside>) {
    loop {
        match datagram::receive(&*outside.socket, DATAGRAM_HEADER).await {
            Ok((mut datagram, from)) => {
                let port = inside.port.get().filter(|_| outside.peers().refresh(from));
                let to = port.map(|port| with_port(inside.client, *port));
                let Some(to) = to.filter(|to| inside.is_still_of_user(*to)) else { continue };
                inside.place.moved();
                let start = prepend_header(&mut datagram, from);
                if let Err(error) = inside.replies.send(&datagram, start, to).await {
                    tracing::debug!("cannot send a datagram to a SOCKS5 client: {error}");
                }
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::debug!("cannot receive a datagram: {error}");
    sleep(PAUSE).await;
}

#[cfg(test)]
#[path = "associate/tests.rs"]
mod tests;
