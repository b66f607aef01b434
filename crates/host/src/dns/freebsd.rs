//! DNS on FreeBSD: resolvconf(8), which is openresolv there and belongs to the system.

use super::{Choice, DnsError, Method, Places, Record, Seen};

mod resolvconf;

pub(super) fn method(places: &Places, choice: Choice) -> Result<Method, DnsError> {
    match choice {
        Choice::Auto | Choice::Resolvconf => resolvconf::find(places).map(|_| Method::Resolvconf),
        Choice::Resolved | Choice::File => Err(DnsError::Unsupported),
    }
}

pub(super) fn state_directory<'a>(lasting: &'a str, _: &'a str) -> &'a str {
    lasting
}

pub(super) fn apply(places: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        Method::Resolvconf => resolvconf::add(places, interface, &record.settings),
        Method::Resolved | Method::File | Method::Scutil | Method::Registry => Err(DnsError::Unsupported),
    }
}

pub(super) fn undo(places: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        Method::Resolvconf => resolvconf::remove(places, interface),
        Method::Resolved | Method::File | Method::Scutil | Method::Registry => Err(DnsError::Unsupported),
    }
}

/// Reports them as in force: other programs are not looked after here.
#[allow(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
pub(super) fn look(places: &Places, interface: &str, record: &Record) -> Result<Seen, DnsError> {
    Ok(resolvconf::look(places, interface, &record.settings))
}

pub(super) fn unrecorded(places: &Places, interface: &str) -> Option<Record> {
    resolvconf::unrecorded(places, interface)
}

/// Returns nothing: resolvconf keeps what it was given by interface, and the record undoes it.
#[allow(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
pub(super) fn repair(_: &Places) -> Result<Vec<String>, DnsError> {
    Ok(Vec::new())
}
