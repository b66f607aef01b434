//! Two machines with a cable and a tunnel between them.

use std::net::IpAddr;

use weft_lab::Transfer;
use weft_lab::link::{self, LinkOptions};

use super::{Daemon, Machine, NAME, key, public_key};

/// The address of machine `number` in the tunnel.
pub(crate) fn inner(number: u8) -> IpAddr {
    IpAddr::from([10, 9, 0, number])
}

/// Machines 1 and 2, weft on each, and a session between them.
pub(crate) struct Pair {
    pub(crate) daemons: [Daemon; 2],
    pub(crate) a: Machine,
    pub(crate) b: Machine,
}

impl Pair {
    /// `None` where that is not possible, which is said.
    pub(crate) fn new() -> Option<Self> {
        Self::with(Daemon::start)
    }

    /// The same with machine a's daemon started in this way.
    pub(crate) fn with(start: impl FnOnce(&Machine) -> Daemon) -> Option<Self> {
        let (a, b) = (Machine::new(&["wg", "ip"])?, Machine::new(&["wg", "ip"])?);
        let options = LinkOptions {
            addresses_a: vec!["192.0.2.1/24".parse().unwrap()],
            addresses_b: vec!["192.0.2.2/24".parse().unwrap()],
            ..LinkOptions::default()
        };
        link::join(&a.namespace, &b.namespace, &options).unwrap();
        let daemons = [start(&a), Daemon::start(&b)];
        let this = Self { daemons, a, b };
        for (machine, own, other) in [(&this.a, 1, 2), (&this.b, 2, 1)] {
            let file = machine.file("wg0.conf", &Self::config(own, other));
            machine.wg(&format!("setconf {NAME} {file}"));
            link::add_address(&machine.namespace, NAME, format!("{}/24", inner(own)).parse().unwrap())
                .unwrap();
            link::set_up(&machine.namespace, NAME).unwrap();
        }
        Some(this)
    }

    /// What `wg setconf` gives machine `own`.
    pub(crate) fn config(own: u8, other: u8) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = {}/32\n\
             Endpoint = 192.0.2.{other}:51820\n",
            *key(own).to_base64(),
            public_key(other),
            inner(other)
        )
    }

    /// A stream from a to b that goes on until it is ended.
    pub(crate) fn stream(&self) -> Transfer {
        Transfer::endless(&self.a.namespace, &self.b.namespace, inner(2)).unwrap()
    }

    /// When machine a last shook hands with its peer, in Unix time.
    pub(crate) fn last_handshake(&self) -> String {
        self.a.wg(&format!("show {NAME} latest-handshakes"))
    }
}
