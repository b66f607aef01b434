//! Endpoints as UAPI and wg(8) write them: link-local ones with the name of their interface
//! (`[fe80::1%eth0]:51820`).

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

#[cfg(all(unix, not(target_os = "ios")))]
mod scope;

#[cfg(not(all(unix, not(target_os = "ios"))))]
#[path = "endpoint/numbers.rs"]
mod scope;

/// Formats an endpoint as UAPI and wg(8) write it.
pub fn text(endpoint: &SocketAddr) -> String {
    match link(endpoint) {
        Some(name) => format!("[{}%{name}]:{}", endpoint.ip(), endpoint.port()),
        None => endpoint.to_string(),
    }
}

/// Formats the address of an endpoint, with the name of its interface if it is link-local.
pub fn host(endpoint: &SocketAddr) -> String {
    match link(endpoint) {
        Some(name) => format!("{}%{name}", endpoint.ip()),
        None => endpoint.ip().to_string(),
    }
}

/// Returns the name of the interface that a link-local endpoint has as its scope.
pub fn link(endpoint: &SocketAddr) -> Option<String> {
    match endpoint {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => scope::name_of(v6.scope_id()),
        _ => None,
    }
}

/// Parses an endpoint as a daemon writes it; `None` if the text is not valid.
pub fn parse(text: &str) -> Option<SocketAddr> {
    text.parse().ok().or_else(|| {
        let (address, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
        let (address, scope) = address.split_once('%')?;
        let address: Ipv6Addr = address.parse().ok()?;
        Some(SocketAddrV6::new(address, port.parse().ok()?, 0, scope::index_of(scope)?).into())
    })
}

/// Returns the interface that the host of an endpoint has as its scope (`fe80::1%eth0`) if this machine has
/// no such interface.
pub fn missing_scope(host: &str) -> Option<&str> {
    let (_, scope) = host.split_once('%')?;
    scope::index_of(scope).is_none().then_some(scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_come_back_as_they_were() {
        for endpoint in
            ["192.0.2.1:51820", "[2001:db8::1]:1", "[::ffff:192.0.2.1]:65535", "[fe80::1%424242]:7"]
        {
            assert_eq!(text(&parse(endpoint).unwrap()), endpoint);
        }
        for wrong in ["", "192.0.2.1", "host:1", "2001:db8::1:1", "[fe80::1%no-such-device]:1", "[::1]"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn scopes_are_named() {
        assert_eq!(text(&"[fe80::1%1]:7".parse().unwrap()), "[fe80::1%lo]:7");
        assert_eq!(parse("[fe80::1%lo]:7"), Some("[fe80::1%1]:7".parse().unwrap()));
        assert_eq!(host(&"[fe80::1%1]:7".parse().unwrap()), "fe80::1%lo");
        for (host, missing) in [("fe80::1%nope", Some("nope")), ("fe80::1%lo", None), ("vpn.example", None)] {
            assert_eq!(missing_scope(host), missing, "{host}");
        }
    }
}
