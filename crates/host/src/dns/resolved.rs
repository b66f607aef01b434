//! Sets DNS in systemd-resolved, over D-Bus (org.freedesktop.resolve1(5)).

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use weft_config::Dns;
use zbus::{Connection, OwnedVariant, fdo};

use super::super::upstream::PORT;
use super::super::{DnsError, Overruled, Places, Seen};
use crate::{netns, programs};

const SERVICE: &str = "org.freedesktop.resolve1";
const OBJECT: &str = "/org/freedesktop/resolve1";
const MANAGER: &str = "org.freedesktop.resolve1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const BUS: &str = "org.freedesktop.DBus";
const BUS_OBJECT: &str = "/org/freedesktop/DBus";
const ACTION: &str = "connect to systemd-resolved over the system bus";

/// The time limit for all calls of one session, including the start of systemd-resolved.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long systemd-resolved may take to learn from the kernel about a new interface.
const NEW_LINK_TIMEOUT: Duration = Duration::from_secs(3);
const NEW_LINK_PAUSE: Duration = Duration::from_millis(20);

/// Servers as systemd-resolved has them: address family and bytes.
type Servers = Vec<(i32, Vec<u8>)>;
/// A server with the index of its link, 0 for the global configuration: index, address family, address.
type Server = (i32, i32, Vec<u8>);
/// A domain: the index of its link, the domain, and whether it is for routing only.
type Routed = (i32, String, bool);

/// A connection to systemd-resolved, with a separate runtime. No thread is started.
pub(super) struct Session {
    runtime: Runtime,
    connection: Connection,
    end: Instant,
}

/// Looks whether systemd-resolved runs and has these settings of an interface, and no others have a part in
/// them; it forgets what another program reverts. It may have been stopped on purpose, and is not started.
pub(super) fn look(places: &Places, index: u32, settings: &Dns) -> Result<Seen, DnsError> {
    let Some(session) = Session::begin(places, false)? else {
        return Ok(Seen::Overruled(Overruled {
            by: "systemd-resolved, which has its name servers, does not run".to_owned(),
            advice: "`systemctl start systemd-resolved`, and weft sets them there again; or give /etc/resolv.conf \
                     servers without it, and `weft reload`"
                .to_owned(),
        }));
    };
    let is_other = |found: &Servers| !settings.servers.is_empty() && *found != servers(settings);
    if let Some(found) = session.of_link::<Servers>(index, "DNS")?.filter(is_other) {
        let what = if found.is_empty() { "no" } else { "other" };
        return Ok(Seen::Replaced(format!("{what} servers in systemd-resolved")));
    }
    let has_all = |found: &Vec<(String, bool)>| {
        let has = |name: &str, is_routing: bool| {
            found.iter().any(|found| is_same(&found.0, name) && found.1 == is_routing)
        };
        domains(settings).into_iter().all(|(name, is_routing)| has(name, is_routing))
    };
    if session.of_link(index, "Domains")?.is_some_and(|found| !has_all(&found)) {
        return Ok(Seen::Replaced("other domains in systemd-resolved".to_owned()));
    }
    Ok(session.overruled(Some(index), settings).map_or(Seen::InForce, Seen::Overruled))
}

/// Returns what would have a part in settings besides an interface. Starts nothing.
pub(super) fn foresee(
    places: &Places,
    index: Option<u32>,
    settings: &Dns,
) -> Result<Option<Overruled>, DnsError> {
    let session = Session::begin(places, false)?;
    Ok(session.and_then(|session| session.overruled(index, settings)))
}

/// Undoes what was set. It is no error if systemd-resolved does not know the interface, or cannot run: it has
/// nothing of it then. It is none either if systemd-networkd manages the interface by now, with other
/// settings.
pub(super) fn revert(places: &Places, interface: &str, index: u32) -> Result<(), DnsError> {
    let session = match Session::open(places) {
        Ok(session) => session,
        Err(error) => match Session::begin(places, false) {
            Ok(None) => return Ok(()),
            _ => return Err(error),
        },
    };
    let action = format!("revert the DNS settings of {interface}");
    match session.call(&action, "RevertLink", &(index.cast_signed(),)) {
        Err(Failure::NoSuchLink | Failure::Managed(_)) => Ok(()),
        other => other.map_err(DnsError::from),
    }?;
    session.flush();
    Ok(())
}

/// Reports whether systemd-resolved may be used. Does not start it if that is not allowed.
pub(super) fn is_usable(places: &Places, may_start: bool) -> Result<(), DnsError> {
    if may_start { Session::open(places).map(drop) } else { Session::begin(places, false).map(drop) }
}

fn is_same(domain: &str, other: &str) -> bool {
    domain.trim_matches('.').eq_ignore_ascii_case(other.trim_matches('.'))
}

/// Returns the links beside an interface with servers that are asked for its domains too, each with the
/// domain.
fn rivals<'a>(
    servers: &[Server],
    routed: &'a [Routed],
    own: Option<u32>,
    settings: &Dns,
) -> impl Iterator<Item = (i32, &'a str)> {
    let wanted = domains(settings);
    let has_servers = !settings.servers.is_empty();
    let asked: Vec<i32> = servers.iter().map(|server| server.0).collect();
    let is_rival = move |link: i32, name: &str| {
        own.is_none_or(|own| own.cast_signed() != link)
            && has_servers
            && asked.contains(&link)
            && wanted.iter().any(|(wanted, _)| is_same(wanted, name))
    };
    let is_rival: Vec<bool> = routed.iter().map(|domain| is_rival(domain.0, &domain.1)).collect();
    routed
        .iter()
        .zip(is_rival)
        .filter(|(_, is_rival)| *is_rival)
        .map(|(domain, _)| (domain.0, domain.1.as_str()))
}

impl Session {
    /// Connects, and has systemd-resolved started if it does not run. Fails if it serves another network
    /// namespace.
    pub(super) fn open(places: &Places) -> Result<Self, DnsError> {
        let not_running =
            || DnsError::Bus { action: ACTION.to_owned(), reason: "it does not run".to_owned() };
        Self::begin(places, true)?.ok_or_else(not_running)
    }

    /// Connects; `None` if systemd-resolved does not run, and is not to be started.
    fn begin(places: &Places, is_to_start: bool) -> Result<Option<Self>, DnsError> {
        let bus = |reason: String| DnsError::Bus { action: ACTION.to_owned(), reason };
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| bus(error.to_string()))?;
        let end = Instant::now() + TIMEOUT;
        let connect = async {
            let builder = match &places.bus {
                Some(address) => zbus::connection::Builder::address(address.as_str()),
                None => zbus::connection::Builder::system(),
            };
            let connection = builder.build().await?;
            let owner = owner(&connection, is_to_start).await?;
            Ok((connection, owner))
        };
        let connected: zbus::Result<_> = within(&runtime, end, ACTION, connect)?;
        let (connection, owner) = connected.map_err(|error| bus(error.to_string()))?;
        let Some(owner) = owner else { return Ok(None) };
        if netns::is_elsewhere(owner) {
            return Err(DnsError::OtherNamespace);
        }
        Ok(Some(Self { runtime, connection, end }))
    }

    /// Returns a property of an interface; `None` if systemd-resolved does not know it, or does not tell.
    fn of_link<T>(&self, index: u32, name: &str) -> Result<Option<T>, DnsError>
    where
        T: TryFrom<OwnedVariant>,
        zbus::Error: From<T::Error>,
    {
        // The first digit of a number is escaped in an object path: `_37` is 7.
        let link = format!("{OBJECT}/link/_3{index}");
        let body = ("org.freedesktop.resolve1.Link", name);
        let get = self.connection.call_method(Some(SERVICE), link.as_str(), Some(PROPERTIES), "Get", &body);
        let answer = within(&self.runtime, self.end, "read the DNS settings of an interface", get)?;
        let found = answer.and_then(|answer| {
            let value: OwnedVariant = answer.body().deserialize()?;
            Ok(T::try_from(value)?)
        });
        Ok(found.inspect_err(|error| tracing::debug!("cannot read {name} of link {index}: {error}")).ok())
    }

    /// Returns what has a part in the settings of an interface.
    fn overruled(&self, own: Option<u32>, settings: &Dns) -> Option<Overruled> {
        let told = |error: DnsError| tracing::debug!("{error}");
        let servers: Vec<Server> = self.property("DNS").map_err(told).ok()?;
        let routed: Vec<Routed> = self.property("Domains").map_err(told).ok()?;
        let (link, domain) = rivals(&servers, &routed, own, settings).next()?;
        let domain = if domain == "." { "~." } else { domain };
        let name = u32::try_from(link).ok().filter(|link| *link != 0).map(|link| {
            nix::net::if_::if_indextoname(link)
                .ok()
                .and_then(|name| name.into_string().ok())
                .unwrap_or_else(|| format!("link {link}"))
        });
        Some(match name {
            Some(name) => Overruled {
                by: format!("systemd-resolved asks the servers of {name} too, which has the domain {domain} as well"),
                advice: format!(
                    "`resolvectl domain {name} ''`, and leave the domain out of that link's settings (Domains= in \
                     systemd-networkd, ipv4.dns-search or a negative ipv4.dns-priority in NetworkManager)"
                ),
            },
            None => Overruled {
                by: format!("systemd-resolved asks the servers of its configuration too, which has Domains={domain}"),
                advice: "leave that out of /etc/systemd/resolved.conf and its directories, then `systemctl restart \
                         systemd-resolved`"
                    .to_owned(),
            },
        })
    }

    /// Sets the servers and domains of an interface. After a failure, undoes what was set.
    pub(super) fn set(&self, interface: &str, index: u32, settings: &Dns) -> Result<(), DnsError> {
        if settings.servers.is_empty() {
            tracing::warn!(
                interface,
                "systemd-resolved does not look up the domains of an interface without DNS servers"
            );
        }
        let index = index.cast_signed();
        let set = self.set_all(interface, index, settings);
        if set.is_err() {
            let _ = self.call("", "RevertLink", &(index,));
        }
        set
    }

    fn set_all(&self, interface: &str, index: i32, settings: &Dns) -> Result<(), DnsError> {
        let action = format!("set the DNS servers of {interface}");
        let end = Instant::now() + NEW_LINK_TIMEOUT;
        let servers = servers(settings);
        loop {
            match self.call(&action, "SetLinkDNS", &(index, &servers)) {
                Err(Failure::NoSuchLink) if Instant::now() < end => thread::sleep(NEW_LINK_PAUSE),
                done => break done?,
            }
        }
        let action = format!("set the DNS domains of {interface}");
        self.call(&action, "SetLinkDomains", &(index, domains(settings)))?;
        match self.call(&action, "SetLinkDefaultRoute", &(index, settings.is_full())) {
            // systemd before 240 has no such method; the domains have the same effect.
            Err(Failure::UnknownMethod) => {}
            other => other?,
        }
        self.flush();
        Ok(())
    }

    /// Returns the servers and search domains that a name has without an interface: those of the links that
    /// its longest matching domain is routed to, then those of the links for every name and of the global
    /// configuration.
    pub(super) fn upstream(
        &self,
        without: Option<u32>,
        name: &str,
    ) -> Result<(Vec<SocketAddr>, Vec<String>), DnsError> {
        let mut servers: Vec<Server> = self.property("DNS")?;
        let mut domains: Vec<Routed> = self.property("Domains")?;
        let is_other = |link: i32| without.is_none_or(|own| own.cast_signed() != link);
        servers.retain(|server| is_other(server.0));
        domains.retain(|domain| is_other(domain.0));
        let mut addresses = in_order(&servers, &domains, name);
        if addresses.is_empty() {
            addresses.extend(self.property::<Vec<Server>>("FallbackDNS")?.iter().filter_map(address));
        }
        let search = domains.into_iter().filter(|domain| !domain.2).map(|domain| domain.1);
        Ok((addresses, search.collect()))
    }

    fn property<T>(&self, name: &str) -> Result<T, DnsError>
    where
        T: TryFrom<OwnedVariant>,
        T::Error: std::fmt::Display,
    {
        let action = format!("read {name}");
        let body = (MANAGER, name);
        let call = self.connection.call_method(Some(SERVICE), OBJECT, Some(PROPERTIES), "Get", &body);
        let answer = within(&self.runtime, self.end, &action, call)?;
        let answer = answer.map_err(|error| DnsError::from(failure(&action, &error)))?;
        let unusable = |reason: String| DnsError::Bus { action: action.clone(), reason };
        let value: OwnedVariant = answer.body().deserialize().map_err(|error| unusable(error.to_string()))?;
        T::try_from(value).map_err(|error| unusable(error.to_string()))
    }

    /// Flushes the DNS cache: the answers may have changed. A failure is ignored: the new answers come
    /// later then.
    fn flush(&self) {
        if let Err(failure) = self.call("flush the DNS cache", "FlushCaches", &()) {
            tracing::debug!("{}", DnsError::from(failure));
        }
    }

    fn call<B>(&self, action: &str, method: &'static str, body: &B) -> Result<(), Failure>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let call = self.connection.call_method(Some(SERVICE), OBJECT, Some(MANAGER), method, body);
        let answer = within(&self.runtime, self.end, action, call).map_err(Failure::Final)?;
        answer.map(drop).map_err(|error| failure(action, &error))
    }
}

/// Waits for `work`, until `end` at most.
fn within<T>(
    runtime: &Runtime,
    end: Instant,
    action: &str,
    work: impl Future<Output = T>,
) -> Result<T, DnsError> {
    let time = end.saturating_duration_since(Instant::now());
    let wait = |time| runtime.block_on(async { Ok(tokio::time::timeout(time, work).await?) });
    programs::call("systemd-resolved", time, wait)
        .map_err(|_: io::Error| DnsError::Timeout { action: action.to_owned(), after: TIMEOUT })
}

/// Returns the process id of systemd-resolved, which may be started; `None` if it does not run.
async fn owner(connection: &Connection, is_to_start: bool) -> zbus::Result<Option<u32>> {
    let bus = async |method: &'static str| {
        connection.call_method(Some(BUS), BUS_OBJECT, Some(BUS), method, &(SERVICE,)).await
    };
    let owned: bool = bus("NameHasOwner").await?.body().deserialize()?;
    if !owned && !is_to_start {
        return Ok(None);
    }
    if !owned {
        let start = (SERVICE, 0_u32);
        connection.call_method(Some(BUS), BUS_OBJECT, Some(BUS), "StartServiceByName", &start).await?;
    }
    bus("GetConnectionUnixProcessID").await?.body().deserialize().map(Some)
}

/// Returns the servers in the order in which a name is to be asked for.
fn in_order(servers: &[Server], domains: &[Routed], name: &str) -> Vec<SocketAddr> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let matches = |domain: &str| {
        let domain = domain.trim_matches('.').to_ascii_lowercase();
        let is_below =
            name.strip_suffix(&domain).is_some_and(|front| front.is_empty() || front.ends_with('.'));
        (domain.is_empty() || is_below).then_some(domain.len())
    };
    let of = |link: i32| domains.iter().filter(move |domain| domain.0 == link);
    let best = |link: i32| of(link).filter_map(|domain| matches(&domain.1)).max();
    // resolved.conf(5), systemd.network(5): DNSDefaultRoute=.
    let is_for_every_name = |link: i32| link == 0 || !of(link).any(|domain| domain.2);
    let mut ranked: Vec<(Option<usize>, SocketAddr)> = Vec::new();
    for server in servers {
        let rank = best(server.0);
        if let Some(address) = address(server).filter(|_| rank.is_some() || is_for_every_name(server.0)) {
            ranked.push((rank, address));
        }
    }
    ranked.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    ranked.into_iter().map(|(_, address)| address).collect()
}

fn address((link, family, bytes): &Server) -> Option<SocketAddr> {
    if *family == libc::AF_INET {
        return Some((<[u8; 4]>::try_from(bytes.as_slice()).ok()?, PORT).into());
    }
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?);
    let scope = if ip.is_unicast_link_local() { u32::try_from(*link).unwrap_or(0) } else { 0 };
    Some(SocketAddrV6::new(ip, PORT, 0, scope).into())
}

/// Returns the servers as SetLinkDNS expects them: address family and bytes.
fn servers(settings: &Dns) -> Servers {
    settings
        .servers
        .iter()
        .map(|server| match server {
            IpAddr::V4(server) => (libc::AF_INET, server.octets().to_vec()),
            IpAddr::V6(server) => (libc::AF_INET6, server.octets().to_vec()),
        })
        .collect()
}

/// Returns the domains as SetLinkDomains expects them: the name, and whether it is for routing only. Servers
/// for every name get the root domain, which takes precedence over interfaces that are only default routes.
fn domains(settings: &Dns) -> Vec<(&str, bool)> {
    let search = settings.search.iter().map(|domain| (domain.as_str(), false));
    let routing = settings.routing.iter().map(|domain| (domain.as_str(), true));
    let mut domains: Vec<_> = search.chain(routing).collect();
    if settings.is_full() && !domains.contains(&(".", true)) {
        domains.push((".", true));
    }
    domains
}

/// Why a call failed. The first three variants are not always errors.
enum Failure {
    UnknownMethod,
    NoSuchLink,
    /// systemd-networkd manages the interface.
    Managed(DnsError),
    Final(DnsError),
}

impl From<Failure> for DnsError {
    fn from(failure: Failure) -> Self {
        let refused = |reason: &str, advice| Self::Refused {
            action: "change the DNS settings of an interface".to_owned(),
            reason: reason.to_owned(),
            advice,
        };
        match failure {
            Failure::UnknownMethod => refused("it does not know the method", "update systemd"),
            Failure::NoSuchLink => {
                refused("it knows no such interface", "see that it serves this network namespace")
            }
            Failure::Managed(error) | Failure::Final(error) => error,
        }
    }
}

fn failure(action: &str, error: &zbus::Error) -> Failure {
    let action = action.to_owned();
    let reason = error.to_string();
    match error {
        zbus::Error::FDO(error) => match &**error {
            fdo::Error::UnknownMethod(_) => Failure::UnknownMethod,
            fdo::Error::AccessDenied(reason)
            | fdo::Error::AuthFailed(reason)
            | fdo::Error::InteractiveAuthorizationRequired(reason) => {
                Failure::Final(DnsError::Denied { action, reason: reason.clone() })
            }
            _ => Failure::Final(DnsError::Bus { action, reason }),
        },
        zbus::Error::MethodError(name, text, _) => {
            let reason = text.clone().unwrap_or_else(|| name.to_string());
            match name.as_str() {
                "org.freedesktop.resolve1.NoSuchLink" => Failure::NoSuchLink,
                "org.freedesktop.resolve1.LinkBusy" => Failure::Managed(DnsError::Refused {
                    action,
                    reason,
                    advice: "systemd-networkd manages the interface: set DNS in its .network file, or set \
                             `Unmanaged=yes` there",
                }),
                _ => Failure::Final(DnsError::Refused {
                    action,
                    reason,
                    advice: "see the log of systemd-resolved",
                }),
            }
        }
        _ => Failure::Final(DnsError::Bus { action, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(servers: &[&str], search: &[&str], routing: &[&str]) -> Dns {
        let domains = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
        let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
        Dns { servers, search: domains(search), routing: domains(routing) }
    }

    #[test]
    fn servers_for_every_name_get_the_root_and_split_ones_do_not() {
        assert_eq!(domains(&settings(&["10.0.0.1"], &["a"], &[])), [("a", false), (".", true)]);
        assert_eq!(domains(&settings(&["10.0.0.1"], &["a"], &["b"])), [("a", false), ("b", true)]);
        assert_eq!(domains(&settings(&["10.0.0.1"], &[], &["b", "."])), [("b", true), (".", true)]);
        assert_eq!(domains(&settings(&[], &["a"], &[])), [("a", false)]);
    }

    #[test]
    fn others_with_the_same_domain_have_a_part_in_it() {
        let server = |link: i32| (link, libc::AF_INET, vec![192, 0, 2, 1]);
        let servers = [server(0), server(2), server(3), server(7)];
        let full = settings(&["10.0.0.1"], &["corp.example"], &[]);
        let split = settings(&["10.0.0.1"], &[], &["corp.example"]);
        for (link, domain, of_full, of_split) in [
            (2, ".", true, false),
            (0, ".", true, false),
            (2, "CORP.example.", true, true),
            // One that is longer than those of the tunnel is that link's.
            (2, "home.example", false, false),
            (7, ".", false, false),
            // A link without servers.
            (4, ".", false, false),
        ] {
            let routed = [(link, domain.to_owned(), true)];
            let is_rival = |settings| rivals(&servers, &routed, Some(7), settings).next().is_some();
            assert_eq!((is_rival(&full), is_rival(&split)), (of_full, of_split), "{link} {domain}");
            assert!(!is_rival(&settings(&[], &["corp.example"], &[])));
        }
    }

    #[test]
    fn a_name_goes_to_the_servers_of_its_longest_domain_first() {
        let server = |link: i32, last: u8| (link, libc::AF_INET, vec![192, 0, 2, last]);
        let servers =
            [server(0, 1), server(2, 2), server(3, 3), server(4, 4), (2, libc::AF_INET6, vec![0xfe; 16])];
        let domains = [(3, "corp.example".to_owned(), true), (2, "home.example".to_owned(), false)];
        let asked = |name| -> Vec<String> {
            in_order(&servers[..4], &domains, name).iter().map(|server| server.ip().to_string()).collect()
        };
        assert_eq!(asked("vpn.example.org"), ["192.0.2.1", "192.0.2.2", "192.0.2.4"]);
        assert_eq!(asked("gw.CORP.example."), ["192.0.2.3", "192.0.2.1", "192.0.2.2", "192.0.2.4"]);
        assert_eq!(asked("gw.home.example")[0], "192.0.2.2");
        assert_eq!(asked("notcorp.example"), ["192.0.2.1", "192.0.2.2", "192.0.2.4"]);
        let link_local = [&[0xfe, 0x80][..], &[0; 13], &[1]].concat();
        assert_eq!(address(&(2, libc::AF_INET6, link_local)).unwrap().to_string(), "[fe80::1%2]:53");
        assert_eq!(address(&(2, libc::AF_INET, vec![1, 2, 3])), None);
    }
}
