//! The attacks. [`fmt::Display`] is the name on the command line.

use std::fmt;
use std::str::FromStr;

/// The datagrams of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    NoMac1,
    Mac1,
    Proven,
    Junk,
    Data,
    AimedIndex,
    AimedName,
}

/// Upper bounds of an attacker's source addresses, per family, and of the source ports of one address.
const ADDRESSES: u32 = 65_536;
const PORTS: u32 = 60_000;

/// For each kind its name and meaning, its usual number of sources and datagrams a second, and the highest
/// number of sources: addresses, or ports (N in the text).
#[rustfmt::skip]
const KINDS: [(Kind, &str, &str, u32, u32, u32); 7] = [
    (Kind::NoMac1, "no-mac1", "initiations with a wrong first MAC", ADDRESSES, 200_000, ADDRESSES),
    (Kind::Mac1, "mac1", "initiations with a valid first MAC, no cookie", ADDRESSES, 100_000, ADDRESSES),
    (Kind::Proven, "proven", "initiations with a valid first MAC and the cookie of their source", 1, 10_000, ADDRESSES),
    (Kind::Junk, "junk", "wrong types, short ones, data for unknown receivers, from N ports", 1024, 200_000, PORTS),
    (Kind::Data, "data", "data for unknown receivers, from N ports: the baseline for aimed ones", 1024, 60_000, PORTS),
    (Kind::AimedIndex, "aimed-index", "forged data with the client's receiver index, from N ports", 1024, 60_000, PORTS),
    (Kind::AimedName, "aimed-name", "forged data with the client's receiver index, address and port", 1, 60_000, 1),
];

/// What is measured unless attacks are named.
const DEFAULTS: &str = "proven-1@10000 proven-1024-v6@20000 mac1 no-mac1 junk data aimed-index aimed-name";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attack {
    pub(crate) kind: Kind,
    /// Number of sources: addresses, or ports (data and junk).
    pub(crate) count: u32,
    pub(crate) is_v6: bool,
    /// Datagrams a second.
    pub(crate) per_second: u32,
}

pub(super) fn defaults() -> Vec<Attack> {
    DEFAULTS.split_whitespace().flat_map(str::parse).collect()
}

pub(crate) fn help() -> String {
    let mut text = "Attacks, as KIND[-COUNT][-v6][@PER_SECOND]:\n".to_owned();
    for (_, name, title, ..) in KINDS {
        text += &format!("    {name:<16}{title}\n");
    }
    text + &format!("Unless some are named: {DEFAULTS}")
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        KINDS.iter().find(|(known, ..)| *known == self).map_or("", |(_, name, ..)| name)
    }

    /// Reports whether the attack is aimed at the queue of one peer.
    pub(crate) fn is_aimed(self) -> bool {
        matches!(self, Self::AimedIndex | Self::AimedName)
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, is_v6, per_second } = self;
        let v6 = if *is_v6 { "-v6" } else { "" };
        let name = kind.name();
        // `pad` applies to the whole text.
        f.pad(&format!("{name}-{count}{v6}@{per_second}"))
    }
}

impl FromStr for Attack {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const UNKNOWN: &str = "unknown attack, or too many sources; --help lists the attacks";
        let (name, rate) = match text.split_once('@') {
            Some((name, rate)) => (name, Some(rate.parse().map_err(|_| UNKNOWN)?)),
            None => (text, None),
        };
        let (name, is_v6) = name.strip_suffix("-v6").map_or((name, false), |name| (name, true));
        let (name, count) = match name.rsplit_once('-') {
            Some((start, count)) if count.starts_with(|c: char| c.is_ascii_digit()) => {
                (start, Some(count.parse().map_err(|_| UNKNOWN)?))
            }
            _ => (name, None),
        };
        let (kind, _, _, usual_count, usual_rate, most) =
            KINDS.into_iter().find(|(_, known, ..)| *known == name).ok_or(UNKNOWN)?;
        let attack =
            Self { kind, count: count.unwrap_or(usual_count), is_v6, per_second: rate.unwrap_or(usual_rate) };
        let fits = (1..=most).contains(&attack.count) && (1..=10_000_000).contains(&attack.per_second);
        fits.then_some(attack).ok_or(UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attack_is_found_by_its_name() {
        assert_eq!(defaults().len(), 8);
        for attack in defaults() {
            assert_eq!(attack.to_string().parse(), Ok(attack));
        }
        for (kind, name, ..) in KINDS {
            assert_eq!(name.parse::<Attack>().map(|attack| attack.kind), Ok(kind));
        }
        let attack = Attack { kind: Kind::NoMac1, count: 7, is_v6: true, per_second: 5 };
        assert_eq!("no-mac1-7-v6@5".parse(), Ok(attack));
    }

    #[test]
    fn what_no_attacker_can_send_is_refused() {
        for wrong in
            ["", "x", "proven-0", "proven-65537", "aimed-name-2", "junk@0", "junk@x", "junk-60001", "-1"]
        {
            assert!(wrong.parse::<Attack>().is_err(), "{wrong}");
        }
    }
}
