//! What `weft check --json` prints: docs/JSON.md.

use serde::Serialize;
use weft_config::{
    self as config, Config, ConfigErrors, Dns, Domain, Expiry, Hook, LoadError, Parsed, Peer, Warning,
};
use weft_tunnel::Rate;

use super::{Finding, public_key, texts};
use crate::output;

/// The output of `--json`. It contains no secrets.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    version: u32,
    target: &'a str,
    pub(super) ok: bool,
    pub(super) errors: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
    interface: Option<InterfaceReport>,
    peers: Vec<PeerReport>,
}

#[derive(Serialize)]
struct InterfaceReport {
    name: String,
    public_key: Option<String>,
    listen_port: u16,
    fw_mark: u32,
    addresses: Vec<String>,
    mtu: Option<u16>,
    table: String,
    dns: DnsReport,
    hooks: Vec<HookReport>,
    save_config: bool,
    kill_switch: String,
    path_mtu_discovery: bool,
    mss_clamp: bool,
    metrics: Option<String>,
    metrics_hosts: Vec<String>,
    speed_test: bool,
    peer_endpoint: Option<String>,
    peer_dns: DnsReport,
    peer_allowed_ips: Vec<String>,
}

#[derive(Serialize)]
struct DnsReport {
    servers: Vec<String>,
    search: Vec<String>,
    routing: Vec<String>,
}

/// A command, with anything that looks like a key removed.
#[derive(Serialize)]
struct HookReport {
    stage: &'static str,
    line: usize,
    command: String,
}

#[derive(Serialize)]
struct PeerReport {
    public_key: String,
    /// The display name.
    friendly_name: Option<String>,
    has_preshared_key: bool,
    endpoint: Option<String>,
    allowed_ips: Vec<String>,
    persistent_keepalive: Option<u16>,
    limit_to_peer_bits_per_second: Option<u64>,
    limit_from_peer_bits_per_second: Option<u64>,
    /// As written in the file.
    expected: Option<bool>,
    /// When the peer ends.
    expires: Option<Expiry>,
}

impl<'a> Report<'a> {
    pub(super) fn new(target: &'a str, loaded: &Result<Parsed, LoadError>) -> Self {
        let empty = Self {
            version: output::JSON_VERSION,
            target,
            ok: false,
            errors: Vec::new(),
            warnings: Vec::new(),
            interface: None,
            peers: Vec::new(),
        };
        match loaded {
            Ok(Parsed { config, warnings }) => Self {
                ok: true,
                warnings: findings(warnings),
                interface: Some(InterfaceReport::new(config)),
                peers: config.peers.iter().map(PeerReport::new).collect(),
                ..empty
            },
            Err(LoadError::Config(ConfigErrors { errors, more: _, warnings })) => Self {
                errors: errors.iter().map(|error| Finding::new(&error.at, &error.problem)).collect(),
                warnings: findings(warnings),
                ..empty
            },
            Err(error) => Self {
                errors: vec![Finding { file: None, line: None, key: None, message: error.to_string() }],
                ..empty
            },
        }
    }
}

fn findings(warnings: &[Warning]) -> Vec<Finding> {
    warnings.iter().map(|warning| Finding::new(&warning.at, &warning.notice)).collect()
}

impl InterfaceReport {
    fn new(config: &Config) -> Self {
        let interface = &config.interface;
        let host = &interface.host;
        Self {
            name: interface.name.to_string(),
            public_key: public_key(interface),
            listen_port: interface.settings.listen_port,
            fw_mark: interface.settings.fw_mark,
            addresses: texts(&interface.addresses),
            mtu: interface.mtu,
            table: interface.table.to_string(),
            dns: DnsReport::from(&host.dns),
            hooks: host.hooks.iter().map(HookReport::new).collect(),
            save_config: host.save_config,
            kill_switch: host.kill_switch.to_string(),
            path_mtu_discovery: host.path_mtu_discovery,
            mss_clamp: host.mss_clamp,
            metrics: host.metrics.address.as_ref().map(ToString::to_string),
            metrics_hosts: host.metrics.hosts.iter().map(|name| name.as_str().to_owned()).collect(),
            speed_test: host.speed_test,
            peer_endpoint: host.clients.endpoint.as_ref().map(ToString::to_string),
            peer_dns: DnsReport::from(&host.clients.dns),
            peer_allowed_ips: texts(&host.clients.allowed_ips),
        }
    }
}

impl From<&Dns> for DnsReport {
    fn from(dns: &Dns) -> Self {
        let texts = |domains: &[Domain]| domains.iter().map(ToString::to_string).collect();
        Self {
            servers: dns.servers.iter().map(ToString::to_string).collect(),
            search: texts(&dns.search),
            routing: texts(&dns.routing),
        }
    }
}

impl HookReport {
    fn new(hook: &Hook) -> Self {
        Self { stage: hook.phase.key(), line: hook.line, command: config::without_keys(&hook.command) }
    }
}

impl PeerReport {
    fn new(peer: &Peer) -> Self {
        Self {
            public_key: peer.public_key.to_string(),
            friendly_name: peer.report.friendly_name.clone(),
            has_preshared_key: peer.settings.preshared_key.is_some(),
            endpoint: peer.endpoint.as_ref().map(ToString::to_string),
            allowed_ips: texts(&peer.allowed_ips),
            persistent_keepalive: peer.settings.persistent_keepalive.map(Into::into),
            limit_to_peer_bits_per_second: peer.settings.limits.to_peer.map(Rate::bits_per_second),
            limit_from_peer_bits_per_second: peer.settings.limits.from_peer.map(Rate::bits_per_second),
            expected: peer.report.expected,
            expires: peer.report.expires,
        }
    }
}
