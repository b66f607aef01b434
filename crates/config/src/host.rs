//! Settings of the system around the tunnel: name servers, commands, firewall, metrics, speed tests.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_tunnel::PublicKey;

use super::{Domain, Endpoint, InterfaceName};
use crate::metrics::MetricsConfig;
use crate::printable::is_unprintable;

/// Settings of the system around the tunnel. The default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// Name servers and domains.
    pub dns: Dns,
    /// Commands, in the order of the file.
    pub hooks: Vec<Hook>,
    /// Whether the state of the interface is written into the file when it goes down.
    pub save_config: bool,
    /// Which packets may leave the machine outside the tunnel.
    pub kill_switch: KillSwitch,
    /// Whether the outer datagrams forbid fragmentation, so that the path's MTU is learnt.
    pub path_mtu_discovery: bool,
    /// Whether the MSS of TCP connections that are forwarded through the tunnel is clamped to its MTU.
    pub mss_clamp: bool,
    /// Where metrics and the status page are served, and the host names that requests may use.
    pub metrics: MetricsConfig,
    /// Whether peers may run speed tests with this machine.
    pub speed_test: bool,
    /// What the files of new peers say of this end.
    pub clients: ClientSettings,
    /// Keys with a file that could not be used and that PreUp may write; see [`parse_to_start`].
    ///
    /// [`parse_to_start`]: super::parse_to_start
    pub keys_to_come: Vec<KeyToCome>,
}

/// What the files of new peers say of this end (`# weft: Endpoint`, `PeerDNS`, `PeerAllowedIPs`). It changes
/// nothing of the interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// Where peers reach this end.
    pub endpoint: Option<Endpoint>,
    /// The name servers and search domains of peers.
    pub dns: Dns,
    /// What peers send through the tunnel, host bits cleared; empty: everything.
    pub allowed_ips: Vec<IpNet>,
}

/// A key with a file that PreUp has to write. The setting is absent until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyToCome {
    /// The private key.
    Private,
    /// The preshared key of this peer.
    Preshared(PublicKey),
}

impl HostConfig {
    /// Returns the commands of one phase, in the order of the file.
    pub fn hooks_of(&self, phase: HookPhase) -> impl Iterator<Item = &Hook> {
        self.hooks.iter().filter(move |hook| hook.phase == phase)
    }
}

/// Name servers and the domains that they are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dns {
    /// Addresses of name servers.
    pub servers: Vec<IpAddr>,
    /// Domains that are appended to short names.
    pub search: Vec<Domain>,
    /// Domains that are looked up at these servers only (`~domain`), without the tilde; `.` stands for every
    /// domain.
    pub routing: Vec<Domain>,
}

impl Dns {
    /// Reports whether there are no servers and no domains.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.search.is_empty() && self.routing.is_empty()
    }

    /// Reports whether the servers answer for some domains only.
    pub fn is_split(&self) -> bool {
        !self.routing.is_empty() && !self.routing.iter().any(Domain::is_root)
    }

    /// Reports whether the servers answer for every name.
    pub fn is_full(&self) -> bool {
        !self.servers.is_empty() && !self.is_split()
    }
}

impl fmt::Display for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.servers.iter().map(IpAddr::to_string);
        let routing = self.routing.iter().map(|domain| format!("~{domain}"));
        let all: Vec<String> =
            servers.chain(self.search.iter().map(Domain::to_string)).chain(routing).collect();
        f.write_str(&all.join(", "))
    }
}

/// Which packets may leave the machine outside the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KillSwitch {
    /// All packets.
    #[default]
    Off,
    /// The tunnel's own packets, DHCP, and the ICMP that neighbour discovery and path MTU discovery need.
    On,
    /// As `On`, and packets to private, link-local and multicast addresses, but not DNS to other name servers
    /// than the configured ones.
    AllowLocal,
}

impl fmt::Display for KillSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
            Self::AllowLocal => "allow-local",
        })
    }
}

/// When a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HookPhase {
    /// After the device is created, before anything is set on it.
    PreUp,
    /// After everything is set up.
    PostUp,
    /// Before anything is undone.
    PreDown,
    /// After the device is removed.
    PostDown,
}

impl HookPhase {
    /// Returns the key in the file.
    pub const fn key(self) -> &'static str {
        match self {
            Self::PreUp => "PreUp",
            Self::PostUp => "PostUp",
            Self::PreDown => "PreDown",
            Self::PostDown => "PostDown",
        }
    }
}

/// A command of PreUp, PostUp, PreDown or PostDown. Its `Debug` output hides text that looks like a key.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hook {
    /// When it runs.
    #[serde(rename = "stage")]
    pub phase: HookPhase,
    /// The command line for the shell; `%i` is not replaced yet.
    pub command: String,
    /// The configuration file that contains it.
    pub file: PathBuf,
    /// Its line in that file, from 1.
    pub line: usize,
}

impl Hook {
    pub(super) fn new(phase: HookPhase, command: &str, file: &Path, line: usize) -> Self {
        Self { phase, command: command.to_owned(), file: file.to_owned(), line }
    }

    /// Returns the command line with each `%i` replaced by the interface's name.
    pub fn command_for(&self, interface: &InterfaceName) -> String {
        self.command.replace("%i", interface.as_str())
    }

    /// Returns its place in the file, as `FILE:LINE: KEY`.
    pub fn place(&self) -> String {
        format!("{}:{}: {}", self.file.display(), self.line, self.phase.key())
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.place(), without_keys(&self.command))
    }
}

/// Returns `text` with `…` in place of every run that is long enough to be a key in base64 or hex (40
/// characters), and with what is not printable escaped.
pub fn without_keys(text: &str) -> String {
    const MOST_OF_A_KEY: usize = 40;
    let is_key = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '/';
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run = rest.find(|c| !is_key(c)).unwrap_or(rest.len());
        if run >= MOST_OF_A_KEY {
            shown.push('…');
        } else if run > 0 {
            shown.push_str(&rest[..run]);
        } else {
            shown.extend(first.escape_debug().filter(|_| is_unprintable(first)));
            shown.extend(Some(first).filter(|c| !is_unprintable(*c)));
        }
        rest = &rest[run.max(first.len_utf8())..];
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routing_domain_splits_unless_it_is_the_root() {
        let domains = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
        let servers = vec!["10.0.0.1".parse().unwrap()];
        let full = Dns { servers, search: domains(&["a.example"]), routing: vec![] };
        assert!(full.is_full() && !full.is_split());
        let split = Dns { routing: domains(&["corp.example"]), ..full.clone() };
        assert!(split.is_split() && !split.is_full());
        let root = Dns { routing: domains(&["corp.example", "."]), ..full.clone() };
        assert!(root.is_full() && !root.is_split());
        let search = Dns { servers: vec![], ..full };
        assert!(!search.is_full() && !search.is_split() && !search.is_empty());
    }

    #[test]
    fn the_interface_stands_for_every_percent_i() {
        let hook = Hook::new(HookPhase::PostUp, "ip link show %i && echo %i%%i", Path::new("a.conf"), 3);
        assert_eq!(hook.command_for(&"wg0".parse().unwrap()), "ip link show wg0 && echo wg0%wg0");
        assert_eq!(hook.place(), "a.conf:3: PostUp");
    }

    #[test]
    fn a_command_is_shown_without_its_keys() {
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        let hook = Hook::new(HookPhase::PreUp, &format!("wg set %i peer {key}"), Path::new("a.conf"), 3);
        assert_eq!(format!("{hook:?}"), "a.conf:3: PreUp: \"wg set %i peer …=\"");
        for text in ["/usr/local/lib/weft/up-and-running.sh %i", "ü iptables -A FORWARD -i %i -j ACCEPT"] {
            assert_eq!(without_keys(text), text);
        }
        assert_eq!(without_keys("a\tb\u{1b}"), "a\\tb\\u{1b}");
    }
}
