//! What the previous daemon left with the service manager: the queues of the device, the UDP sockets, and the
//! state that the configuration file does not contain.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use weft_config::device::DeviceChange;
use weft_config::{Config, InterfaceName, KeyToCome};
use weft_tun::Descriptor;
use weft_tunnel::{PublicKey, Remembered};
use weft_udp::{self as udp, check_socket};

use crate::carried_over::{OwnKey, PeerAddress, State};
use crate::interface::{Inherited, StartError};
use crate::service_manager::{self, FdStore, read_sealed, try_clone};

/// The names of descriptors in the store. They contain the interface, since the service may have run another
/// one before.
#[derive(Clone, Debug)]
pub(super) struct Names {
    interface: InterfaceName,
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Queue(u16),
    /// `number` counts the sockets of one family.
    Socket {
        is_v6: bool,
        number: u16,
    },
    State,
}

const PREFIXES: [&str; 4] = ["tun-", "udp4-", "udp6-", "state-"];

impl Names {
    pub(super) fn of(interface: &InterfaceName) -> Self {
        Self { interface: interface.clone() }
    }

    /// Returns the name of a queue. Each queue has its own name, so that it can be removed from the store
    /// alone.
    pub(super) fn queue(&self, number: u16) -> String {
        format!("tun-{}-{number}", self.interface)
    }

    /// Returns the name of a socket. The first socket of its family has no number.
    pub(super) fn socket(&self, is_v6: bool, number: u16) -> String {
        let family = if is_v6 { 6 } else { 4 };
        match number {
            0 => format!("udp{family}-{}", self.interface),
            _ => format!("udp{family}-{}-{number}", self.interface),
        }
    }

    /// Returns the sockets with their names, which number each family from 0 in the order of `sockets`.
    ///
    /// # Errors
    /// If a descriptor is not a socket of an interface.
    pub(super) fn of_sockets(
        &self,
        sockets: Vec<udp::Descriptor>,
    ) -> Result<Vec<(String, udp::Descriptor)>, String> {
        let mut next = [0; 2];
        let name = |socket| {
            let facts = check_socket(&socket)?;
            let number = &mut next[usize::from(facts.is_v6)];
            *number += 1;
            Ok((self.socket(facts.is_v6, *number - 1), socket))
        };
        sockets.into_iter().map(name).collect()
    }

    /// Reports whether `name` is the name of a socket.
    pub(super) fn is_socket(&self, name: &str) -> bool {
        matches!(self.kind(name), Some(Kind::Socket { .. }))
    }

    pub(super) fn state(&self) -> String {
        format!("state-{}", self.interface)
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        if name == self.state() {
            return Some(Kind::State);
        }
        let numbered = |prefix: &str, name_of: &dyn Fn(u16) -> String| {
            let number = name.strip_prefix(prefix)?.strip_prefix(self.interface.as_str())?;
            let number = if number.is_empty() { 0 } else { number.strip_prefix('-')?.parse().ok()? };
            (name_of(number) == name).then_some(number)
        };
        for (prefix, is_v6) in [("udp4-", false), ("udp6-", true)] {
            if let Some(number) = numbered(prefix, &|number| self.socket(is_v6, number)) {
                return Some(Kind::Socket { is_v6, number });
            }
        }
        numbered("tun-", &|number| self.queue(number)).map(Kind::Queue)
    }
}

/// A queue from the store, with its number.
#[derive(Debug)]
struct KeptQueue {
    number: u16,
    descriptor: Descriptor,
}

#[derive(Debug)]
struct KeptSocket {
    is_v6: bool,
    number: u16,
    port: u16,
    descriptor: udp::Descriptor,
}

/// The usable part of what the previous daemon left.
#[derive(Debug)]
pub(super) struct Handover {
    pub(super) names: Names,
    pub(super) store: Option<FdStore>,
    queues: Vec<KeptQueue>,
    sockets: Vec<KeptSocket>,
    previous: Option<State>,
}

/// What an interface starts with.
#[derive(Debug)]
pub(super) struct Adopted {
    pub(super) inherited: Inherited,
    pub(super) port: u16,
    /// The store and its contents, if there is a store.
    pub(super) kept: Option<Kept>,
}

/// What is in the store, and what is to be added.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) store: FdStore,
    pub(super) names: Names,
    /// Names of descriptors that are in the store and in use.
    pub(super) stored: Vec<String>,
    /// Queues that were created now.
    pub(super) new: Vec<(String, Descriptor)>,
}

impl Handover {
    /// Takes the descriptors from the service manager. Unusable descriptors are logged and removed from the
    /// store.
    pub(super) fn take(interface: &InterfaceName) -> Self {
        let mut this = Self {
            names: Names::of(interface),
            store: FdStore::of_this_process(),
            queues: Vec::new(),
            sockets: Vec::new(),
            previous: None,
        };
        let is_ours = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        for service_manager::Inherited { name, descriptor } in service_manager::take(is_ours) {
            if let Err(reason) = this.accept(&name, descriptor) {
                tracing::warn!(
                    "what the service manager kept as {name} is of no use and is given up: {reason}"
                );
                this.give_up(&name);
            }
        }
        this.queues.sort_by_key(|queue| queue.number);
        this.sockets.sort_by_key(|socket| (socket.is_v6, socket.number));
        if let Some(back) =
            this.previous.as_ref().and_then(|previous| previous.clock_set_back(SystemTime::now()))
        {
            tracing::warn!(
                "the clock was set back: for {} s peers may reject our handshakes as replayed; theirs are answered",
                back.as_secs() + 1
            );
        }
        this
    }

    #[allow(unreachable_code, unused_variables, reason = "on platforms without such descriptors")]
    fn accept(&mut self, name: &str, descriptor: service_manager::Descriptor) -> Result<(), String> {
        match self.names.kind(name) {
            None => return Err(format!("it does not belong to interface {}", self.names.interface)),
            Some(Kind::Queue(number)) => {
                let descriptor = service_manager::into_queue(descriptor);
                weft_tun::check_queue(&descriptor, self.names.interface.as_str())?;
                self.queues.push(KeptQueue { number, descriptor });
            }
            Some(Kind::Socket { is_v6, number }) => {
                let descriptor = service_manager::into_socket(descriptor);
                let facts = check_socket(&descriptor)?;
                if facts.is_v6 != is_v6 {
                    return Err("it is of the other address family".to_owned());
                }
                let is_same = |other: &KeptSocket| (other.is_v6, other.number) == (is_v6, number);
                if let Some(other) =
                    self.sockets.iter().find(|other| other.port != facts.port || is_same(other))
                {
                    return Err(format!("there is one with port {} already", other.port));
                }
                self.sockets.push(KeptSocket { is_v6, number, port: facts.port, descriptor });
            }
            Some(Kind::State) => {
                let text = read_sealed(&descriptor).map_err(|error| error.to_string())?;
                let state = State::from_bytes(&text).map_err(|error| error.to_string())?;
                if state.interface != self.names.interface {
                    return Err(format!("it is about interface {}", state.interface));
                }
                self.previous = Some(state);
            }
        }
        Ok(())
    }

    fn give_up(&self, name: &str) {
        if let Some(Err(error)) = self.store.as_ref().map(|store| store.forget(name)) {
            tracing::warn!("cannot give up {name}: {error}");
        }
    }

    /// Reports whether the device exists.
    pub(super) fn has_device(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Returns the state that the configuration file does not contain.
    pub(super) fn left(&self) -> Option<&State> {
        self.previous.as_ref()
    }

    /// Returns where the peers of the file are, as far as that is known. `None` if no state was left: then
    /// all endpoints have to be looked up.
    pub(super) fn addresses(&self, config: &Config) -> Option<Vec<PeerAddress>> {
        self.previous.as_ref().map(|previous| previous.addresses(config))
    }

    /// Fills in keys that PreUp has written for the previous daemon, if state was left: PreUp does not run
    /// again, and the files may be gone. What remains to come is not known.
    pub(super) fn fill_in(&self, config: &mut Config) {
        let Some(previous) = &self.previous else { return };
        let Config { interface, peers, .. } = config;
        interface.host.keys_to_come.retain(|key| match key {
            KeyToCome::Private => matches!(previous.private_key, OwnKey::OfTheFile | OwnKey::Given(None)),
            KeyToCome::Preshared(key) => {
                let was = previous.peers.iter().find(|peer| peer.public_key == *key);
                let peer = peers.iter_mut().find(|peer| peer.public_key == *key);
                let (Some(was), Some(peer)) = (was, peer) else { return true };
                peer.settings.preshared_key.clone_from(&was.preshared_key);
                peer.settings.preshared_key.is_none()
            }
        });
    }

    /// Reports whether state was left.
    pub(super) fn has_state(&self) -> bool {
        self.previous.is_some()
    }

    /// Returns the change that configures the tunnel, if state was left. `endpoints` are the addresses of the
    /// peers of the file.
    pub(super) fn change(&self, config: &Config, endpoints: &[Option<SocketAddr>]) -> Option<DeviceChange> {
        self.previous.as_ref().map(|previous| previous.change(config, endpoints))
    }

    /// Returns what the previous daemon knew of the peers.
    pub(super) fn remembered(&self) -> Vec<(PublicKey, Remembered)> {
        let previous = self.previous.as_ref();
        previous.map(|previous| previous.remembered(Instant::now(), SystemTime::now())).unwrap_or_default()
    }

    /// Returns the endpoints that clients of UAPI set.
    pub(super) fn set_endpoints(&self) -> Vec<(PublicKey, SocketAddr)> {
        let peers = self.previous.iter().flat_map(|previous| &previous.peers);
        let set = peers.filter(|peer| peer.is_endpoint_set);
        set.filter_map(|peer| Some((peer.public_key, peer.endpoint?))).collect()
    }

    /// Opens or closes queues until there are `queues` of them. Without a store and without existing queues
    /// it returns no queues: the interface opens them.
    ///
    /// # Errors
    /// When a queue cannot be created, detached or duplicated.
    pub(super) fn open(mut self, config: &Config, queues: usize) -> Result<Adopted, StartError> {
        let port = self.port(config);
        // Only sockets with the numbers that the next daemon will give them are kept: a refused socket leaves
        // a gap.
        let mut next = [0; 2];
        let (sockets, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.sockets).into_iter().partition(|socket| {
                let next = &mut next[usize::from(socket.is_v6)];
                let fits = socket.port == port && socket.number == *next;
                *next += u16::from(fits);
                fits
            });
        let name = |socket: &KeptSocket| self.names.socket(socket.is_v6, socket.number);
        for socket in others {
            self.give_up(&name(&socket));
        }
        let mut stored: Vec<String> = sockets.iter().map(name).collect();
        let sockets = sockets.into_iter().map(|socket| socket.descriptor).collect();
        if self.store.is_none() && self.queues.is_empty() {
            return Ok(Adopted {
                inherited: Inherited { sockets, ..Inherited::default() },
                port,
                kept: None,
            });
        }

        let (numbers, existing): (Vec<u16>, Vec<Descriptor>) =
            self.queues.drain(..).map(|queue| (queue.number, queue.descriptor)).unzip();
        let all = weft_tun::open_queues(self.names.interface.as_str(), existing, queues)?;
        for number in numbers.iter().skip(queues) {
            self.give_up(&self.names.queue(*number));
        }
        stored.extend(numbers.iter().take(queues).map(|number| self.names.queue(*number)));
        if self.previous.is_some() {
            stored.push(self.names.state());
        }
        let free = (0..=u16::MAX).filter(|number| !numbers.contains(number));
        let mut new = Vec::new();
        for (number, descriptor) in free.zip(all.iter().skip(numbers.len())) {
            let descriptor = try_clone(descriptor).map_err(StartError::Thread)?;
            new.push((self.names.queue(number), descriptor));
        }
        let kept = self.store.map(|store| Kept { store, names: self.names, stored, new });
        let inherited = Inherited { queues: all, sockets, ..Inherited::default() };
        Ok(Adopted { inherited, port, kept })
    }

    /// Returns the port of the file if the file was edited to another port, else the port in use.
    fn port(&self, config: &Config) -> u16 {
        let there = self.sockets.first().map(|socket| socket.port);
        let configured = config.interface.settings.listen_port;
        match &self.previous {
            Some(previous) => previous.port(config).map_or(configured, |port| there.unwrap_or(port)),
            None if configured == 0 => there.unwrap_or(0),
            None => configured,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_told_from_those_of_other_interfaces() {
        let names = Names::of(&"wg0".parse().unwrap());
        assert_eq!(names.kind(&names.queue(12)), Some(Kind::Queue(12)));
        assert_eq!(names.kind("udp6-wg0"), Some(Kind::Socket { is_v6: true, number: 0 }));
        assert_eq!(names.kind(&names.socket(false, 7)), Some(Kind::Socket { is_v6: false, number: 7 }));
        assert_eq!(names.kind(&names.state()), Some(Kind::State));
        for other in [
            "tun-wg0",
            "tun-wg0-",
            "tun-wg0-x",
            "tun-wg0-01",
            "tun-wg0-65536",
            "tun-wg0-1-2",
            "udp4-wg1",
            "udp4-wg0-0",
        ] {
            assert_eq!(names.kind(other), None, "{other}");
        }
        let dashed = Names::of(&"wg0-1".parse().unwrap());
        assert_eq!(dashed.kind("tun-wg0-1-2"), Some(Kind::Queue(2)));
        assert_eq!(dashed.kind("tun-wg0-1"), None);
    }
}
