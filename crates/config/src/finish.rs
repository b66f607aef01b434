//! Checks that need the whole file: missing keys, and sections that contradict each other.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::path::Path;
use std::time::SystemTime;

use ipnet::IpNet;
use weft_tunnel::{PrivateKey, PublicKey};

use super::HookPhase;
use super::keys::{InterfaceSetting, PeerSetting};
use super::problem::{ConfigErrors, Location, Notice, Problem};
use super::reports::Reports;
use super::wg_quick::{self, Drafts, Format, InterfaceDraft, PeerDraft};
use super::{Config, Endpoint, Interface, InterfaceName, KeyToCome, MIN_MTU_IPV6, Parsed, Peer, Table};
use crate::device::AllowedIpChange;

/// Parses the text of a wg-quick file. `source` is the name of the file in messages.
///
/// Keys are case-insensitive. `#` begins a comment, except in commands, where the shell reads it. A byte
/// order mark and CRLF are accepted. A comment line `# weft: KEY = VALUE` is a setting of weft, which other
/// programs ignore. All errors are collected; no error ends the parsing.
pub fn parse(text: &str, source: &Path, interface: InterfaceName) -> Result<Parsed, ConfigErrors> {
    parse_with(text, source, interface, KeyFiles::Needed)
}

/// Parses the text as [`parse`] does, for a start, which runs PreUp first: a key file that is missing or has
/// no key is only warned of if the file has a PreUp, which may write it.
pub fn parse_to_start(text: &str, source: &Path, interface: InterfaceName) -> Result<Parsed, ConfigErrors> {
    parse_with(text, source, interface, KeyFiles::WrittenByPreUp)
}

/// Parses the text as [`parse`] does, for an edit of its peers: a key file that cannot be used is only warned
/// of, because the service may have the key as a credential.
pub fn parse_to_edit(text: &str, source: &Path, interface: InterfaceName) -> Result<Parsed, ConfigErrors> {
    parse_with(text, source, interface, KeyFiles::MayBeElsewhere)
}

/// Whether key files have to be usable.
#[derive(Clone, Copy)]
enum KeyFiles {
    Needed,
    /// Not if there is a PreUp.
    WrittenByPreUp,
    MayBeElsewhere,
}

fn parse_with(
    text: &str,
    source: &Path,
    interface: InterfaceName,
    key_files: KeyFiles,
) -> Result<Parsed, ConfigErrors> {
    let mut reports = Reports::new(source.into());
    let drafts = wg_quick::read(text, Format::WgQuick, &mut reports);
    let has_pre_up = drafts.interface.as_ref().is_some_and(|draft| draft.host.has_hook(HookPhase::PreUp));
    let are_to_come = match key_files {
        KeyFiles::Needed => false,
        KeyFiles::WrittenByPreUp => has_pre_up,
        KeyFiles::MayBeElsewhere => true,
    };
    let keys_to_come = keys_to_come(&drafts, &reports.settle_key_files(are_to_come));
    let config = finish(interface, drafts, &mut reports);
    let config = config.map(|mut config| {
        config.interface.host.keys_to_come = keys_to_come;
        config
    });
    reports.conclude(config).map(|(config, warnings)| Parsed { config, warnings })
}

/// Returns the keys with a key file in one of these lines. A line that a later one overrides has no effect.
fn keys_to_come(drafts: &Drafts, lines: &[Location]) -> Vec<KeyToCome> {
    let is_in = |line: Option<usize>| lines.iter().any(|at| Some(at.line) == line);
    let private = drafts.interface.iter().filter(|draft| is_in(draft.lines.of("PrivateKey")));
    let preshared = drafts.peers.iter().filter(|peer| is_in(peer.lines.of("PresharedKey")));
    let preshared = preshared.filter_map(|peer| peer.public_key.value.map(KeyToCome::Preshared));
    private.map(|_| KeyToCome::Private).chain(preshared).collect()
}

/// Returns the checked configuration; `None` only if an error was reported.
fn finish(name: InterfaceName, drafts: Drafts, reports: &mut Reports) -> Option<Config> {
    let Drafts { interface, peers, .. } = drafts;
    if interface.is_none() {
        reports.error(1, Some("[Interface]"), Problem::NoInterface);
    }
    let own_key = interface.as_ref().and_then(|draft| draft.settings.private_key.as_ref()?.as_ref());
    let own_key = own_key.map(PrivateKey::public_key);
    let table = interface.as_ref().and_then(|draft| draft.table.value);
    // If the value of Table was rejected, it is unknown whether there are routes.
    let table_is_wrong = interface.as_ref().is_some_and(|draft| draft.table.line > 0 && table.is_none());
    let table = table.unwrap_or_default();

    let now = SystemTime::now();
    for peer in &peers {
        let expiry = peer.report.expires.filter(|expiry| expiry.is_over(now));
        if let (Some(expiry), Some(line)) = (expiry, peer.lines.of(PeerSetting::Expires.text())) {
            reports.warning(line, PeerSetting::Expires.text(), Notice::Expired { expiry });
        }
    }
    check_keys(&peers, own_key, reports);
    let mut owners = assign_prefixes(&peers, reports);
    if table == Table::Auto
        && !table_is_wrong
        && let Some(draft) = &interface
        && owners.keys().any(|prefix| prefix.prefix_len() == 0)
    {
        check_mark(draft, reports);
    }
    let mtu_line = interface.as_ref().map_or(0, |draft| draft.mtu.line);
    let interface = interface.map(|draft| finish_interface(name, draft, table, reports));
    let peers: Option<Vec<Peer>> =
        peers.into_iter().enumerate().map(|(index, draft)| finish_peer(index, draft, &mut owners)).collect();
    let mut config = Config { interface: interface?, peers: peers?, expired: Vec::new() };
    config.end_peers(now);
    if let Some(mtu) = config.interface.mtu
        && mtu < MIN_MTU_IPV6
        && config.needs_ipv6()
    {
        reports.error(mtu_line, Some("MTU"), Problem::MtuForIpv6 { mtu });
    }
    Some(config)
}

/// Maps a prefix to the index of its peer and the line that lists it.
pub(super) type Owners = HashMap<IpNet, (usize, usize)>;

pub(super) fn check_keys(peers: &[PeerDraft], own_key: Option<PublicKey>, reports: &mut Reports) {
    let mut lines: HashMap<PublicKey, usize> = HashMap::new();
    for peer in peers {
        let line = peer.public_key.line;
        match peer.public_key.value {
            None => {}
            Some(key) if Some(key) == own_key => reports.error(line, Some("PublicKey"), Problem::OwnKey(key)),
            Some(key) => {
                let first = *lines.entry(key).or_insert(line);
                if first != line {
                    reports.error(line, Some("PublicKey"), Problem::PeerTwice { key, first });
                }
            }
        }
    }
}

/// Assigns each prefix to the last peer that lists it.
pub(super) fn assign_prefixes(peers: &[PeerDraft], reports: &mut Reports) -> Owners {
    let mut owners = Owners::new();
    for (index, peer) in peers.iter().enumerate() {
        for &(line, item) in &peer.allowed_ips {
            let AllowedIpChange::Add(prefix) = item else { continue };
            match owners.insert(prefix, (index, line)) {
                Some((other, first)) if other == index => {
                    reports.warning(line, "AllowedIPs", Notice::Duplicate { prefix, first });
                }
                Some((_, first)) => reports.warning(line, "AllowedIPs", Notice::TakenOver { prefix, first }),
                None => {}
            }
        }
    }
    owners
}

/// Reports a mark that is the number of a kernel table: it is the number of the default route's table as
/// well.
fn check_mark(draft: &InterfaceDraft, reports: &mut Reports) {
    if let (Some(mark), Some(line)) = (draft.settings.fw_mark, draft.lines.of("FwMark"))
        && (253..=255).contains(&mark)
    {
        reports.error(line, Some("FwMark"), Problem::MarkOfAKernelTable { mark });
    }
}

fn finish_interface(
    name: InterfaceName,
    draft: InterfaceDraft,
    table: Table,
    reports: &mut Reports,
) -> Interface {
    // A command may set the interface's key: `PostUp = wg set %i private-key FILE`.
    if draft.lines.of("PrivateKey").is_none() && !draft.host.has_hook(HookPhase::PostUp) {
        reports.error(draft.line, Some("PrivateKey"), Problem::MissingPrivateKey);
    }
    let mut lines: HashMap<IpNet, usize> = HashMap::new();
    let mut ipv6_lines: HashMap<Ipv6Addr, usize> = HashMap::new();
    let mut addresses = Vec::new();
    for (line, prefix) in draft.addresses {
        if let Some(&first) = lines.get(&prefix) {
            reports.warning(line, "Address", Notice::Duplicate { prefix, first });
            continue;
        }
        lines.insert(prefix, line);
        addresses.push(prefix);
        if let IpNet::V6(prefix) = prefix
            && let Some(first) = ipv6_lines.insert(prefix.addr(), line)
        {
            let address = prefix.addr();
            reports.error(line, Some("Address"), Problem::AddressTwice { address, first });
        }
    }
    let mtu = draft.mtu.value.flatten();
    let settings = draft.settings.applied();
    let told = &draft.host.client_endpoint;
    if let Some(port) = told.value.as_ref().map(Endpoint::port).filter(|_| settings.listen_port == 0) {
        reports.warning(told.line, InterfaceSetting::Endpoint.text(), Notice::RandomPort { port });
    }
    Interface { name, settings, addresses, mtu, table, host: draft.host.finish() }
}

fn finish_peer(index: usize, draft: PeerDraft, owners: &mut Owners) -> Option<Peer> {
    let mut allowed_ips = Vec::with_capacity(draft.allowed_ips.len());
    for (line, item) in draft.allowed_ips {
        let AllowedIpChange::Add(prefix) = item else { continue };
        // The owner is removed, so that a prefix that occurs twice in a line is added once.
        if owners.get(&prefix) == Some(&(index, line)) {
            owners.remove(&prefix);
            allowed_ips.push(prefix);
        }
    }
    Some(Peer {
        public_key: draft.public_key.value?,
        endpoint: draft.endpoint.value,
        allowed_ips,
        settings: draft.settings.applied(),
        report: draft.report,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the errors about a file with these lines in [Interface] and [Peer].
    fn errors(interface: &str, peer: &str) -> String {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{interface}\n[Peer]\n\
             PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n{peer}\n"
        );
        let parsed = parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap());
        parsed.err().map(|errors| errors.to_string()).unwrap_or_default()
    }

    #[test]
    fn an_mtu_fits_the_families_of_addresses_and_routes() {
        let wrong = "wg0.conf:3: MTU: 1279 is less than the 1280 that IPv6 needs";
        for (interface, peer, expected) in [
            ("MTU = 1279\nAddress = fd00::1/64", "", wrong),
            ("MTU = 1279\nAddress = 10.0.0.1/24", "AllowedIPs = 10.0.0.2/32, fd00::2/128", wrong),
            ("MTU = 1279\nAddress = 10.0.0.1/24", "AllowedIPs = 0.0.0.0/0, ::/0", wrong),
            ("MTU = 1279\nTable = 7", "AllowedIPs = ::/0", wrong),
            // Without routes, what the peers may send is no matter of the device.
            ("MTU = 1279\nTable = off", "AllowedIPs = ::/0", ""),
            ("MTU = 1279\nAddress = 10.0.0.1/24", "AllowedIPs = 0.0.0.0/0", ""),
            ("MTU = 1280\nAddress = fd00::1/64", "AllowedIPs = ::/0", ""),
        ] {
            let errors = errors(interface, peer);
            let is_right = if expected.is_empty() { errors.is_empty() } else { errors.starts_with(expected) };
            assert!(is_right, "{interface} {peer}: {errors}");
        }
    }

    #[test]
    fn an_ipv6_address_has_one_prefix_length() {
        let twice = errors("Address = fd00::1/64\nAddress = fd00::1/128", "");
        let expected = "wg0.conf:4: Address: fd00::1 stands in line 3 with another prefix length";
        assert!(twice.starts_with(expected), "{twice}");
        for fine in ["Address = 10.0.0.1/24, 10.0.0.1/32", "Address = fd00::1/64, fd00::1/64, fd00::2/64"] {
            assert_eq!(errors(fine, ""), "", "{fine}");
        }
    }
}
