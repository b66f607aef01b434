//! The hosts behind the gateway, in its namespace: they receive from the clients, answer pings and send to
//! the clients.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use weft_lab::client::{STAMP, Stamp, socket};

use super::task::Task;
use super::{CLIENT, ECHO, HEAVY_SINK, SINK};
use crate::pacing::{Ledger, PAUSE};
use crate::site::GATEWAY;

/// How long a receive call blocks at most before it checks whether to stop.
const TICK: Duration = Duration::from_millis(20);

pub(super) struct Inside {
    /// For all peers but the flooding one.
    pub(super) ordinary: Host,
    /// For the flooding peer, which has separate sockets to stand for a separate machine.
    pub(super) heavy: Host,
    echo: UdpSocket,
}

pub(super) struct Host {
    sink: UdpSocket,
    sender: UdpSocket,
}

impl Inside {
    /// Opens the sockets. Call it in the gateway's namespace, once the gateway has its address.
    pub(super) fn new() -> io::Result<Self> {
        let listen = |port| {
            let socket = socket::bind(GATEWAY, port)?;
            socket.set_read_timeout(Some(TICK))?;
            io::Result::Ok(socket)
        };
        let host = |port| io::Result::Ok(Host { sink: listen(port)?, sender: socket::bind(GATEWAY, 0)? });
        Ok(Self { ordinary: host(SINK)?, heavy: host(HEAVY_SINK)?, echo: listen(ECHO)? })
    }

    pub(super) fn answer(&self, stop: &AtomicBool) -> io::Result<()> {
        let mut buffer = vec![0; socket::BUFFER];
        while !stop.load(Relaxed) {
            match self.echo.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    self.echo.send_to(&buffer[..len], from)?;
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Host {
    pub(super) fn take(&self, ledger: &Ledger, stop: &AtomicBool) -> io::Result<()> {
        let (mut buffer, mut control) = (vec![0; socket::BUFFER], socket::control_buffer());
        while !stop.load(Relaxed) {
            let Some((len, stride)) = socket::receive(&self.sink, &mut buffer, &mut control)? else {
                continue;
            };
            for payload in buffer[..len].chunks(stride) {
                let Some(stamp) = Stamp::read(payload) else { continue };
                ledger.arrived(stamp.run, stamp.peer as usize, stamp.number);
            }
        }
        Ok(())
    }

    /// Sends to these clients: to each client one burst in turn, while less than the window is in flight; a
    /// flood sends without a window.
    pub(super) fn download(&self, clients: &[Ipv4Addr], task: Task<'_>) -> io::Result<()> {
        let (len, ledger, burst) = (Task::PAYLOAD, task.ledger, task.shape.burst);
        let mut contents = vec![0; len * burst as usize];
        let mut windows = task.windows(clients.len());
        while !task.is_over() {
            let Some(peer) = windows.next(ledger) else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let first = ledger.send(peer, burst);
            for (number, payload) in (first..).zip(contents.chunks_mut(len)) {
                Stamp { run: ledger.run(), peer: peer as u32, number }.write(&mut payload[..STAMP]);
            }
            let to = SocketAddrV4::new(clients[peer], CLIENT);
            match socket::send(&self.sender, &contents, len, Some(to)) {
                // The device's queue or the socket's buffer is full: the packets are lost and counted as
                // lost.
                Err(error) if is_transient(&error) => {}
                result => result?,
            }
        }
        Ok(())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32)
}
