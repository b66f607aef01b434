//! Writes the state of a running interface into the text of its file. Unchanged settings stay as they are
//! written, with their comments.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr as _;
use std::time::SystemTime;

use ipnet::IpNet;
use weft_tunnel::{PeerLimits, PublicKey, Rate};
use zeroize::Zeroizing;

use super::keys::PeerSetting;
use super::lexer::{self, Header, compact};
use super::{Endpoint, Expiry, key_file, values};
use crate::device::{DeviceState, PeerState};
use crate::endpoint;
use crate::keys::PeerKey;
use crate::settings::ReportSettings;

/// The state of an interface, as far as its file can express it.
#[derive(Clone, Debug)]
pub struct Saved<'a> {
    /// The path of the configuration file: relative paths of key files are looked up beside it.
    pub file: &'a Path,
    /// The keys, the port, the mark and the peers.
    pub device: &'a DeviceState,
    /// The device's addresses, except IPv6 link-local ones; `None` leaves the addresses of the file.
    pub addresses: Option<&'a [IpNet]>,
    /// The device's MTU in bytes, written only if the file sets an MTU.
    pub mtu: Option<u32>,
    /// The mark that was chosen because the file has none; it is not written.
    pub chosen_mark: u32,
    /// What stands in comments of the peers, and is written where the file lacks it.
    pub comments: &'a [PeerComments],
}

/// What weft knows of a peer from comments of its file, which other programs do not keep.
#[derive(Clone, Debug)]
pub struct PeerComments {
    /// The peer.
    pub public_key: PublicKey,
    /// Its name, its end, and whether it is missed.
    pub report: ReportSettings,
    /// Its rates.
    pub limits: PeerLimits,
}

impl PeerComments {
    /// Returns the lines, each with what tells whether a file has it.
    fn lines(&self) -> impl Iterator<Item = (Option<PeerSetting>, String)> {
        let Self { report, limits, .. } = self;
        // It comes from a daemon, which may be another user's: a line break would begin another setting.
        let name = report.friendly_name.as_deref().filter(|name| lexer::keeps_name(name));
        let name = name.map(|name| (None, lexer::line_of_name(name)));
        let rate = |rate: Option<Rate>| rate.map(|rate| rate.to_string());
        let settings = [
            (PeerSetting::RateToPeer, rate(limits.to_peer)),
            (PeerSetting::RateFromPeer, rate(limits.from_peer)),
            (PeerSetting::Expected, report.expected.map(|on| if on { "on" } else { "off" }.to_owned())),
            (PeerSetting::Expires, report.expires.map(|expiry| expiry.to_string())),
        ];
        let line = |(key, value): (PeerSetting, Option<String>)| {
            Some((Some(key), format!("# weft: {} = {}", key.text(), value?)))
        };
        name.into_iter().chain(settings.into_iter().filter_map(line))
    }
}

/// Returns the text with all differences from `saved` applied: settings changed, missing peers removed, and
/// new peers added.
pub fn edit(text: &str, saved: &Saved<'_>) -> Zeroizing<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut sections = split(text);
    merge_interfaces(&mut sections);
    let mut peers: HashMap<PublicKey, &PeerState> =
        saved.device.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    for section in &mut sections {
        section.enable_if_in_force(saved.device);
    }
    let now = SystemTime::now();
    sections.retain_mut(|section| match section.kind {
        Kind::Interface => {
            section.update_interface(saved);
            true
        }
        Kind::Peer => {
            let known = section.public_key().and_then(|key| peers.remove(&key));
            known.inspect(|peer| section.update_peer(peer, saved.file)).is_some() || section.has_ended(now)
        }
        Kind::Disabled | Kind::Other => true,
    });
    for peer in saved.device.peers.iter().filter(|peer| peers.contains_key(&peer.public_key)) {
        sections.push(Section::of_peer(peer, saved.file));
    }
    let comments: HashMap<_, _> = saved.comments.iter().map(|peer| (peer.public_key, peer)).collect();
    for section in sections.iter_mut().filter(|section| section.kind == Kind::Peer) {
        if let Some(peer) = section.public_key().and_then(|key| comments.get(&key)) {
            section.add_comments(peer);
        }
    }
    let lines = sections.iter().flat_map(|section| &section.lines).map(Line::text);
    // The capacity is reserved at once: a string that grows leaves copies of the keys in memory.
    let end = line_end(text);
    let room = lines.clone().map(|line| line.len() + end.len()).sum();
    let mut edited = Zeroizing::new(String::with_capacity(room));
    for line in lines {
        edited.push_str(line);
        edited.push_str(end);
    }
    edited
}

/// The end of lines in this file.
pub(super) fn line_end(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Interface,
    Peer,
    /// A peer, each line of which has the mark of one that is disabled.
    Disabled,
    /// Lines above the first section, or in an unknown section.
    Other,
}

fn is_link_local(net: &IpNet) -> bool {
    matches!(net.addr(), std::net::IpAddr::V6(address) if address.is_unicast_link_local())
}

pub(super) enum Line<'a> {
    Kept(&'a str),
    New(Zeroizing<String>),
}

impl Line<'_> {
    fn text(&self) -> &str {
        match self {
            Self::Kept(text) => text,
            Self::New(text) => text,
        }
    }

    fn is_empty(&self) -> bool {
        self.text().trim().is_empty()
    }

    /// Reports whether it is a plain comment: neither a setting of weft nor a friendly name, nor a part of a
    /// peer that is disabled.
    fn is_comment(&self) -> bool {
        let line = lexer::Line::new(0, self.text());
        self.text().trim_start().starts_with('#')
            && !self.is_disabled()
            && line.weft_setting().is_none()
            && line.friendly_name().is_none()
    }

    fn header(&self) -> Option<Header<'_>> {
        lexer::Line::new(0, self.text()).header()
    }

    fn is_disabled(&self) -> bool {
        lexer::Line::new(0, self.text()).disabled().is_some()
    }

    /// Reports whether it is the header of a peer that is disabled.
    fn opens_disabled(&self) -> bool {
        let header =
            lexer::Line::new(0, self.text()).disabled().map(|line| lexer::Line::new(0, line).header());
        header == Some(Some(Header::Known(lexer::Section::Peer)))
    }

    /// Returns the value, if the line has this key.
    fn value_of(&self, key: &str) -> Option<&str> {
        let (written, value) = lexer::Line::new(0, self.text()).key_value()?;
        compact(written).eq_ignore_ascii_case(key).then_some(value)
    }
}

pub(super) struct Section<'a> {
    pub(super) kind: Kind,
    pub(super) lines: Vec<Line<'a>>,
}

/// Splits the text into sections. Comments above a section belong to it.
pub(super) fn split(text: &str) -> Vec<Section<'_>> {
    let mut sections = vec![Section { kind: Kind::Other, lines: Vec::new() }];
    // A carriage return without a newline would be the end of a line for the next save.
    for line in text.lines().map(|line| line.trim_end_matches('\r')) {
        let line = Line::Kept(line);
        let kind = line.header().map(|header| match header {
            Header::Known(lexer::Section::Interface) => Kind::Interface,
            Header::Known(lexer::Section::Peer) => Kind::Peer,
            Header::Unknown(_) | Header::Unclosed => Kind::Other,
        });
        let is_loose = line.is_empty() || line.is_comment() || line.is_disabled();
        let kind = match sections.last() {
            _ if line.opens_disabled() => Some(Kind::Disabled),
            // To the parser this line belongs to the section above.
            Some(above) if above.kind == Kind::Disabled && !is_loose => kind.or(Some(Kind::Other)),
            _ => kind,
        };
        let (Some(kind), Some(above)) = (kind, sections.last_mut()) else {
            if let Some(section) = sections.last_mut() {
                section.lines.push(line);
            }
            continue;
        };
        let mut lines = above.lines.split_off(own_lines(&above.lines));
        lines.push(line);
        sections.push(Section { kind, lines });
    }
    // Comments at the end of the file, below an empty line, belong to no section: they stay when the last
    // section is removed.
    if let Some(last) = sections.last_mut() {
        let own = own_lines(&last.lines);
        if own > 0 && last.lines.get(own - 1).is_some_and(Line::is_empty) {
            let lines = last.lines.split_off(own);
            sections.push(Section { kind: Kind::Other, lines });
        }
    }
    sections
}

/// Returns how many of these lines, which end where the next section begins, belong to their own section.
/// Trailing comments belong to the next section: those below the first empty line, or all of them if there is
/// none. A comment that is a setting or a friendly name belongs to its own section.
fn own_lines(lines: &[Line<'_>]) -> usize {
    let is_loose = |line: &Line<'_>| line.is_empty() || line.is_comment();
    let said = lines.iter().rposition(|line| !is_loose(line)).map_or(0, |last| last + 1);
    let loose = &lines[said..];
    let below = loose.iter().position(Line::is_empty).unwrap_or(0);
    let first = loose[below..].iter().position(Line::is_comment);
    first.map_or(lines.len(), |first| said + below + first)
}

/// Moves the lines of further [Interface] sections into the first, as the parser reads them.
fn merge_interfaces(sections: &mut Vec<Section<'_>>) {
    let Some(first) = sections.iter().position(|section| section.kind == Kind::Interface) else { return };
    let rest = sections.split_off(first + 1);
    for section in rest {
        if section.kind == Kind::Interface {
            let lines = section.lines.into_iter().filter(|line| line.header().is_none());
            sections[first].lines.extend(lines);
        } else {
            sections.push(section);
        }
    }
}

impl Section<'_> {
    fn of_peer(peer: &PeerState, file: &Path) -> Self {
        let new = |text: String| Line::New(Zeroizing::new(text));
        let lines = vec![
            new(String::new()),
            new("[Peer]".to_owned()),
            new(format!("PublicKey = {}", peer.public_key)),
        ];
        let mut section = Self { kind: Kind::Peer, lines };
        section.update_peer(peer, file);
        section
    }

    pub(super) fn public_key(&self) -> Option<PublicKey> {
        self.value("PublicKey").and_then(|value| PublicKey::from_str(&compact(value)).ok())
    }

    /// Returns the value in effect: the last one.
    fn value(&self, key: &str) -> Option<&str> {
        self.lines.iter().rev().find_map(|line| line.value_of(key))
    }

    /// Returns when the peer ends.
    pub(super) fn expiry(&self) -> Option<Expiry> {
        self.setting(PeerSetting::Expires).map(values::expiry)?.ok()?
    }

    /// Returns the value in effect of a setting of weft: the last one.
    fn setting(&self, setting: PeerSetting) -> Option<&str> {
        self.lines.iter().rev().find_map(|line| {
            let (key, value) = lexer::Line::new(0, line.text()).weft_setting()?.split_once('=')?;
            key.trim().eq_ignore_ascii_case(setting.text()).then_some(value.trim())
        })
    }

    /// Adds the comments that the peer lacks below its header.
    fn add_comments(&mut self, peer: &PeerComments) {
        let is_named =
            || self.lines.iter().any(|line| lexer::Line::new(0, line.text()).friendly_name().is_some());
        let is_there = |setting: &Option<PeerSetting>| match setting {
            Some(setting) => self.setting(*setting).is_some(),
            None => is_named(),
        };
        let missing = peer.lines().filter(|(setting, _)| !is_there(setting));
        let missing: Vec<Line<'_>> = missing.map(|(_, line)| Line::New(Zeroizing::new(line))).collect();
        let header = self.lines.iter().position(|line| line.header().is_some());
        let below = header.map_or(0, |header| header + 1);
        self.lines.splice(below..below, missing);
    }

    /// Reports whether the peer has ended: its absence from the tunnel is then no change to be saved.
    fn has_ended(&self, now: SystemTime) -> bool {
        self.expiry().is_some_and(|expiry| expiry.is_over(now))
    }

    /// Returns every item of AllowedIPs, host bits cleared.
    pub(super) fn allowed_ips(&self) -> BTreeSet<IpNet> {
        let values = self.lines.iter().filter_map(|line| line.value_of("AllowedIPs"));
        values
            .flat_map(|value| value.split(','))
            .filter_map(|item| values::allowed_ip(&compact(item)).ok())
            .map(|net| net.trunc())
            .collect()
    }

    /// Takes the marks of a disabled peer away that was let in at run time, as by wg(8): a second section
    /// would have its key and lack its comments. One with lines that the parser refuses stays as it is.
    fn enable_if_in_force(&mut self, device: &DeviceState) {
        if self.kind != Kind::Disabled {
            return;
        }
        let lines = self.lines.iter().map(|line| {
            let text = line.text();
            Line::New(Zeroizing::new(text.strip_prefix(lexer::DISABLED).unwrap_or(text).to_owned()))
        });
        let enabled = Self { kind: Kind::Peer, lines: lines.collect() };
        let Some(key) = enabled.public_key() else { return };
        if device.peers.iter().any(|peer| peer.public_key == key) && enabled.has_known_lines_alone() {
            *self = enabled;
        }
    }

    fn has_known_lines_alone(&self) -> bool {
        self.lines.iter().all(|line| {
            let line = lexer::Line::new(0, line.text());
            let is_known = line.key_value().is_some_and(|(key, _)| PeerKey::find(key).is_some());
            is_known || line.header().is_some() || line.text().trim().is_empty()
        })
    }

    fn update_interface(&mut self, saved: &Saved<'_>) {
        let settings = &saved.device.settings;
        let key = settings.private_key.as_ref().map(|key| key.to_base64());
        self.set_key("PrivateKey", "PrivateKeyFile", key.as_ref().map(|key| key.as_str()), saved.file);
        let port = self.value("ListenPort").and_then(|text| values::listen_port(&compact(text)).ok());
        if port.unwrap_or_default() != settings.listen_port {
            self.set("ListenPort", Some(settings.listen_port));
        }
        let mark = self.value("FwMark").and_then(|text| values::fw_mark(&compact(text)).ok());
        let mark = mark.unwrap_or_default();
        let is_chosen = mark == 0 && settings.fw_mark == saved.chosen_mark;
        if mark != settings.fw_mark && !is_chosen {
            let mark = Some(settings.fw_mark).filter(|mark| *mark != 0);
            self.set("FwMark", mark.map(|mark| format!("{mark:#x}")));
        }
        if let Some(addresses) = saved.addresses {
            let written = self.lines.iter().filter_map(|line| line.value_of("Address"));
            let written = written.flat_map(lexer::items).filter_map(|item| values::address(item).ok());
            let written: BTreeSet<IpNet> = written.collect();
            let mut kept = addresses.to_vec();
            // Link-local addresses of the file cannot be told from those of the kernel, so the file's are
            // kept.
            kept.extend(written.iter().filter(|net| is_link_local(net)));
            if written != kept.iter().copied().collect() {
                self.set_list("Address", &kept);
            }
        }
        if let (Some(text), Some(mtu)) = (self.value("MTU"), saved.mtu)
            && !text.is_empty()
            && text != mtu.to_string()
        {
            self.set("MTU", Some(mtu));
        }
    }

    fn update_peer(&mut self, peer: &PeerState, file: &Path) {
        let key = peer.settings.preshared_key.as_ref().map(|key| key.to_base64());
        self.set_key("PresharedKey", "PresharedKeyFile", key.as_ref().map(|key| key.as_str()), file);
        if self.allowed_ips() != peer.allowed_ips.iter().copied().collect() {
            self.set_list("AllowedIPs", &peer.allowed_ips);
        }
        if let Some(endpoint) = peer.endpoint {
            let written = self.value("Endpoint").and_then(|text| values::endpoint(&compact(text)).ok());
            // Interface indices may change with a restart; interface names do not.
            let text = endpoint::text(&endpoint);
            let stays = match &written {
                Some(Endpoint::Address(address)) => *address == endpoint,
                // A host name stays valid when the peer's address changes. An address with an interface name
                // as its scope does not.
                Some(name @ Endpoint::Name { host, .. }) => !host.contains(':') || name.to_string() == text,
                None => false,
            };
            if !stays {
                self.set("Endpoint", Some(text));
            }
        }
        let keepalive = self.value("PersistentKeepalive");
        let keepalive =
            keepalive.and_then(|text| values::persistent_keepalive(&compact(text)).ok()).flatten();
        if keepalive != peer.settings.persistent_keepalive {
            self.set("PersistentKeepalive", peer.settings.persistent_keepalive);
        }
    }

    /// Sets a secret key. A key in a key file stays there, unless that file can be read and holds another
    /// key.
    fn set_key(&mut self, key: &str, in_file: &str, value: Option<&str>, file: &Path) {
        let last = |line: &Line<'_>| line.value_of(key).or(line.value_of(in_file)).is_some();
        let last = self.lines.iter().rev().find(|line| last(line));
        if let Some(path) = last.and_then(|line| line.value_of(in_file)) {
            match key_file::read(path, file) {
                Ok(read) if Some(read.text.as_str()) != value => {}
                _ => return,
            }
            let place = self.lines.iter().rposition(|line| line.value_of(in_file).is_some());
            if let (Some(place), Some(value)) = (place, value) {
                self.replace(place, Zeroizing::new(format!("{key} = {value}")));
            }
            self.lines.retain(|line| line.value_of(in_file).is_none());
        }
        if self.value(key) != value {
            self.set(key, value);
        }
    }

    /// Sets the value of a key; a comment behind the value stays. `None` removes the key.
    fn set(&mut self, key: &str, value: Option<impl Display>) {
        let Some(value) = value else {
            return self.lines.retain(|line| line.value_of(key).is_none());
        };
        let text = Zeroizing::new(format!("{key} = {value}"));
        match self.lines.iter().rposition(|line| line.value_of(key).is_some()) {
            Some(place) => self.replace(place, text),
            None => self.add(text),
        }
    }

    /// Replaces the text of a line; a comment behind it stays.
    fn replace(&mut self, place: usize, mut text: Zeroizing<String>) {
        if let Some((_, comment)) = self.lines[place].text().split_once('#') {
            text = Zeroizing::new(format!("{} # {}", *text, comment.trim_start()));
        }
        self.lines[place] = Line::New(text);
    }

    /// Sets the items of a key that may be repeated. They replace its first line, where a comment stays; its
    /// other lines are removed.
    fn set_list(&mut self, key: &str, nets: &[IpNet]) {
        if nets.is_empty() {
            return self.lines.retain(|line| line.value_of(key).is_none());
        }
        let list: Vec<String> = nets.iter().map(IpNet::to_string).collect();
        let text = Zeroizing::new(format!("{key} = {}", list.join(", ")));
        let Some(first) = self.lines.iter().position(|line| line.value_of(key).is_some()) else {
            return self.add(text);
        };
        self.replace(first, text);
        let mut place = 0..;
        self.lines.retain(|line| place.next() == Some(first) || line.value_of(key).is_none());
    }

    /// Adds a line below the last line that is not empty.
    fn add(&mut self, text: Zeroizing<String>) {
        let last = self.lines.iter().rposition(|line| !line.text().trim().is_empty());
        self.lines.insert(last.map_or(0, |last| last + 1), Line::New(text));
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
