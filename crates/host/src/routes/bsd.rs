//! The tables of macOS and FreeBSD: read from the kernel's routing table, changed by ifconfig(8) and
//! route(8).
//!
//! Everything but [`Machine`] is the same on any system, and is tested against tables in memory.

use std::io;

use ipnet::IpNet;

use self::commands::{Answer, Call, Shown};
use super::USUAL_MTU;
use super::tables::{Edit, Refusal, Tables};
use super::{FoundRoute, Link, RouteError};

pub(crate) mod commands;
pub(crate) mod message;
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
mod system;

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
pub(crate) use system::{LAYOUT, System};

/// What the calls of this module need of the system.
pub trait Machine {
    /// Runs a program and waits for its end.
    fn run(&self, call: &Call) -> io::Result<Answer>;

    /// Returns the routes that packets are looked up by; `table`: the main table, or a FIB.
    fn routes(&self, table: u32) -> io::Result<Vec<FoundRoute>>;

    /// Returns the index of an interface.
    fn index(&self, name: &str) -> Option<u32>;

    /// Returns the name of the interface that has an index.
    fn name(&self, index: u32) -> Option<String>;
}

/// The tables of a machine.
#[derive(Debug)]
pub struct Programs<M> {
    pub(super) machine: M,
}

impl<M: Machine> Tables for Programs<M> {
    fn link(&self, name: &str) -> Result<Link, RouteError> {
        let index = self.machine.index(name).ok_or_else(|| RouteError::NoLink(name.to_owned()))?;
        let mtu = self.show(name)?.mtu.unwrap_or(USUAL_MTU);
        Ok(Link { name: name.to_owned(), index, mtu })
    }

    fn name(&self, index: u32) -> Option<String> {
        self.machine.name(index)
    }

    fn mtu(&self, interface: &str) -> Option<u32> {
        self.show(interface).ok()?.mtu
    }

    fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, RouteError> {
        Ok(self.show(&link.name)?.addresses)
    }

    fn routes(&self, table: u32) -> Result<Vec<FoundRoute>, RouteError> {
        self.machine.routes(table).map_err(|error| RouteError::Refused {
            action: "list the routes".to_owned(),
            error,
            advice: "see `netstat -rn`",
        })
    }

    fn edit(&self, edit: &Edit<'_>) -> Result<(), Refusal> {
        self.run(&commands::call(edit)).map(drop)
    }

    fn refused(&self, edit: &Edit<'_>, refusal: Refusal) -> RouteError {
        refused(&commands::call(edit), refusal)
    }
}

impl<M: Machine> Programs<M> {
    fn show(&self, device: &str) -> Result<Shown, RouteError> {
        let call = commands::show(device);
        self.run(&call).map(|text| commands::shown(&text)).map_err(|refusal| refused(&call, refusal))
    }

    fn run(&self, call: &Call) -> Result<String, Refusal> {
        self.machine.run(call).map_err(Refusal::Failed).and_then(commands::outcome)
    }
}

fn refused(call: &Call, refusal: Refusal) -> RouteError {
    let (error, advice) = match refusal {
        Refusal::Exists => (
            io::ErrorKind::AlreadyExists.into(),
            "it is there already, made by another program: remove that one, or set `Table = off`",
        ),
        Refusal::Gone => {
            (io::ErrorKind::NotFound.into(), "the interface is gone, or the address is not of this machine")
        }
        Refusal::Failed(error) => {
            let advice = match error.kind() {
                io::ErrorKind::PermissionDenied => "run weft as root",
                io::ErrorKind::NotFound => "the program belongs to the system: see PATH",
                _ if call.arguments.iter().any(|word| word == "inet6" || word == "-inet6") => {
                    "where IPv6 is switched off, remove the IPv6 addresses and AllowedIPs from the configuration"
                }
                _ => "see `ifconfig` and `netstat -rn`",
            };
            (error, advice)
        }
    };
    RouteError::Refused { action: format!("run `{call}`"), error, advice }
}

#[cfg(test)]
#[path = "bsd/tests.rs"]
pub(crate) mod tests;
