//! DNS on macOS: scutil(8), and resolver(5).

use super::{Choice, DnsError, Method, Places, Record, Seen, scutil};

pub(super) fn method(places: &Places, choice: Choice) -> Result<Method, DnsError> {
    match choice {
        Choice::Auto => scutil::find(places).map(|_| Method::Scutil),
        Choice::Resolved | Choice::Resolvconf | Choice::File => Err(DnsError::Unsupported),
    }
}

pub(super) fn state_directory<'a>(lasting: &'a str, _: &'a str) -> &'a str {
    lasting
}

pub(super) fn apply(places: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        Method::Scutil => scutil::add(places, interface, &record.settings),
        Method::Resolved | Method::Resolvconf | Method::File | Method::Registry => Err(DnsError::Unsupported),
    }
}

pub(super) fn undo(places: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        Method::Scutil => scutil::remove(places, interface),
        Method::Resolved | Method::Resolvconf | Method::File | Method::Registry => Err(DnsError::Unsupported),
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

/// Returns nothing: the record undoes what a daemon left.
#[allow(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
pub(super) fn repair(_: &Places) -> Result<Vec<String>, DnsError> {
    Ok(Vec::new())
}
