//! Reads the text of a file in the format of wg-quick or of wg(8): lines to drafts of sections.

use std::collections::HashMap;

use ipnet::IpNet;
use weft_tunnel::PublicKey;

use super::dialect;
use super::keys::{InterfaceKey, InterfaceSetting, Origin, PeerKey, PeerSetting};
use super::lexer::{self, Header, Line, Section, compact};
use super::printable::is_unprintable;
use super::problem::{self, Notice, Problem};
use super::remark;
use super::reports::Reports;
use super::suggest::{closest, shown_key};
use super::{ClientSettings, Dns, Endpoint, Hook, HookPhase, HostConfig, KillSwitch, Table, values};
use crate::device::AllowedIpChange;
use crate::metrics::{Address, HostName, MetricsConfig};
use crate::settings::{InterfaceSettingsChange, PeerSettingsChange, ReportSettings};

/// The keys that a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Those of wg-quick, key files and the settings of weft in comments.
    WgQuick,
    /// Those of wg(8). Items of AllowedIPs may have signs, and comments mean nothing.
    Wg(WgQuickKeys),
}

/// How a file of wg(8) treats the keys that only wg-quick defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WgQuickKeys {
    /// They are errors, as in wg(8).
    Refuse,
    /// They are ignored.
    PassOver,
}

impl Format {
    fn defines(self, origin: Origin) -> bool {
        self == Self::WgQuick || origin == Origin::Wg
    }

    /// Whether a key of this origin is reported as one of the other section. The keys of wg-quick are known
    /// to every reader.
    fn knows(self, origin: Origin) -> bool {
        self.defines(origin) || origin == Origin::WgQuick
    }
}

/// Reads all lines. Errors are collected in `reports`; none ends the reading.
pub(super) fn read(text: &str, format: Format, reports: &mut Reports) -> Drafts {
    let mut drafts = Drafts { format, interface: None, peers: Vec::new() };
    let mut position = Position::Above;
    let has_settings = format == Format::WgQuick;
    reports.foreign = problem::foreign(text, &reports.file);
    for line in lexer::lines(text) {
        if has_settings {
            remark::look_at(line, reports);
        }
        if let Some(setting) = line.weft_setting().filter(|_| has_settings) {
            drafts.read_setting(position, line.number, setting, reports);
        } else if let Some(name) = line.friendly_name().filter(|_| has_settings) {
            if line.hides_in_name() {
                reports.warning(line.number, "friendly_name", Notice::HiddenInName);
            }
            drafts.name_peer(position, name);
        } else if let Some(header) = line.header() {
            position = drafts.open_section(line, header, reports);
        } else if !line.text().is_empty() {
            drafts.read_key(position, line, reports);
        }
    }
    drafts.close_peer(reports);
    drafts
}

/// Where a line stands.
#[derive(Clone, Copy, PartialEq)]
enum Position {
    /// Above the first section.
    Above,
    In(Section),
    /// In a section that was rejected as a whole: its keys are skipped without further errors.
    Rejected,
}

fn title(section: Section) -> &'static str {
    match section {
        Section::Interface => "Interface",
        Section::Peer => "Peer",
    }
}

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
    pub(super) settings: InterfaceSettingsChange,
    /// The last line of each of these settings.
    pub(super) lines: Lines,
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
    speed_test: Slot<bool>,
    pub(super) client_endpoint: Slot<Endpoint>,
    client_dns: Dns,
    client_allowed_ips: Vec<IpNet>,
}

impl HostDraft {
    pub(super) fn has_hook(&self, phase: HookPhase) -> bool {
        self.hooks.iter().any(|hook| hook.phase == phase)
    }

    pub(super) fn finish(self) -> HostConfig {
        HostConfig {
            dns: self.dns,
            hooks: self.hooks,
            save_config: self.save_config.value.unwrap_or_default(),
            kill_switch: self.kill_switch.value.unwrap_or_default(),
            path_mtu_discovery: self.path_mtu_discovery.value.unwrap_or_default(),
            mss_clamp: self.mss_clamp.value.unwrap_or_default(),
            metrics: MetricsConfig { address: self.metrics.value.flatten(), hosts: self.metrics_hosts },
            keys_to_come: Vec::new(),
            speed_test: self.speed_test.value.unwrap_or_default(),
            clients: ClientSettings {
                endpoint: self.client_endpoint.value,
                dns: self.client_dns,
                allowed_ips: self.client_allowed_ips,
            },
        }
    }
}

/// A [Peer] section as read so far.
#[derive(Default)]
pub(super) struct PeerDraft {
    pub(super) line: usize,
    pub(super) public_key: Slot<PublicKey>,
    pub(super) endpoint: Slot<Endpoint>,
    pub(super) allowed_ips: Vec<(usize, AllowedIpChange)>,
    /// Whether an item of `allowed_ips` has a sign.
    pub(super) has_signs: bool,
    pub(super) settings: PeerSettingsChange,
    pub(super) report: ReportSettings,
    /// The last line of each of these settings.
    pub(super) lines: Lines,
}

/// The last line of each key that has been read.
#[derive(Default)]
pub(super) struct Lines(HashMap<&'static str, usize>);

impl Lines {
    /// Warns if there was a line with the setting already: the last line is in effect.
    fn note(&mut self, setting: &'static str, line: usize, key: &str, reports: &mut Reports) {
        if let Some(first) = self.0.insert(setting, line) {
            reports.warning(line, key, Notice::Repeated { first });
        }
    }

    pub(super) fn of(&self, setting: &str) -> Option<usize> {
        self.0.get(setting).copied()
    }
}

/// Everything read so far.
pub(super) struct Drafts {
    format: Format,
    pub(super) interface: Option<InterfaceDraft>,
    pub(super) peers: Vec<PeerDraft>,
}

impl Drafts {
    fn open_section(&mut self, line: Line<'_>, header: Header<'_>, reports: &mut Reports) -> Position {
        let number = line.number;
        match header {
            Header::Known(section) => {
                match (section, &self.interface) {
                    (Section::Interface, None) => {
                        self.interface = Some(InterfaceDraft { line: number, ..Default::default() });
                    }
                    // wg-quick and wg(8) accept a second section too.
                    (Section::Interface, Some(first)) if self.format == Format::WgQuick => {
                        let notice = Notice::SecondInterface { first: first.line };
                        reports.warning(number, "[Interface]", notice);
                    }
                    (Section::Interface, Some(_)) => {}
                    (Section::Peer, _) => {
                        self.close_peer(reports);
                        self.peers.push(PeerDraft { line: number, ..Default::default() });
                    }
                }
                Position::In(section)
            }
            Header::Unknown(name) => {
                let shown = shown_key(name).map(|_| line.text());
                reports.error(number, shown, Problem::UnknownSection);
                Position::Rejected
            }
            Header::Unclosed => {
                reports.error(number, None, Problem::NotALine);
                Position::Rejected
            }
        }
    }

    /// Reports what the last peer lacks. In a file that is no configuration the peers are not kept, which
    /// would fill the memory.
    fn close_peer(&mut self, reports: &mut Reports) {
        let Some(peer) = self.peers.last() else { return };
        if peer.public_key.line == 0 {
            reports.error(peer.line, Some("PublicKey"), Problem::MissingPublicKey);
        }
        if reports.is_hopeless() {
            self.peers.clear();
        }
    }

    fn name_peer(&mut self, position: Position, name: String) {
        if let Some(peer) = self.peers.last_mut().filter(|_| position == Position::In(Section::Peer)) {
            peer.report.friendly_name = Some(name);
        }
    }

    fn read_key(&mut self, position: Position, line: Line<'_>, reports: &mut Reports) {
        let number = line.number;
        let Some((written, value)) = line.key_value() else {
            return reports.error(number, None, Problem::NotALine);
        };
        let section = match position {
            Position::Rejected => return,
            Position::Above => return reports.error(number, shown_key(written), Problem::OutsideSection),
            Position::In(section) => section,
        };
        let format = self.format;
        match (section, &mut self.interface, self.peers.last_mut()) {
            (Section::Interface, Some(interface), _)
                if let Some(key) = interface_key(written).filter(|key| format.knows(key.origin())) =>
            {
                match format {
                    Format::Wg(WgQuickKeys::PassOver) if !format.defines(key.origin()) => {}
                    Format::Wg(WgQuickKeys::Refuse) if !format.defines(key.origin()) => {
                        reports.error(number, Some(key.text()), Problem::WgQuickKey);
                    }
                    Format::Wg(_) | Format::WgQuick => interface.set(key, value, line, reports),
                }
            }
            (Section::Peer, _, Some(peer))
                if let Some(key) = peer_key(written).filter(|key| format.defines(key.origin())) =>
            {
                peer.set(key, value, number, format, reports);
            }
            _ => {
                let (key, problem) = unknown_key(section, written, value, format);
                reports.error(number, key, problem);
            }
        }
    }

    fn read_setting(&mut self, position: Position, line: usize, text: &str, reports: &mut Reports) {
        let Some((written, value)) = text.split_once('=') else {
            return reports.error(line, None, Problem::NotASetting);
        };
        let (written, value) = (written.trim(), value.trim());
        let section = match position {
            Position::Rejected => return,
            Position::Above => return reports.error(line, shown_key(written), Problem::OutsideSection),
            Position::In(section) => section,
        };
        match (section, &mut self.interface, self.peers.last_mut()) {
            (Section::Interface, Some(interface), _) if let Some(key) = InterfaceSetting::find(written) => {
                interface.host.set(key, value, line, reports);
            }
            (Section::Peer, _, Some(peer)) if let Some(key) = PeerSetting::find(written) => {
                peer.set_own(key, value, line, reports);
            }
            _ => {
                let (key, problem) = unknown_setting(section, written);
                reports.error(line, key, problem);
            }
        }
    }
}

impl HostDraft {
    fn set(&mut self, setting: InterfaceSetting, text: &str, line: usize, reports: &mut Reports) {
        let key = setting.text();
        match setting {
            InterfaceSetting::KillSwitch => {
                self.kill_switch.set(values::kill_switch(text), line, key, reports);
            }
            InterfaceSetting::PathMtuDiscovery => {
                self.path_mtu_discovery.set(values::on_off(text), line, key, reports);
            }
            InterfaceSetting::MssClamp => self.mss_clamp.set(values::on_off(text), line, key, reports),
            InterfaceSetting::SpeedTest => self.speed_test.set(values::on_off(text), line, key, reports),
            InterfaceSetting::Metrics => self.metrics.set(values::metrics(text), line, key, reports),
            InterfaceSetting::MetricsHost => {
                for name in text.split(',') {
                    self.metrics_hosts.extend(reports.ok(line, key, values::metrics_host(name.trim())));
                }
            }
            InterfaceSetting::Endpoint => {
                self.client_endpoint.set(values::endpoint(&compact(text)), line, key, reports);
            }
            InterfaceSetting::PeerDns => {
                for item in lexer::items(text) {
                    reports.ok(line, key, values::add_dns(item, &mut self.client_dns));
                }
            }
            InterfaceSetting::PeerAllowedIps => {
                for item in lexer::items(text) {
                    let net = reports.ok(line, key, values::allowed_ip(item));
                    self.client_allowed_ips.extend(net.map(|net| net.trunc()));
                }
            }
        }
    }
}

impl InterfaceDraft {
    fn add_hook(&mut self, phase: HookPhase, line: Line<'_>, reports: &mut Reports) {
        let command = values::command(line.command().unwrap_or_default());
        if let Some(command) = reports.ok(line.number, phase.key(), command).flatten() {
            self.host.hooks.push(Hook::new(phase, command, &reports.file, line.number));
        }
    }

    fn set(&mut self, key: InterfaceKey, text: &str, line: Line<'_>, reports: &mut Reports) {
        let (number, name) = (line.number, key.text());
        match key {
            InterfaceKey::PrivateKey | InterfaceKey::PrivateKeyFile => {
                let in_file = key == InterfaceKey::PrivateKeyFile;
                self.lines.note(InterfaceKey::PrivateKey.text(), number, name, reports);
                let value = reports.secret(text, in_file, number, name, values::private_key);
                self.settings.private_key = value.map(Some);
            }
            InterfaceKey::ListenPort => {
                self.lines.note(name, number, name, reports);
                self.settings.listen_port = reports.ok(number, name, values::listen_port(&compact(text)));
            }
            InterfaceKey::FwMark => {
                self.lines.note(name, number, name, reports);
                self.settings.fw_mark = reports.ok(number, name, values::fw_mark(&compact(text)));
            }
            InterfaceKey::Mtu => self.mtu.set(values::mtu(text), number, name, reports),
            InterfaceKey::Table => self.table.set(values::table(text), number, name, reports),
            InterfaceKey::SaveConfig => {
                self.host.save_config.set(values::true_false(text), number, name, reports);
            }
            InterfaceKey::Dns => {
                for item in lexer::items(text) {
                    let added = values::add_dns(item, &mut self.host.dns);
                    reports.ok(number, name, added);
                }
            }
            InterfaceKey::Address => {
                for item in lexer::items(text) {
                    let address = reports.ok(number, name, values::address(item));
                    if let Some(notice) = address.and_then(values::no_host) {
                        reports.warning(number, name, notice);
                    }
                    self.addresses.extend(address.map(|address| (number, address)));
                }
            }
            InterfaceKey::PreUp => self.add_hook(HookPhase::PreUp, line, reports),
            InterfaceKey::PostUp => self.add_hook(HookPhase::PostUp, line, reports),
            InterfaceKey::PreDown => self.add_hook(HookPhase::PreDown, line, reports),
            InterfaceKey::PostDown => self.add_hook(HookPhase::PostDown, line, reports),
        }
    }
}

impl PeerDraft {
    fn set(&mut self, key: PeerKey, text: &str, line: usize, format: Format, reports: &mut Reports) {
        let name = key.text();
        match key {
            PeerKey::PublicKey => {
                self.public_key.set(values::public_key(&compact(text)), line, name, reports);
            }
            PeerKey::PresharedKey | PeerKey::PresharedKeyFile => {
                self.lines.note(PeerKey::PresharedKey.text(), line, name, reports);
                let in_file = key == PeerKey::PresharedKeyFile;
                self.settings.preshared_key =
                    reports.secret(text, in_file, line, name, values::preshared_key);
            }
            PeerKey::Endpoint => {
                let text = compact(text);
                let value = values::endpoint(&text);
                let notice = value.as_ref().ok().and_then(|endpoint| values::unbracketed(&text, endpoint));
                self.endpoint.set(value, line, name, reports);
                if let Some(notice) = notice {
                    reports.warning(line, name, notice);
                }
            }
            PeerKey::PersistentKeepalive => {
                self.lines.note(name, line, name, reports);
                self.settings.persistent_keepalive =
                    reports.ok(line, name, values::persistent_keepalive(&compact(text)));
            }
            // As in wg(8), an empty value means no prefixes.
            PeerKey::AllowedIps if text.is_empty() => {}
            PeerKey::AllowedIps => {
                for item in compact(text).split(',') {
                    let item = match format {
                        Format::WgQuick => values::allowed_ip(item).map(values::AllowedIpItem::unsigned),
                        Format::Wg(_) => values::allowed_ip_item(item),
                    };
                    let Some(item) = reports.ok(line, name, item) else { continue };
                    if let Some(notice) = item.host_bits() {
                        reports.warning(line, name, notice);
                    }
                    self.has_signs |= item.has_sign;
                    self.allowed_ips.push((line, item.change()));
                }
            }
        }
    }

    fn set_own(&mut self, setting: PeerSetting, text: &str, line: usize, reports: &mut Reports) {
        let key = setting.text();
        self.lines.note(key, line, key, reports);
        let limits = self.settings.limits.get_or_insert_default();
        match setting {
            PeerSetting::RateToPeer => limits.to_peer = reports.ok(line, key, values::rate(text)).flatten(),
            PeerSetting::RateFromPeer => {
                limits.from_peer = reports.ok(line, key, values::rate(text)).flatten();
            }
            PeerSetting::Expires => {
                self.report.expires = reports.ok(line, key, values::expiry(text)).flatten();
            }
            PeerSetting::Expected => self.report.expected = reports.ok(line, key, values::on_off(text)),
        }
    }
}

/// Finds a key of [Interface]. As in wg(8), white space within its keys does not count.
fn interface_key(written: &str) -> Option<InterfaceKey> {
    let compacted = || InterfaceKey::find(&compact(written)).filter(|key| key.origin() == Origin::Wg);
    InterfaceKey::find(written).or_else(compacted)
}

/// Finds a key of [Peer]. As in wg(8), white space within its keys does not count.
fn peer_key(written: &str) -> Option<PeerKey> {
    let compacted = || PeerKey::find(&compact(written)).filter(|key| key.origin() == Origin::Wg);
    PeerKey::find(written).or_else(compacted)
}

fn unknown_key<'a>(
    section: Section,
    written: &'a str,
    value: &str,
    format: Format,
) -> (Option<&'a str>, Problem) {
    let elsewhere = match section {
        Section::Interface => peer_key(written).filter(|key| format.knows(key.origin())).map(PeerKey::text),
        Section::Peer => {
            interface_key(written).filter(|key| format.knows(key.origin())).map(InterfaceKey::text)
        }
    };
    if let Some(key) = elsewhere {
        return (Some(key), wrong_section(section));
    }
    let shown = shown_key(written);
    if let Some((program, advice)) = dialect::origin_of(written) {
        return (shown, Problem::ForeignKey { program, advice });
    }
    let interface = InterfaceKey::ALL.iter().filter(|key| format.defines(key.origin()));
    let peer = PeerKey::ALL.iter().filter(|key| format.defines(key.origin()));
    let keys = interface.map(|key| key.text()).chain(peer.map(|key| key.text()));
    let suggestion = shown.and_then(|written| closest(written, keys));
    let is_of_weft = suggestion.is_none() && format == Format::WgQuick;
    let problem =
        Some(written).filter(|_| is_of_weft).and_then(|written| without_mark(section, written, value));
    if let Some(problem) = problem {
        return (shown, problem);
    }
    (shown, Problem::UnknownKey { section: title(section), suggestion })
}

/// Returns what to write if a setting of weft has no mark, as it is written or mistyped.
fn without_mark(section: Section, written: &str, value: &str) -> Option<Problem> {
    let settings = InterfaceSetting::ALL.iter().map(|key| (key.text(), Section::Interface));
    let settings = settings.chain(PeerSetting::ALL.iter().map(|key| (key.text(), Section::Peer)));
    let all: Vec<_> = settings.chain([(FRIENDLY_NAME, Section::Peer)]).collect();
    let key = closest(written, all.iter().map(|(key, _)| *key))?;
    let (_, belongs) = all.iter().find(|(known, _)| *known == key)?;
    let is_plain = !value.is_empty() && value.len() <= 40 && !value.contains(is_unprintable);
    let value = if is_plain && !problem::may_hold_a_key(value) { value } else { "…" };
    let mark = if key == FRIENDLY_NAME { "#" } else { "# weft:" };
    let belongs = (*belongs != section).then(|| title(*belongs));
    Some(Problem::WithoutMark { line: format!("{mark} {key} = {value}"), belongs })
}

/// The comment with the name of a peer.
const FRIENDLY_NAME: &str = "friendly_name";

fn unknown_setting(section: Section, written: &str) -> (Option<&str>, Problem) {
    let elsewhere = match section {
        Section::Interface => PeerSetting::find(written).map(PeerSetting::text),
        Section::Peer => InterfaceSetting::find(written).map(InterfaceSetting::text),
    };
    if let Some(key) = elsewhere {
        return (Some(key), wrong_section(section));
    }
    let shown = shown_key(written);
    let settings = InterfaceSetting::ALL
        .iter()
        .map(|key| key.text())
        .chain(PeerSetting::ALL.iter().map(|key| key.text()));
    let suggestion = shown.and_then(|written| closest(written, settings));
    (shown, Problem::UnknownSetting { suggestion })
}

/// The key belongs to the other section.
fn wrong_section(section: Section) -> Problem {
    let belongs = match section {
        Section::Interface => Section::Peer,
        Section::Peer => Section::Interface,
    };
    Problem::WrongSection { section: title(section), belongs: title(belongs) }
}
