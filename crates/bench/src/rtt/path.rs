//! A path from one namespace to another over an emulated link: bare, or through a tunnel.
//!
//! ```text
//!   near  eth0 ══ emulated link, MTU 1500 ══ eth0  far
//!    192.0.2.1                           192.0.2.2    bare: TCP ends here
//!     tunnel 10.99.0.1 ══ MTU 1420 ══ 10.99.0.2 tunnel: or here
//! ```

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result};
use socket2::{Domain, Socket, Type};
use weft_lab::counters::Counters;
use weft_lab::emulator::LinkSpec;
use weft_lab::traffic::{STALL, TcpReceiver};

use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::topology::{Tunnel, Wire};

/// Name of the bare link.
pub(super) const BARE: &str = "no tunnel";
/// The MTU of every tunnel.
const MTU: u16 = 1420;

/// A path that carries packets.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) name: String,
    pub(super) tunnel: Tunnel,
}

impl Path {
    /// Creates a path through a tunnel of this implementation over the link.
    pub(super) fn new(
        name: &str,
        implementation: &Implementation,
        spec: &LinkSpec,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let wire = Wire::Emulated(spec.clone());
        let tunnel = Tunnel::start(implementation, &wire, MTU, None, interrupt);
        Ok(Self { name: name.to_owned(), tunnel: tunnel.with_context(|| format!("cannot bring up {name}"))? })
    }

    /// Returns an error if one of its daemons has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.tunnel.check()
    }

    /// Opens a connection from the near end to the far one.
    pub(super) fn connect(&self, to: SocketAddr, congestion_control: &str) -> Result<TcpStream> {
        let connect = || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.set_tcp_congestion(congestion_control.as_bytes())?;
            socket.connect_timeout(&to.into(), STALL)?;
            std::io::Result::Ok(socket.into())
        };
        self.tunnel.near.run(connect).with_context(|| format!("cannot connect by {congestion_control}"))
    }

    /// Starts a receiver at the far end.
    pub(super) fn listen(&self) -> Result<TcpReceiver> {
        let address = SocketAddr::new(self.tunnel.target, 0);
        self.tunnel.far.run(|| TcpReceiver::listen(address)).context("cannot listen")
    }

    /// Reads the kernel's counters of the near end and of the far end.
    pub(super) fn counters(&self) -> Result<[Counters; 2]> {
        Ok([Counters::read(&self.tunnel.near)?, Counters::read(&self.tunnel.far)?])
    }
}

/// Returns the payload share of full TCP frames over IPv4 with timestamps: bare, and through a tunnel.
///
/// Bare, 1,514 bytes of Ethernet carry 1,500 of IP, of which 20 are IP's header, 20 TCP's and 12 the
/// timestamps': 1448/1514. In the tunnel 1,420 bytes of IP carry 1,368; WireGuard adds a header of 16 and a
/// tag of 16 bytes, then come UDP's 8, IP's 20 and Ethernet's 14: 1368/1494. (1,420 is not a multiple of 16,
/// but padding never goes beyond the MTU.)
pub(super) fn payload_shares() -> [f64; 2] {
    const TCP_AND_IP: f64 = 20.0 + 20.0 + 12.0;
    const ETHERNET: f64 = 14.0;
    const WIREGUARD_UDP_AND_IP: f64 = 16.0 + 16.0 + 8.0 + 20.0;
    let (outer, inner) = (1500.0, f64::from(MTU));
    [
        (outer - TCP_AND_IP) / (outer + ETHERNET),
        (inner - TCP_AND_IP) / (inner + WIREGUARD_UDP_AND_IP + ETHERNET),
    ]
}

/// Returns the share of the bare speed that a tunnel's headers leave.
pub(super) fn headers_leave() -> f64 {
    let [bare, tunnel] = payload_shares();
    tunnel / bare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_leave_what_the_lengths_say() {
        let [bare, tunnel] = payload_shares();
        assert!((bare - 1448.0 / 1514.0).abs() < 1e-12);
        assert!((tunnel - 1368.0 / 1494.0).abs() < 1e-12);
        assert!((headers_leave() - 0.9574).abs() < 5e-5);
    }
}
