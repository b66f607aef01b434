//! The host names that a request may use.
//!
//! A web page may make a name under its control resolve to this machine (DNS rebinding): the browser would
//! treat the answers as that page's. So the name has to be one that no other site can have: an address,
//! `localhost`, the machine's own name, or an allowed name.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{PoisonError, RwLock};

use weft_config::metrics::HostName;

/// The host names that a request may use. They may change while requests are answered.
#[derive(Debug)]
pub(super) enum Hosts {
    /// Any name: browsers cannot reach a Unix socket.
    Any,
    /// Addresses, `localhost`, and these names.
    Named(RwLock<Vec<HostName>>),
}

impl Hosts {
    pub(super) fn any() -> Self {
        Self::Any
    }

    /// Allows these names and the machine's own.
    pub(super) fn named(names: &[HostName]) -> Self {
        Self::Named(RwLock::new(with_own(names)))
    }

    /// Replaces the allowed names, unless any name is allowed.
    pub(super) fn change(&self, names: &[HostName]) {
        if let Self::Named(allowed) = self {
            *allowed.write().unwrap_or_else(PoisonError::into_inner) = with_own(names);
        }
    }

    /// Reports whether a request may be for `authority`, a name or an address with an optional port.
    pub(super) fn allow(&self, authority: &str) -> bool {
        let Self::Named(names) = self else { return true };
        if let Some(rest) = authority.strip_prefix('[') {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return address.parse::<Ipv6Addr>().is_ok() && is_port(port);
        }
        let (host, port) = match authority.find(':') {
            Some(colon) => authority.split_at(colon),
            None => (authority, ""),
        };
        if !is_port(port) {
            return false;
        }
        if host.parse::<IpAddr>().is_ok() {
            return true;
        }
        let Ok(host) = host.parse::<HostName>() else { return false };
        host.as_str() == "localhost"
            || host.as_str().ends_with(".localhost")
            || names.read().unwrap_or_else(PoisonError::into_inner).contains(&host)
    }
}

fn with_own(names: &[HostName]) -> Vec<HostName> {
    let own = own_name().and_then(|name| name.parse().ok());
    names.iter().cloned().chain(own).collect()
}

/// Returns the host name of this machine.
#[cfg(unix)]
fn own_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

#[cfg(not(unix))]
use crate::unsupported::own_name;

/// Reports whether the text is empty, or a colon and a number.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_known_names_pass_and_nothing_else_does() {
        let hosts = Hosts::named(&["gw.example".parse().unwrap()]);
        for host in [
            "127.0.0.1",
            "127.0.0.1:9586",
            "10.0.0.1:1",
            "[::1]",
            "[fe80::1]:9586",
            "localhost:9586",
            "LOCALHOST",
            "a.localhost",
            "gw.example",
            "GW.example.:9586",
        ] {
            assert!(hosts.allow(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "gw.example.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1",
            "[::1]x",
            "[evil.example]",
            "127.0.0.1:80:80",
            "gw.example:x",
            "a@127.0.0.1",
        ] {
            assert!(!hosts.allow(host), "{host}");
        }
        assert!(Hosts::any().allow("evil.example"));
    }

    #[test]
    fn names_change_in_place() {
        let [old, new] = ["old.example", "new.example"].map(|name| name.parse::<HostName>().unwrap());
        let hosts = Hosts::named(&[old]);
        hosts.change(&[new]);
        assert!(hosts.allow("new.example") && !hosts.allow("old.example") && hosts.allow("localhost"));
        let any = Hosts::any();
        any.change(&[]);
        assert!(any.allow("anything.example"));
    }
}
