//! Translates what a plan asks of the name servers and the packet filter into calls of the modules that set
//! them.

use std::time::Instant;

use weft_config::{Dns, InterfaceName, KillSwitch};

use super::step::Firewall;
use super::{HostError, netns, programs};
use crate::dns::{self, Choice};
use crate::firewall::{self, Contents, FirewallError, FullTunnel, Local, OwnPackets, Recognises, Rules};
use crate::routes::{Family, Link};

/// The number of other programs' rules that are named in the log; the rest are counted.
const NAMED_RULES: usize = 20;

/// Returns the record that is written before the name servers are set. It undoes them.
pub(super) fn dns_record(
    resolver: &dns::System,
    link: &Link,
    wanted: &Dns,
) -> Result<dns::Record, HostError> {
    let failed = |error: dns::DnsError| HostError::Outside(Box::new(error.into()));
    let method = resolver.method(Choice::Auto).map_err(failed)?;
    Ok(dns::Record { method, index: link.index, settings: wanted.clone() })
}

/// Sets the name servers of a record, in place of those of the record `before`.
pub(super) fn apply_dns(
    resolver: &dns::System,
    link: &Link,
    record: &dns::Record,
    before: Option<&dns::Record>,
) -> Result<(), HostError> {
    let failed = |error: dns::DnsError| HostError::Outside(Box::new(error.into()));
    if let (Some(before), Ok(name)) = (before, link.name.parse::<InterfaceName>())
        && before.method != record.method
    {
        undo_dns(resolver, &name, before)?;
    }
    // The record is kept by the caller.
    resolver.apply(record.method, link, &record.settings).map(drop).map_err(failed)
}

/// Undoes the name servers of a record. It is no error if they are gone already.
pub(super) fn undo_dns(
    resolver: &dns::System,
    interface: &InterfaceName,
    record: &dns::Record,
) -> Result<(), HostError> {
    resolver.undo_recorded(interface, record).map_err(|error| match error {
        lost @ dns::DnsError::Lost { .. } => HostError::LostDns(Box::new(lost)),
        error => HostError::Outside(Box::new(error.into())),
    })
}

/// Removes from /etc/resolv.conf, or from the registry of Windows, what daemons that have ended left there.
/// Returns their interfaces.
pub fn repair_dns() -> Vec<String> {
    let repaired = dns::System::default().repair().unwrap_or_else(|error| {
        tracing::warn!("{error}");
        Vec::new()
    });
    if !repaired.is_empty() {
        tracing::info!(
            interfaces = repaired.join(", "),
            "repaired the name servers that daemons left behind"
        );
    }
    repaired
}

/// Replaces the firewall rules of the interface. Without nft(8), with one that cannot set them, or with a
/// kernel without nftables, a tunnel works without its rules: returns a sentence about what it lacks. A kill
/// switch does not work without, and fails. `present`: what was set before.
pub(super) fn apply_firewall(
    interface: &InterfaceName,
    wanted: &Firewall,
    present: &Contents,
) -> Result<Option<String>, HostError> {
    let applied = firewall::apply(&rules(interface, wanted, firewall::RECOGNISES));
    applied.map_or_else(|error| lack(error, wanted, present).map(Some), |()| Ok(None))
}

/// Returns what a tunnel lacks without its rules, or the error if it does not work without.
fn lack(error: FirewallError, wanted: &Firewall, present: &Contents) -> Result<String, HostError> {
    // Rules that were set before are there, and are still to be removed.
    let hangs = matches!(error, FirewallError::Timeout { .. }) && *present == Contents::default();
    if wanted.kill_switch == KillSwitch::Off && (error.is_lack() || hangs) {
        return Ok(format!("{error}; {}", without_rules(wanted.full_tunnel.is_some(), wanted.mss_clamp)));
    }
    Err(failed(error))
}

/// Says what a tunnel lacks without its firewall rules: those of a full tunnel, and the clamp of segments.
pub fn without_rules(full_tunnel: bool, mss_clamp: bool) -> String {
    let full_tunnel = full_tunnel.then_some(
        "hosts of the local network can send to the tunnel's addresses, and where the reverse-path filter is strict \
         what the peers send is dropped",
    );
    let mss_clamp = mss_clamp.then_some("connections of TCP through the tunnel may stall (MssClamp)");
    let lacks: Vec<&str> = full_tunnel.into_iter().chain(mss_clamp).collect();
    format!("without it {}", lacks.join(", and "))
}

/// Returns what the packet filter has of the rules that were just set. What cannot be read is not compared.
pub(super) fn firewall_contents(interface: &InterfaceName, wanted: &Firewall) -> Contents {
    firewall::contents(&rules(interface, wanted, firewall::RECOGNISES)).unwrap_or_else(|error| {
        tracing::debug!("{error}");
        Contents::default()
    })
}

/// Returns how many rules another program has added to those of the interface; `None` if these are not there
/// as they were set.
pub(super) fn rules_added(
    interface: &InterfaceName,
    wanted: &Firewall,
    set: &Contents,
) -> Result<Option<usize>, HostError> {
    firewall::rules_added(&rules(interface, wanted, firewall::RECOGNISES), set).map_err(failed)
}

/// Returns the commands that add again what another program has added to these rules, if there is something.
pub(super) fn rules_of_others(set: &Contents) -> Option<String> {
    let others = firewall::rules_of_others(set).unwrap_or_else(|error| {
        tracing::debug!("{error}");
        Vec::new()
    });
    let named: Vec<String> = others.iter().take(NAMED_RULES).map(|command| format!("`{command}`")).collect();
    let more = others.len() - named.len();
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!others.is_empty()).then(|| named.join(", ") + &more)
}

/// Removes the firewall rules of the interface.
pub(super) fn remove_firewall(interface: &InterfaceName) -> Result<(), HostError> {
    firewall::remove(interface).map_err(failed)
}

/// Returns a record of the name servers of an interface that does not exist, if resolvconf has some.
pub(super) fn unrecorded_dns(interface: &InterfaceName) -> Option<dns::Record> {
    if netns::has_device(interface.as_str()) { None } else { dns::System::default().unrecorded(interface) }
}

/// Returns what is known without a record of the firewall rules of an interface that does not exist or is
/// weft's, or on systems where they outlive the machine.
pub(super) fn unrecorded_firewall(
    interface: &InterfaceName,
    is_own: bool,
) -> Result<Option<Firewall>, HostError> {
    // A device of this name may be that of another program, with its rules.
    if !is_own && !firewall::OUTLIVE_THE_MACHINE && netns::has_device(interface.as_str()) {
        return Ok(None);
    }
    let present = programs::event(programs::OF_AN_EVENT, Instant::now(), || firewall::present(interface));
    match present {
        Ok(present) if present.is_empty() => Ok(None),
        Ok(present) => {
            let kill_switch = if present.blocked.is_some() { KillSwitch::On } else { KillSwitch::Off };
            Ok(Some(Firewall { kill_switch, ..Firewall::default() }))
        }
        Err(error) if firewall::OUTLIVE_THE_MACHINE => Err(failed(error)),
        // The program that would say it hangs: it is told where the rules cannot be removed.
        Err(FirewallError::Timeout { .. }) => {
            Ok(Some(Firewall { kill_switch: KillSwitch::On, ..Firewall::default() }))
        }
        Err(error) => {
            tracing::debug!("{error}");
            Ok(None)
        }
    }
}

fn failed(error: FirewallError) -> HostError {
    HostError::Outside(Box::new(weft_config::exit::Error::new(error.exit_code(), error)))
}

fn rules(interface: &InterfaceName, wanted: &Firewall, recognises: Recognises) -> Rules {
    let mark = wanted.mark.filter(|_| recognises == Recognises::Marks).map_or(0, std::num::NonZeroU32::get);
    let own = || match recognises {
        Recognises::Programs => OwnPackets::Program,
        _ => OwnPackets::new(mark, wanted.endpoints.iter().copied()),
    };
    let kill_switch = match wanted.kill_switch {
        KillSwitch::Off => None,
        KillSwitch::On => Some(firewall::KillSwitch { own: own(), local: Local::Blocked }),
        KillSwitch::AllowLocal => {
            let local = Local::Allowed { dns: wanted.dns_servers.clone() };
            Some(firewall::KillSwitch { own: own(), local })
        }
    };
    Rules {
        interface: interface.clone(),
        full_tunnel: wanted.full_tunnel.as_ref().map(|tunnel| FullTunnel {
            mark: tunnel.mark,
            addresses: tunnel.addresses.clone(),
            ipv4: tunnel.families.contains(&Family::V4),
            ipv6: tunnel.families.contains(&Family::V6),
        }),
        kill_switch,
        mss_clamp: wanted.mss_clamp,
        mtu: wanted.mtu,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn the_tunnels_own_packets_are_named_by_what_the_packet_filter_sees() {
        let mark = NonZeroU32::new(7);
        let endpoints = BTreeSet::from(["192.0.2.1:51820".parse().unwrap()]);
        let wanted = Firewall {
            kill_switch: KillSwitch::On,
            mark,
            endpoints: endpoints.clone(),
            ..Firewall::default()
        };
        let own = |recognises| rules(&"wg0".parse().unwrap(), &wanted, recognises).kill_switch.unwrap().own;
        assert_eq!(own(Recognises::Marks), OwnPackets::Marked(mark.unwrap()));
        assert_eq!(own(Recognises::Endpoints), OwnPackets::To(endpoints));
        assert_eq!(own(Recognises::Programs), OwnPackets::Program);
    }

    #[test]
    fn a_tunnel_comes_up_without_the_rules_of_a_program_that_hangs() {
        let hangs = || FirewallError::Timeout { action: "set the rules".to_owned(), program: "nft" };
        let wanted = Firewall { mss_clamp: true, ..Firewall::default() };
        let said = lack(hangs(), &wanted, &Contents::default()).unwrap();
        assert!(said.contains("nft did not end in time") && said.contains("MssClamp"), "{said}");
        let wanted = Firewall { kill_switch: KillSwitch::On, ..wanted };
        assert!(lack(hangs(), &wanted, &Contents::default()).is_err());
    }
}
