//! Describes the rules in words, one line for each effect.

use std::fmt::{self, Display};

use weft_config::InterfaceName;

use super::{FullTunnel, KillSwitch, Local, OwnPackets, Recognises, Rules, full_tunnel_table, platform};

impl Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.steps().iter().enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            write!(f, "{separator}{step}")?;
        }
        Ok(())
    }
}

impl Rules {
    /// Returns what [`super::apply`] sets, one line each: the lines of [`Display`].
    pub fn steps(&self) -> Vec<String> {
        let mut steps = Vec::new();
        // Where there are no marks, a full tunnel has no rules.
        if let Some(full) = self.full_tunnel.as_ref().filter(|_| platform::RECOGNISES == Recognises::Marks) {
            steps.extend(full.steps(&self.interface));
        }
        let place = platform::own_place(&self.interface);
        if let Some(switch) = &self.kill_switch {
            steps.push(format!("{place}: {}", switch.in_words(&self.interface)));
        }
        if self.mss_clamp {
            let limit = match self.mtu {
                Some(mtu) => format!("its MTU of {mtu}"),
                None => "the MTU of its route".to_owned(),
            };
            steps.push(format!(
                "{place}: clamp the MSS of TCP forwarded through {} to {limit}",
                self.interface
            ));
        }
        steps
    }
}

impl FullTunnel {
    fn steps(&self, interface: &InterfaceName) -> Vec<String> {
        let families = [(false, self.ipv4), (true, self.ipv6)];
        let wanted = families.into_iter().filter(|(_, wanted)| *wanted);
        wanted
            .map(|(is_ipv6, _)| {
                let table = full_tunnel_table(interface, is_ipv6);
                let addresses: Vec<_> =
                    self.addresses.iter().filter(|address| address.is_ipv6() == is_ipv6).collect();
                let mark = format!("give answers to the tunnel's UDP packets its mark {:#x} back", self.mark);
                match addresses.is_empty() {
                    true => format!("nftables table {table}: {mark}"),
                    false => format!(
                        "nftables table {table}: take packets to {} through {interface} only, and {mark}",
                        list(addresses)
                    ),
                }
            })
            .collect()
    }
}

impl KillSwitch {
    fn in_words(&self, interface: &InterfaceName) -> String {
        let own = match &self.own {
            OwnPackets::Marked(mark) => format!(", UDP with the mark {mark:#x}"),
            OwnPackets::To(endpoints) if endpoints.is_empty() => String::new(),
            OwnPackets::To(endpoints) => format!(", UDP to {}", list(endpoints)),
            OwnPackets::Program => ", UDP of weft".to_owned(),
        };
        let local = match &self.local {
            Local::Blocked => String::new(),
            Local::Allowed { dns } if dns.is_empty() => ", and to local networks all but DNS".to_owned(),
            Local::Allowed { dns } => {
                format!(", and to local networks all but DNS, which {} may be asked", list(dns))
            }
        };
        format!("let nothing leave but through {interface}, except DHCP, neighbour discovery{own}{local}")
    }
}

/// Lists the first few items, and how many more there are.
fn list(items: impl IntoIterator<Item: Display>) -> String {
    const SHOWN: usize = 4;
    let mut items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.len() > SHOWN {
        let more = items.len() - SHOWN;
        items.truncate(SHOWN);
        items.push(format!("{more} more"));
    }
    items.join(", ")
}
