//! The substitute for platforms where weft cannot set DNS yet: every call fails, except `repair`, which has
//! nothing to do.

use super::{Choice, DnsError, Method, Places, Record};

pub(super) fn method(_: &Places, _: Choice) -> Result<Method, DnsError> {
    Err(DnsError::Unsupported)
}

pub(super) fn apply(_: &Places, _: &str, _: &Record) -> Result<(), DnsError> {
    Err(DnsError::Unsupported)
}

pub(super) fn undo(_: &Places, _: &str, _: &Record) -> Result<(), DnsError> {
    Err(DnsError::Unsupported)
}

pub(super) fn repair(_: &Places) -> Result<Vec<String>, DnsError> {
    Ok(Vec::new())
}
