//! Runs the programs of the system, and reads the kernel's routing table by sysctl(3).

use std::io;
use std::process::Command;
use std::time::Duration;

use super::commands::{Answer, Call};
use super::message::{Layout, Message, messages};
use super::{Machine, Programs};
use crate::programs;
use crate::routes::tables::Configurator;
use crate::routes::{FoundRoute, MAIN_TABLE, RouteError, Via};

#[cfg(target_os = "freebsd")]
pub(crate) const LAYOUT: Layout = super::message::FREEBSD;
#[cfg(target_os = "macos")]
pub(crate) const LAYOUT: Layout = super::message::MACOS;

/// How long a call may take: it takes milliseconds, and seconds on a machine that is busy.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The table grows between two calls, of which the first tells its size.
const ATTEMPTS: usize = 5;

/// This machine.
#[derive(Debug)]
pub struct System;

impl Configurator<Programs<System>> {
    /// Returns the network configuration of this machine.
    #[allow(clippy::unnecessary_wraps, reason = "it is opened on other systems")]
    pub fn open() -> Result<Self, RouteError> {
        Ok(Self::new(Programs { machine: System }))
    }
}

impl Machine for System {
    fn run(&self, call: &Call) -> io::Result<Answer> {
        let mut command = Command::new(call.program);
        // The texts that are looked for are English.
        command.args(&call.arguments).env("LC_ALL", "C");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/sbin:/usr/sbin"));
        let ended = programs::call(call.program, TIMEOUT, |time| programs::run(command, &[], time))?;
        Ok(Answer {
            is_success: ended.status.success(),
            output: String::from_utf8_lossy(&ended.answer).into_owned(),
            errors: String::from_utf8_lossy(&ended.complaint).into_owned(),
        })
    }

    fn routes(&self, table: u32) -> io::Result<Vec<FoundRoute>> {
        let found = messages(&dump(table)?, LAYOUT);
        Ok(found.into_iter().filter_map(found_route).collect())
    }

    fn name(&self, index: u32) -> Option<String> {
        nix::net::if_::if_indextoname(index).ok()?.into_string().ok()
    }

    fn index(&self, name: &str) -> Option<u32> {
        nix::net::if_::if_nametoindex(name).ok()
    }
}

fn found_route(message: Message) -> Option<FoundRoute> {
    let Message::Route(route) = message else { return None };
    let name = nix::net::if_::if_indextoname(route.index).ok().and_then(|name| name.into_string().ok());
    let via = match (route.is_blackhole, route.gateway, name) {
        (true, ..) => Via::Blackhole,
        (false, Some(address), Some(interface)) => Via::Gateway { address, interface },
        (false, None, Some(interface)) => Via::Interface(interface),
        (false, _, None) => return None,
    };
    Some(FoundRoute { prefix: route.prefix, via, is_up: true })
}

/// Returns a routing table of both families as messages.
fn dump(table: u32) -> io::Result<Vec<u8>> {
    let mut name = vec![libc::CTL_NET, libc::PF_ROUTE, 0, 0, libc::NET_RT_DUMP, 0];
    if cfg!(target_os = "freebsd") && table != MAIN_TABLE {
        name.push(table.cast_signed());
    }
    for _ in 0..ATTEMPTS {
        let needed = sysctl(&mut name, None)?;
        let mut bytes = vec![0; needed + needed / 4 + 1024];
        match sysctl(&mut name, Some(&mut bytes)) {
            Ok(length) => {
                bytes.truncate(length);
                return Ok(bytes);
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Returns the number of bytes that were written; without a buffer, of those that would be.
fn sysctl(name: &mut [libc::c_int], buffer: Option<&mut [u8]>) -> io::Result<usize> {
    let (bytes, mut length) =
        buffer.map_or((std::ptr::null_mut(), 0), |buffer| (buffer.as_mut_ptr(), buffer.len()));
    let words = libc::c_uint::try_from(name.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `words` numbers of the name, writes at most `length` bytes to the buffer and
    // their number to `length`, and all three live until after the call.
    let result = unsafe {
        libc::sysctl(name.as_mut_ptr(), words, bytes.cast(), &raw mut length, std::ptr::null_mut(), 0)
    };
    if result == 0 { Ok(length) } else { Err(io::Error::last_os_error()) }
}
