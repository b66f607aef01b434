//! Reads the text of a wg-quick file: lines to drafts of sections.

use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey, Rate};
use zeroize::Zeroizing;

use super::key_file::{self, FileKey};
use super::problem::{ConfigError, ConfigErrors, Location, Notice, Problem, Warning};
use super::suggest::{closest, shown_key};
use super::{Dns, Endpoint, Hook, HostConfig, KillSwitch, Parsed, Stage, Table, values};
use crate::metrics::{Address, HostName, MetricsConfig};

/// Reads all lines. Errors are collected in `reports`; none ends the reading.
pub(super) fn read(text: &str, reports: &mut Reports) -> Drafts {
    let mut drafts = Drafts::default();
    let mut section = Section::None;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        let text = line.split('#').next().unwrap_or_default().trim();
        let line = Line { number: index + 1, text, with_comment: line };
        if let Some(setting) = setting_of(line.with_comment) {
            drafts.read_setting(section, line.number, setting, reports);
        } else if let Some(name) = friendly_name_of(line.with_comment) {
            drafts.name_peer(section, name);
        } else if line.text.starts_with('[') {
            section = drafts.open_section(&line, reports);
        } else if !line.text.is_empty() {
            drafts.read_key(section, &line, reports);
        }
    }
    drafts
}

/// A line of the file.
struct Line<'a> {
    number: usize,
    /// The line without its comment.
    text: &'a str,
    with_comment: &'a str,
}

/// Returns the text behind `# weft:` if the line is such a comment.
pub(super) fn setting_of(line: &str) -> Option<&str> {
    const MARK: &str = "weft:";
    let comment = line.trim_start().strip_prefix('#')?.trim_start();
    let is_setting = comment.get(..MARK.len()).is_some_and(|start| start.eq_ignore_ascii_case(MARK));
    is_setting.then(|| comment[MARK.len()..].trim())
}

/// Returns the text behind `# friendly_name =` if the line is such a comment. The text is only displayed:
/// control characters are removed, and at most 64 characters are kept.
pub(super) fn friendly_name_of(line: &str) -> Option<String> {
    const LONGEST: usize = 64;
    let (key, name) = line.trim_start().strip_prefix('#')?.split_once('=')?;
    let shown: String = name.trim().chars().filter(|c| !c.is_control()).take(LONGEST).collect();
    (key.trim().eq_ignore_ascii_case("friendly_name") && !shown.is_empty()).then_some(shown)
}

/// Returns the items of a list that wg-quick itself reads: it treats commas as white space.
pub(super) fn words_of(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ', '\t']).filter(|item| !item.is_empty())
}

#[derive(Clone, Copy, PartialEq)]
enum Section {
    None,
    Interface,
    Peer,
    /// A section that was rejected as a whole: its keys are skipped without further errors.
    Refused,
}

impl Section {
    fn name(self) -> &'static str {
        if self == Self::Peer { "Peer" } else { "Interface" }
    }
}

const INTERFACE_KEYS: [&str; 13] = [
    "PrivateKey",
    "PrivateKeyFile",
    "ListenPort",
    "FwMark",
    "Address",
    "MTU",
    "Table",
    "DNS",
    "SaveConfig",
    "PreUp",
    "PostUp",
    "PreDown",
    "PostDown",
];
const PEER_KEYS: [&str; 6] =
    ["PublicKey", "PresharedKey", "PresharedKeyFile", "AllowedIPs", "Endpoint", "PersistentKeepalive"];
/// weft's settings, in comments of [Interface].
const INTERFACE_SETTINGS: [&str; 5] =
    ["KillSwitch", "PathMtuDiscovery", "MssClamp", "Metrics", "MetricsHost"];
/// weft's settings, in comments of [Peer].
const PEER_SETTINGS: [&str; 2] = ["RateToPeer", "RateFromPeer"];

/// A single-valued key: the last line with it is in effect.
pub(super) struct Slot<T> {
    /// The line number, or 0 if no line has the key.
    pub(super) line: usize,
    /// `None` also if the value was rejected.
    pub(super) value: Option<T>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { line: 0, value: None }
    }
}

impl<T> Slot<T> {
    fn set(&mut self, value: Result<T, Problem>, line: usize, key: &str, reports: &mut Reports) {
        if self.line > 0 {
            reports.warning(line, key, Notice::Repeated { first: self.line });
        }
        *self = Self { line, value: reports.ok(line, key, value) };
    }
}

/// The [Interface] section as read so far.
#[derive(Default)]
pub(super) struct InterfaceDraft {
    pub(super) line: usize,
    pub(super) private_key: Slot<PrivateKey>,
    pub(super) listen_port: Slot<u16>,
    pub(super) fw_mark: Slot<u32>,
    pub(super) addresses: Vec<(usize, IpNet)>,
    pub(super) mtu: Slot<Option<u16>>,
    pub(super) table: Slot<Table>,
    pub(super) host: HostDraft,
}

/// The section's settings of the system around the tunnel.
#[derive(Default)]
pub(super) struct HostDraft {
    dns: Dns,
    hooks: Vec<Hook>,
    save_config: Slot<bool>,
    kill_switch: Slot<KillSwitch>,
    path_mtu_discovery: Slot<bool>,
    mss_clamp: Slot<bool>,
    metrics: Slot<Option<Address>>,
    metrics_hosts: Vec<HostName>,
}

impl HostDraft {
    pub(super) fn has_hook(&self, stage: Stage) -> bool {
        self.hooks.iter().any(|hook| hook.stage == stage)
    }
}

impl HostDraft {
    pub(super) fn finish(self) -> HostConfig {
        HostConfig {
            dns: self.dns,
            hooks: self.hooks,
            save_config: self.save_config.value.unwrap_or_default(),
            kill_switch: self.kill_switch.value.unwrap_or_default(),
            path_mtu_discovery: self.path_mtu_discovery.value.unwrap_or_default(),
            mss_clamp: self.mss_clamp.value.unwrap_or_default(),
            metrics: MetricsConfig { address: self.metrics.value.flatten(), hosts: self.metrics_hosts },
        }
    }
}

/// A [Peer] section as read so far.
#[derive(Default)]
pub(super) struct PeerDraft {
    pub(super) line: usize,
    pub(super) public_key: Slot<PublicKey>,
    pub(super) preshared_key: Slot<Option<PresharedKey>>,
    pub(super) endpoint: Slot<Endpoint>,
    pub(super) allowed_ips: Vec<(usize, IpNet)>,
    pub(super) persistent_keepalive: Slot<Option<std::num::NonZeroU16>>,
    pub(super) rate_to_peer: Slot<Option<Rate>>,
    pub(super) rate_from_peer: Slot<Option<Rate>>,
    pub(super) friendly_name: Option<String>,
}

/// Everything read so far.
#[derive(Default)]
pub(super) struct Drafts {
    pub(super) interface: Option<InterfaceDraft>,
    pub(super) peers: Vec<PeerDraft>,
}

impl Drafts {
    fn open_section(&mut self, line: &Line<'_>, reports: &mut Reports) -> Section {
        let name = line.text.trim_start_matches('[');
        let name = name.strip_suffix(']').map(|name| name.trim().to_ascii_lowercase());
        match (name.as_deref(), &self.interface) {
            (Some("interface"), None) => {
                self.interface = Some(InterfaceDraft { line: line.number, ..Default::default() });
                Section::Interface
            }
            // wg-quick and wg(8) accept a second section too.
            (Some("interface"), Some(first)) => {
                let notice = Notice::SecondInterface { first: first.line };
                reports.warning(line.number, "[Interface]", notice);
                Section::Interface
            }
            (Some("peer"), _) => {
                self.peers.push(PeerDraft { line: line.number, ..Default::default() });
                Section::Peer
            }
            (Some(name), _) => {
                let shown = shown_key(name).map(|_| line.text);
                reports.error(line.number, shown, Problem::UnknownSection);
                Section::Refused
            }
            (None, _) => {
                reports.error(line.number, None, Problem::NotALine);
                Section::Refused
            }
        }
    }

    fn name_peer(&mut self, section: Section, name: String) {
        if let Some(peer) = self.peers.last_mut().filter(|_| section == Section::Peer) {
            peer.friendly_name = Some(name);
        }
    }

    fn read_key(&mut self, section: Section, line: &Line<'_>, reports: &mut Reports) {
        let number = line.number;
        let Some((written, value)) = line.text.split_once('=') else {
            return reports.error(number, None, Problem::NotALine);
        };
        let (written, value) = (written.trim(), value.trim());
        // A `#` in a command is left to the shell.
        let whole = line.with_comment.split_once('=').map_or(value, |(_, whole)| whole.trim());
        let known =
            |keys: &[&'static str]| keys.iter().copied().find(|key| key.eq_ignore_ascii_case(written));
        let key = match section {
            Section::Refused => return,
            Section::None => return reports.error(number, shown_key(written), Problem::OutsideSection),
            Section::Interface => known(&INTERFACE_KEYS),
            Section::Peer => known(&PEER_KEYS),
        };
        let Some(key) = key else {
            let (key, problem) = unknown_key(section, written);
            return reports.error(number, key, problem);
        };
        match (section, &mut self.interface, self.peers.last_mut()) {
            (Section::Interface, Some(interface), _) => match Stage::of_key(key) {
                Some(stage) => interface.add_hook(stage, whole, number, reports),
                None => interface.set(key, value, number, reports),
            },
            (Section::Peer, _, Some(peer)) => peer.set(key, value, number, reports),
            _ => {}
        }
    }

    fn read_setting(&mut self, section: Section, line: usize, text: &str, reports: &mut Reports) {
        let Some((written, value)) = text.split_once('=') else {
            return reports.error(line, None, Problem::NotASetting);
        };
        let (written, value) = (written.trim(), value.trim());
        let known = |settings: &[&'static str]| {
            settings.iter().copied().find(|setting| setting.eq_ignore_ascii_case(written))
        };
        let (own, other, belongs) = match section {
            Section::Refused => return,
            Section::None => (None, None, ""),
            Section::Interface => (known(&INTERFACE_SETTINGS), known(&PEER_SETTINGS), "Peer"),
            Section::Peer => (known(&PEER_SETTINGS), known(&INTERFACE_SETTINGS), "Interface"),
        };
        match (own, section, &mut self.interface, self.peers.last_mut()) {
            (Some(key), Section::Interface, Some(interface), _) => {
                interface.host.set(key, value, line, reports);
            }
            (Some(key), Section::Peer, _, Some(peer)) => peer.set_own(key, value, line, reports),
            (None, Section::None, ..) => {
                reports.error(line, shown_key(written), Problem::OutsideSection);
            }
            _ if let Some(key) = other => {
                let problem = Problem::WrongSection { section: section.name(), belongs };
                reports.error(line, Some(key), problem);
            }
            _ => {
                let shown = shown_key(written);
                let settings = INTERFACE_SETTINGS.into_iter().chain(PEER_SETTINGS);
                let suggestion = shown.and_then(|written| closest(written, settings));
                reports.error(line, shown, Problem::UnknownSetting { suggestion });
            }
        }
    }
}

impl HostDraft {
    fn set(&mut self, key: &'static str, text: &str, line: usize, reports: &mut Reports) {
        match key {
            "KillSwitch" => self.kill_switch.set(values::kill_switch(text), line, key, reports),
            "PathMtuDiscovery" => self.path_mtu_discovery.set(values::on_off(text), line, key, reports),
            "MssClamp" => self.mss_clamp.set(values::on_off(text), line, key, reports),
            "Metrics" => self.metrics.set(values::metrics(text), line, key, reports),
            _ => {
                for name in text.split(',') {
                    self.metrics_hosts.extend(reports.ok(line, key, values::metrics_host(name.trim())));
                }
            }
        }
    }
}

impl InterfaceDraft {
    fn add_hook(&mut self, stage: Stage, command: &str, line: usize, reports: &mut Reports) {
        if let Some(command) = reports.ok(line, stage.key(), values::command(command)).flatten() {
            self.host.hooks.push(Hook::new(stage, command, &reports.file, line));
        }
    }

    fn set(&mut self, key: &'static str, text: &str, line: usize, reports: &mut Reports) {
        match key {
            "PrivateKey" => self.private_key.set(values::private_key(text), line, key, reports),
            "PrivateKeyFile" => {
                let read = reports.key_in_file(text, line, key);
                let value = read.and_then(|text| values::private_key(&text));
                self.private_key.set(value, line, key, reports);
            }
            "ListenPort" => self.listen_port.set(values::listen_port(text), line, key, reports),
            "FwMark" => self.fw_mark.set(values::fw_mark(text), line, key, reports),
            "MTU" => self.mtu.set(values::mtu(text), line, key, reports),
            "Table" => self.table.set(values::table(text), line, key, reports),
            "SaveConfig" => self.host.save_config.set(values::true_false(text), line, key, reports),
            "DNS" => {
                for item in words_of(text) {
                    let added = values::add_dns(item, &mut self.host.dns);
                    reports.ok(line, key, added);
                }
            }
            _ => {
                for item in words_of(text) {
                    let address = reports.ok(line, key, values::address(item));
                    self.addresses.extend(address.map(|address| (line, address)));
                }
            }
        }
    }
}

impl PeerDraft {
    fn set(&mut self, key: &'static str, text: &str, line: usize, reports: &mut Reports) {
        match key {
            "PublicKey" => self.public_key.set(values::public_key(text), line, key, reports),
            "PresharedKey" => self.preshared_key.set(values::preshared_key(text), line, key, reports),
            "PresharedKeyFile" => {
                let read = reports.key_in_file(text, line, key);
                let value = read.and_then(|text| values::preshared_key(&text));
                self.preshared_key.set(value, line, key, reports);
            }
            "Endpoint" => {
                let value = values::endpoint(text);
                let notice = value.as_ref().ok().and_then(|endpoint| values::unbracketed(text, endpoint));
                self.endpoint.set(value, line, key, reports);
                if let Some(notice) = notice {
                    reports.warning(line, key, notice);
                }
            }
            "PersistentKeepalive" => {
                self.persistent_keepalive.set(values::persistent_keepalive(text), line, key, reports);
            }
            // As in wg(8), an empty value means no prefixes.
            _ if text.is_empty() => {}
            _ => {
                for item in text.split(',') {
                    let Some(given) = reports.ok(line, key, values::allowed_ip(item.trim())) else {
                        continue;
                    };
                    if given.addr() != given.network() {
                        reports.warning(line, key, Notice::HostBits { given });
                    }
                    self.allowed_ips.push((line, given.trunc()));
                }
            }
        }
    }
}

impl PeerDraft {
    fn set_own(&mut self, key: &'static str, text: &str, line: usize, reports: &mut Reports) {
        let slot = if key == "RateToPeer" { &mut self.rate_to_peer } else { &mut self.rate_from_peer };
        slot.set(values::rate(text), line, key, reports);
    }
}

fn unknown_key(section: Section, written: &str) -> (Option<&str>, Problem) {
    let same = |key: &&str| key.eq_ignore_ascii_case(written);
    let (own, others, belongs) = match section {
        Section::Peer => (&PEER_KEYS[..], &INTERFACE_KEYS[..], "Interface"),
        _ => (&INTERFACE_KEYS[..], &PEER_KEYS[..], "Peer"),
    };
    if let Some(key) = others.iter().copied().find(same) {
        return (Some(key), Problem::WrongSection { section: section.name(), belongs });
    }
    let shown = shown_key(written);
    let suggestion = shown.and_then(|written| closest(written, own.iter().chain(others).copied()));
    (shown, Problem::UnknownKey { section: section.name(), suggestion })
}

/// Collects errors and warnings.
pub(super) struct Reports {
    file: Arc<Path>,
    errors: Vec<ConfigError>,
    more: usize,
    warnings: Vec<Warning>,
}

impl Reports {
    /// Limits the errors that are kept: a file that is not a configuration must not fill the memory.
    const MAX_ERRORS: usize = 100;

    pub(super) fn new(file: Arc<Path>) -> Self {
        Self { file, errors: Vec::new(), more: 0, warnings: Vec::new() }
    }

    fn at(&self, line: usize, key: Option<&str>) -> Location {
        Location { file: self.file.clone(), line, key: key.map(str::to_owned) }
    }

    pub(super) fn error(&mut self, line: usize, key: Option<&str>, problem: Problem) {
        if self.errors.len() < Self::MAX_ERRORS {
            let at = self.at(line, key);
            self.errors.push(ConfigError { at, problem });
        } else {
            self.more += 1;
        }
    }

    pub(super) fn warning(&mut self, line: usize, key: &str, notice: Notice) {
        let at = self.at(line, Some(key));
        self.warnings.push(Warning { at, notice });
    }

    fn key_in_file(&mut self, path: &str, line: usize, key: &str) -> Result<Zeroizing<String>, Problem> {
        let FileKey { text, readable } = key_file::read(path, &self.file)?;
        if let Some(mode) = readable {
            self.warning(line, key, Notice::ReadableKey { mode });
        }
        Ok(text)
    }

    fn ok<T>(&mut self, line: usize, key: &str, value: Result<T, Problem>) -> Option<T> {
        value.map_err(|problem| self.error(line, Some(key), problem)).ok()
    }

    pub(super) fn conclude(mut self, config: Option<super::Config>) -> Result<Parsed, ConfigErrors> {
        self.errors.sort_by_key(|error| error.at.line);
        self.warnings.sort_by_key(|warning| warning.at.line);
        match config {
            Some(config) if self.errors.is_empty() => Ok(Parsed { config, warnings: self.warnings }),
            _ => Err(ConfigErrors { errors: self.errors, more: self.more, warnings: self.warnings }),
        }
    }
}
