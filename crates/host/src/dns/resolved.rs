//! Sets DNS in systemd-resolved, over D-Bus (org.freedesktop.resolve1(5)).

use std::future::Future;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use weft_config::Dns;
use zbus::{Connection, fdo};

use super::super::{DnsError, Places};
use crate::netns;

const SERVICE: &str = "org.freedesktop.resolve1";
const OBJECT: &str = "/org/freedesktop/resolve1";
const MANAGER: &str = "org.freedesktop.resolve1.Manager";
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

/// A connection to systemd-resolved, with a separate runtime. No thread is started.
pub(super) struct Session {
    runtime: Runtime,
    connection: Connection,
    end: Instant,
}

/// Returns what systemd-resolved has in place of these servers of an interface, if it has others; it forgets
/// what another program reverts. If it does not run or does not answer, there is nothing to see.
pub(super) fn replaced(places: &Places, index: u32, settings: &Dns) -> Result<Option<String>, DnsError> {
    let Some(session) = Session::begin(places, false)? else { return Ok(None) };
    let found = session.servers_of(index)?;
    let is_other = |found: &Servers| !settings.servers.is_empty() && *found != servers(settings);
    Ok(found.filter(is_other).map(|found| match found.len() {
        0 => "no servers in systemd-resolved".to_owned(),
        _ => "other servers in systemd-resolved".to_owned(),
    }))
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

    /// Returns the servers of an interface, as [`servers`] gives them; `None` if systemd-resolved does not
    /// know it, or does not tell.
    fn servers_of(&self, index: u32) -> Result<Option<Servers>, DnsError> {
        // The first digit of a number is escaped in an object path: `_37` is 7.
        let link = format!("{OBJECT}/link/_3{index}");
        let get = self.connection.call_method(
            Some(SERVICE),
            link.as_str(),
            Some("org.freedesktop.DBus.Properties"),
            "Get",
            &("org.freedesktop.resolve1.Link", "DNS"),
        );
        let answer = within(&self.runtime, self.end, "read the DNS servers of an interface", get)?;
        let found = answer.and_then(|answer| {
            let value: zbus::OwnedVariant = answer.body().deserialize()?;
            Servers::try_from(value)
        });
        Ok(found
            .inspect_err(|error| tracing::debug!("cannot read the servers of link {index}: {error}"))
            .ok())
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

    /// Undoes what was set. It is no error if systemd-resolved does not know the interface.
    pub(super) fn revert(&self, interface: &str, index: u32) -> Result<(), DnsError> {
        let action = format!("revert the DNS settings of {interface}");
        match self.call(&action, "RevertLink", &(index.cast_signed(),)) {
            Err(Failure::NoSuchLink) => Ok(()),
            other => other.map_err(DnsError::from),
        }?;
        self.flush();
        Ok(())
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
    runtime
        .block_on(async { tokio::time::timeout_at(end.into(), work).await })
        .map_err(|_| DnsError::Timeout { action: action.to_owned(), after: TIMEOUT })
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

/// Why a call failed. The first two variants are not always errors.
enum Failure {
    UnknownMethod,
    NoSuchLink,
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
            Failure::Final(error) => error,
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
                "org.freedesktop.resolve1.LinkBusy" => Failure::Final(DnsError::Refused {
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
}
