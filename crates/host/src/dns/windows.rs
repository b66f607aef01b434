//! DNS on Windows: the registry.

use super::registry::{self, System};
use super::{Choice, DnsError, Method, Places, Record, Seen};
use crate::platform::Process;

pub(super) fn method(_: &Places, choice: Choice) -> Result<Method, DnsError> {
    match choice {
        Choice::Auto => Ok(Method::Registry),
        Choice::Resolved | Choice::Resolvconf | Choice::File => Err(DnsError::Unsupported),
    }
}

pub(super) fn state_directory<'a>(lasting: &'a str, _: &'a str) -> &'a str {
    lasting
}

pub(super) fn apply(_: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        Method::Registry => registry::add(&System, interface, Process::this(), &record.settings),
        Method::Resolved | Method::Resolvconf | Method::File | Method::Scutil => Err(DnsError::Unsupported),
    }
}

pub(super) fn undo(_: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        Method::Registry => registry::remove(&System, interface),
        Method::Resolved | Method::Resolvconf | Method::File | Method::Scutil => Err(DnsError::Unsupported),
    }
}

/// Reports them as in force: other programs are not looked after here.
#[allow(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
pub(super) fn look(_: &Places, _: &str, _: &Record) -> Result<Seen, DnsError> {
    Ok(Seen::InForce)
}

/// Returns nothing: there is no resolvconf.
pub(super) fn unrecorded(_: &Places, _: &str) -> Option<Record> {
    None
}

pub(super) fn repair(_: &Places) -> Result<Vec<String>, DnsError> {
    registry::repair(&System, |process| process.is_alive())
}
