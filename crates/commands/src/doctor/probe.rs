//! Observes the machine without changing it. To find out the available features, it creates sockets, and a
//! TUN device in a separate network namespace, and closes them at once.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use socket2::{Domain, Protocol, Socket, Type};
use weft_config::{Endpoint, InterfaceName};
use weft_report::control_socket::{Client, ClientError};

use super::machine::{Clock, MachineState, Way};
use super::target::DoctorTarget;
use crate::running;

#[cfg(target_os = "linux")]
mod gro;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
pub(super) use linux::net_admin;

/// The maximum number of endpoints that are checked.
const ENDPOINTS: usize = 16;
/// The time limit for resolving all names.
const NAMES: Duration = Duration::from_secs(5);

/// Reports whether this process may configure networks; `None`: not known.
#[cfg(not(target_os = "linux"))]
pub(super) fn net_admin() -> Option<bool> {
    None
}

/// Observes the state of the machine that matters for this target.
pub(super) fn machine_state(target: &DoctorTarget) -> MachineState {
    let (mut facts, client) = state_for_start(target);
    facts.ways = addresses(&target.endpoints[..target.endpoints.len().min(ENDPOINTS)]);
    #[cfg(target_os = "linux")]
    linux::observe(&mut facts, target, client.and_then(|mut client| client.status().ok()));
    #[cfg(not(target_os = "linux"))]
    drop(client);
    facts
}

/// Observes, of the state of the machine, what is there already and in the way of a start: that takes no time
/// and no permission. Also returns the connection to the interface, if it runs and lets this user.
pub(super) fn state_for_start(target: &DoctorTarget) -> (MachineState, Option<Client>) {
    let connected = target.interface.as_ref().map(Client::connect);
    let is_running = matches!(connected, Some(Ok(_) | Err(ClientError::Forbidden { .. })));
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "only Linux adds to it"))]
    let mut facts = MachineState {
        is_running,
        port_in_use: port_in_use(target.listen_port),
        left_behind: target.interface.as_ref().and_then(running::left_behind),
        metrics_in_use: target.metrics.map(is_listened_at),
        metrics_elsewhere: target.metrics.is_some_and(|address| !weft_host::has_address(address.ip())),
        obstacles: target.config.as_ref().map(weft_host::obstacles).unwrap_or_default(),
        clock: Clock {
            is_synchronised: None,
            unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        },
        ..MachineState::default()
    };
    #[cfg(target_os = "linux")]
    linux::observe_devices(&mut facts, target);
    (facts, connected.and_then(Result::ok))
}

/// Reports whether a program listens at this address, or at all addresses of the port.
fn is_listened_at(address: SocketAddr) -> bool {
    let bind = || -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Connections that have ended do not count.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        socket.bind(&address.into())
    };
    bind().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// Reports whether another socket uses the port, in IPv4 or IPv6. `None` if that cannot be determined.
fn port_in_use(port: u16) -> Option<bool> {
    let mut known = None;
    for address in
        [SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))]
    {
        match bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Some(true),
            Err(_) => {}
            Ok(()) => known = Some(false),
        }
    }
    known
}

fn bind(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())
}

/// Resolves the endpoints. Names are resolved in parallel; those that take longer than [`NAMES`] get an
/// error.
fn addresses(endpoints: &[Endpoint]) -> Vec<Way> {
    let (found, answers) = mpsc::channel();
    let mut ways: Vec<Way> = endpoints
        .iter()
        .enumerate()
        .map(|(place, endpoint)| Way {
            endpoint: endpoint.to_string(),
            address: match endpoint {
                Endpoint::Address(address) => Ok(*address),
                Endpoint::Name { host, port } => {
                    look_up(place, host.clone(), *port, found.clone());
                    Err(format!("no answer within {} s", NAMES.as_secs()))
                }
            },
            is_here: false,
            mtu: None,
        })
        .collect();
    drop(found);
    let end = std::time::Instant::now() + NAMES;
    // Ends early when every thread has answered, because the channel is closed.
    while let Ok((place, address)) =
        answers.recv_timeout(end.saturating_duration_since(std::time::Instant::now()))
    {
        ways[place].address = address;
    }
    ways
}

type Found = (usize, Result<SocketAddr, String>);

/// Resolves a name on another thread: the system's resolver cannot be interrupted. If it takes too long, the
/// thread ends with the process.
fn look_up(place: usize, host: String, port: u16, found: mpsc::Sender<Found>) {
    let failed = found.clone();
    let look = move || {
        let address = match (host.as_str(), port).to_socket_addrs() {
            Ok(mut addresses) => addresses.next().ok_or_else(|| "no address".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        // Fails if the time limit has passed.
        let _ = found.send((place, address));
    };
    if let Err(error) = std::thread::Builder::new().name("weft-lookup".to_owned()).spawn(look) {
        let _ = failed.send((place, Err(error.to_string())));
    }
}

/// Returns the name of the configured interface.
#[cfg_attr(not(target_os = "linux"), expect(dead_code))]
fn name_of(target: &DoctorTarget) -> Option<&str> {
    target.interface.as_ref().map(InterfaceName::as_str)
}
