//! The attacks. [`fmt::Display`] is the name on the command line.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Upper bound of an attacker's source addresses, per family.
const MOST_SOURCES: u32 = 65_536;
/// Upper bound of the source ports of one address.
const MOST_PORTS: u32 = 60_000;
const MOST_ABSENT: u32 = 60_000;

/// The datagrams of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Initiations with a wrong first MAC.
    NoMac1,
    /// Initiations with a valid first MAC and no cookie.
    Mac1,
    /// Complete initiations with a valid first MAC, made with a key that the gateway does not know.
    UnknownKey,
    /// Initiations with a valid first MAC and the cookie of their source.
    Proven,
    /// No handshakes: data for unknown receiver indices, unknown message types, messages that are too short.
    Junk,
    /// Data messages for unknown receivers: the baseline for aimed ones.
    Data,
    /// Data messages for unknown receivers, from ports that share a queue with the client where the hash has
    /// no key.
    AimedHash,
    /// Data messages for unknown receivers of the second of two packet threads. The client belongs to the
    /// first.
    AimedThread,
    /// Data messages with the client's receiver index, spoofing its address.
    AimedAddress,
    /// Data messages with the client's receiver index.
    AimedIndex,
    /// Data messages with the client's receiver index, spoofing its address and port.
    AimedName,
    /// A peer that sends packets to absent peers.
    Scan,
    /// A peer that sends packets with the source of another peer.
    Spoofed,
    /// A peer that sends packets of one byte behind the IP header.
    Tiny,
    /// A peer that sends IP fragments of packets that never become whole.
    Fragments,
    /// A peer that sends packets with 40 bytes of IP options, right and wrong ones.
    Options,
    /// A peer that sends TCP segments of which no two can be joined.
    Unjoinable,
    /// A peer that sends ICMP echo requests.
    Pings,
    /// A peer that sends packets which the gateway routes back into the tunnel, where no peer has them.
    Unroutable,
    /// A peer that begins a handshake again and again, and ends each.
    Handshakes,
}

const KINDS: [(Kind, &str, &str); 20] = [
    (Kind::NoMac1, "no-mac1", "initiations with a wrong first MAC"),
    (Kind::Mac1, "mac1", "initiations with a valid first MAC, no cookie"),
    (Kind::UnknownKey, "unknown-key", "the same, whole and made with a key that the gateway does not know"),
    (Kind::Proven, "proven", "initiations with a valid first MAC and a cookie"),
    (Kind::Junk, "junk", "wrong types, short ones, data for unknown receivers, from N ports"),
    (Kind::Data, "data", "data for unknown receivers, from N ports"),
    (
        Kind::AimedHash,
        "aimed-hash",
        "the same from ports that a hash without a key puts into the client's queue",
    ),
    (
        Kind::AimedThread,
        "aimed-thread",
        "data for unknown receivers of the second of two packet threads, from N ports",
    ),
    (
        Kind::AimedAddress,
        "aimed-address",
        "forged data with the client's receiver index and address, from N ports",
    ),
    (Kind::AimedIndex, "aimed-index", "forged data with the client's receiver index, from N ports"),
    (Kind::AimedName, "aimed-name", "forged data with the client's receiver index, address and port"),
    (Kind::Scan, "scan", "a peer sends to N others that are away"),
    (Kind::Spoofed, "spoofed", "a peer sends packets with the source of another peer"),
    (Kind::Tiny, "tiny", "a peer sends packets of one byte behind the IP header"),
    (Kind::Fragments, "fragments", "a peer sends fragments of packets that never become whole"),
    (Kind::Options, "options", "a peer sends packets with 40 bytes of IP options, right and wrong ones"),
    (Kind::Unjoinable, "unjoinable", "a peer sends TCP segments of which no two can be joined"),
    (Kind::Pings, "pings", "a peer sends ICMP echo requests"),
    (Kind::Unroutable, "unroutable", "a peer sends packets for addresses that no peer has"),
    (Kind::Handshakes, "handshakes", "a peer performs one handshake after the other"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attack {
    pub(crate) kind: Kind,
    /// Number of sources: addresses, ports (data and junk), or absent peers (scan).
    pub(crate) count: u32,
    pub(crate) is_v6: bool,
    /// Datagrams a second; for a scan inner packets a second.
    pub(crate) per_second: u32,
}

/// Returns the attacks that are measured by default.
pub(super) fn defaults() -> Vec<Attack> {
    let attack = |kind, count, per_second| Attack { kind, count, is_v6: false, per_second };
    vec![
        attack(Kind::Proven, 1, 10_000),
        Attack { is_v6: true, ..attack(Kind::Proven, 1024, 20_000) },
        attack(Kind::Mac1, 65_536, 100_000),
        attack(Kind::NoMac1, 65_536, 200_000),
        attack(Kind::Junk, 1024, 200_000),
        attack(Kind::Data, 1024, 60_000),
        attack(Kind::AimedHash, 1024, 60_000),
        attack(Kind::AimedIndex, 1024, 60_000),
        attack(Kind::AimedName, 1, 60_000),
        attack(Kind::Scan, 50_000, 20_000),
        attack(Kind::Spoofed, 1, 100_000),
        attack(Kind::Tiny, 1, 100_000),
        attack(Kind::Fragments, 1, 100_000),
        attack(Kind::Options, 1, 100_000),
        attack(Kind::Unjoinable, 1, 50_000),
        attack(Kind::Pings, 1, 50_000),
        attack(Kind::Unroutable, 1, 50_000),
        attack(Kind::Handshakes, 1, 1_000),
    ]
}

/// Returns the list of attacks for the help.
pub(crate) fn help() -> String {
    let mut text = "Attacks, as KIND[-COUNT][-v6][@PER_SECOND]:\n".to_owned();
    for (_, name, title) in KINDS {
        text += &format!("    {name:<16}{title}\n");
    }
    let defaults: Vec<String> = defaults().iter().map(Attack::to_string).collect();
    text + &format!("Unless some are named: {}", defaults.join(" "))
}

impl Kind {
    fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, name, _)| name)
    }

    /// Reports whether the attack is aimed at the queue of one peer.
    pub(crate) fn is_aimed(self) -> bool {
        matches!(self, Self::AimedHash | Self::AimedAddress | Self::AimedIndex | Self::AimedName)
    }

    /// Reports whether it is a peer that attacks.
    pub(crate) fn is_of_peer(self) -> bool {
        matches!(
            self,
            Self::Scan
                | Self::Spoofed
                | Self::Tiny
                | Self::Fragments
                | Self::Options
                | Self::Unjoinable
                | Self::Pings
                | Self::Unroutable
                | Self::Handshakes
        )
    }

    /// Returns the default count, the default rate and the highest count.
    fn usual(self) -> (u32, u32, u32) {
        match self {
            Self::NoMac1 => (MOST_SOURCES, 200_000, MOST_SOURCES),
            Self::Mac1 | Self::UnknownKey => (MOST_SOURCES, 100_000, MOST_SOURCES),
            Self::Proven => (1, 10_000, MOST_SOURCES),
            Self::Junk | Self::AimedThread => (1024, 200_000, MOST_PORTS),
            Self::Data | Self::AimedHash | Self::AimedAddress | Self::AimedIndex => {
                (1024, 60_000, MOST_PORTS)
            }
            Self::AimedName => (1, 60_000, 1),
            Self::Scan => (50_000, 20_000, MOST_ABSENT),
            Self::Spoofed | Self::Tiny | Self::Fragments | Self::Options => (1, 100_000, 1),
            Self::Unjoinable | Self::Pings | Self::Unroutable => (1, 50_000, 1),
            Self::Handshakes => (1, 1_000, 1),
        }
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, is_v6, per_second } = self;
        let v6 = if *is_v6 { "-v6" } else { "" };
        // `pad` applies to the whole text.
        f.pad(&format!("{}-{count}{v6}@{per_second}", kind.name()))
    }
}

impl Serialize for Attack {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The error for an unknown attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownAttack;

impl fmt::Display for UnknownAttack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown attack, or too many sources; --help lists the attacks")
    }
}

impl std::error::Error for UnknownAttack {}

impl FromStr for Attack {
    type Err = UnknownAttack;

    fn from_str(text: &str) -> Result<Self, UnknownAttack> {
        let (name, rate) = match text.split_once('@') {
            Some((name, rate)) => (name, Some(rate.parse().map_err(|_| UnknownAttack)?)),
            None => (text, None),
        };
        let (name, is_v6) = name.strip_suffix("-v6").map_or((name, false), |name| (name, true));
        let (name, count) = match name.rsplit_once('-') {
            Some((start, count)) if count.starts_with(|c: char| c.is_ascii_digit()) => {
                (start, Some(count.parse().map_err(|_| UnknownAttack)?))
            }
            _ => (name, None),
        };
        let (kind, ..) = KINDS.into_iter().find(|(_, known, _)| *known == name).ok_or(UnknownAttack)?;
        let (usual_count, usual_rate, most) = kind.usual();
        let attack =
            Self { kind, count: count.unwrap_or(usual_count), is_v6, per_second: rate.unwrap_or(usual_rate) };
        let fits = (1..=most).contains(&attack.count) && (1..=10_000_000).contains(&attack.per_second);
        fits.then_some(attack).ok_or(UnknownAttack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attack_is_found_by_its_name() {
        for attack in defaults() {
            assert_eq!(attack.to_string().parse(), Ok(attack));
        }
        for (kind, name, _) in KINDS {
            assert_eq!(name.parse::<Attack>().map(|attack| attack.kind), Ok(kind));
        }
        let attack = Attack { kind: Kind::NoMac1, count: 7, is_v6: true, per_second: 5 };
        assert_eq!("no-mac1-7-v6@5".parse(), Ok(attack));
    }

    #[test]
    fn what_no_attacker_can_send_is_refused() {
        for wrong in
            ["", "x", "proven-0", "proven-65537", "aimed-name-2", "junk@0", "junk@x", "scan-60001", "-1"]
        {
            assert_eq!(wrong.parse::<Attack>(), Err(UnknownAttack), "{wrong}");
        }
    }
}
