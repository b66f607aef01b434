//! The configuration format of wg(8): that of wg-quick without the keys of wg-quick and weft.

use std::path::Path;

use super::Endpoint;
use super::finish::{assign_prefixes, check_keys};
use super::problem::{ConfigErrors, Notice, Problem, Warning};
use super::reports::Reports;
use super::values;
use super::wg_quick::{self, Drafts, Format, WgQuickKeys};
use crate::device::{DeviceChange, PeerChange};

/// Parses the text of a file of wg(8). `source` is the name of the file in messages. Nothing is required but
/// the public key of a peer. Settings that the file does not give are not changed. All errors are collected.
pub fn parse_change(
    text: &str,
    source: &Path,
    wg_quick_keys: WgQuickKeys,
) -> Result<(DeviceChange<Endpoint>, Vec<Warning>), ConfigErrors> {
    let mut reports = Reports::new(source.into());
    let Drafts { interface, peers, .. } = wg_quick::read(text, Format::Wg(wg_quick_keys), &mut reports);
    // A list of all nodes of a mesh includes the interface's own key, which daemons ignore.
    check_keys(&peers, None, &mut reports);
    assign_prefixes(&peers, &mut reports);
    let peers = peers.into_iter().map(|draft| {
        Some(PeerChange {
            endpoint: draft.endpoint.value,
            settings: draft.settings,
            replace_allowed_ips: !draft.has_signs,
            allowed_ips: draft.allowed_ips.into_iter().map(|(_, change)| change).collect(),
            ..PeerChange::new(draft.public_key.value?)
        })
    });
    let settings = interface.map(|draft| draft.settings).unwrap_or_default();
    let peers: Option<Vec<_>> = peers.collect();
    reports.conclude(peers.map(|peers| DeviceChange { settings, replace_peers: false, peers }))
}

/// Adds the items of a list of AllowedIPs to the change of a peer. A list without signs replaces the
/// allowed-ips of the peer; if at least one item has a sign, all items are changes to them.
pub fn add_allowed_ips<E>(
    change: &mut PeerChange<E>,
    list: &str,
    mut warn: impl FnMut(Notice),
) -> Result<(), Problem> {
    change.replace_allowed_ips = true;
    for item in list.split(',').map(str::trim).filter(|_| !list.trim().is_empty()) {
        let item = values::allowed_ip_item(item)?;
        item.host_bits().into_iter().for_each(&mut warn);
        change.replace_allowed_ips &= !item.has_sign;
        change.allowed_ips.push(item.change());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
