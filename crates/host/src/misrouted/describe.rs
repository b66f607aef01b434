//! What is said of packets that do not go where they are meant to go, and what to do.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Blocking, LoopCause, Misrouted, ServerAdvice, probes};
use crate::restore::DnsPast;
use crate::routes::{Exception, Family};

/// Returns how to remove a rule, unless it is meant.
fn removal(family: Family, Exception { priority, text, .. }: &Exception) -> String {
    format!("if it is not meant, remove it (`ip {}rule del pref {priority} {text}`)", option(family))
}

/// Returns the option of ip(8) for a family.
fn option(family: Family) -> &'static str {
    if family == Family::V6 { "-6 " } else { "" }
}

impl fmt::Display for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.prefix_len() {
            0 => write!(f, "{} default", self.word),
            _ => write!(f, "{} {}", self.word, self.prefix),
        }
    }
}

impl Misrouted {
    /// Returns the name of the check; it is stable across releases.
    pub fn check(&self) -> &'static str {
        match self {
            Self::NameServer { .. } | Self::NoNames { .. } => "dns_past_tunnel",
            Self::Exception { rule: Exception { blocks: true, .. }, .. } => "traffic_blocked",
            Self::Captured { .. }
            | Self::Exception { .. }
            | Self::Networks { .. }
            | Self::FamilyPast { .. }
            | Self::Prefixes { .. } => "traffic_past_tunnel",
            Self::TakenOver { .. } => "second_full_tunnel",
            Self::Blocked { .. } | Self::NoMain { .. } => "traffic_blocked",
            Self::SameNetwork { .. } => "same_network",
            Self::Loop { .. } => "endpoint_in_tunnel",
            Self::NoDns { .. } => "dns_refused",
            Self::NotForwarded { .. } => "forwarding",
            Self::NotTranslated { .. } => "way_back",
            Self::LocalResolver { .. } => "local_resolver",
            Self::Dns(DnsPast::Lost(_)) => "lost_dns",
            Self::Dns(DnsPast::Overruled(_)) => "dns_past_tunnel",
        }
    }

    /// Returns the key of the file whose value is not followed.
    pub fn key(&self) -> &'static str {
        match self {
            Self::NameServer { .. } | Self::NoNames { .. } | Self::Dns(_) | Self::NoDns { .. } => "DNS",
            Self::Captured { .. }
            | Self::Exception { .. }
            | Self::Networks { .. }
            | Self::Blocked { .. }
            | Self::FamilyPast { .. }
            | Self::TakenOver { .. }
            | Self::SameNetwork { is_of_address: false, .. }
            | Self::Prefixes { .. } => "AllowedIPs",
            Self::SameNetwork { .. } | Self::NotTranslated { .. } => "Address",
            Self::NotForwarded { .. } => "PeerAllowedIPs",
            Self::Loop { .. } | Self::NoMain { .. } | Self::LocalResolver { .. } => "Endpoint",
        }
    }

    /// Returns the network that the value of the key has, if that is what is wrong with it.
    pub fn network(&self) -> Option<IpNet> {
        if let Self::SameNetwork { network, .. } = self { Some(*network) } else { None }
    }

    /// Returns what to do.
    pub fn advice(&self) -> String {
        match self {
            Self::NameServer { advice, .. } | Self::NoNames { advice, .. } => match advice {
                ServerAdvice::Route(host) => format!("add {host} to AllowedIPs"),
                ServerAdvice::AnotherServer => {
                    "it is the address of an endpoint too, which cannot be in AllowedIPs: give DNS an address of the \
                     server in the tunnel"
                        .to_owned()
                }
                ServerAdvice::LookAt(server) => {
                    format!("another route or rule comes first: see `ip route get {server}` and `ip rule`")
                }
                ServerAdvice::Configure => "give DNS servers that the tunnel leads to".to_owned(),
            },
            Self::Captured { via, is_within: true, .. } => {
                format!("take {via} down if it is not meant to be within this tunnel")
            }
            Self::Captured { via, is_of_weft: true, .. } => {
                format!("take {via} down (`weft down {via}`), or give one of the two narrower AllowedIPs")
            }
            Self::TakenOver { other, is_of_weft, .. } => {
                let command = if *is_of_weft { format!(" (`weft down {other}`)") } else { String::new() };
                format!("take {other} down first{command}, or give narrower AllowedIPs")
            }
            Self::Captured { family, rule: Some(rule), .. } => {
                format!("{}, or take down the VPN that made it", removal(*family, rule))
            }
            Self::Captured { example, .. } => format!(
                "another VPN may have taken it over: see `ip route get {example}` and `ip rule`, and take down one of \
                 the two"
            ),
            Self::Exception { family, rule } => removal(*family, rule),
            Self::Networks { networks, is_blocked, .. } => {
                let network = networks.first().map(IpNet::to_string).unwrap_or_default();
                let switch = if *is_blocked { "" } else { ", or block it by `# weft: KillSwitch = on`" };
                format!("if it is not meant, remove the route (`ip route del {network}`){switch}")
            }
            Self::Blocked { family, route, .. } => {
                let Blocking { metric, .. } = route;
                let metric = if *metric == 0 { String::new() } else { format!(" metric {metric}") };
                format!("if it is not meant, remove it (`ip {}route del {route}{metric}`)", option(*family))
            }
            Self::NoMain { endpoint } => {
                let option = option(Family::of(endpoint.ip().into()));
                format!("add it: `ip {option}rule add pref 32766 lookup main`")
            }
            Self::FamilyPast { family: Family::V4, .. } => {
                "if it is not meant, add 0.0.0.0/0 to AllowedIPs, or set `# weft: KillSwitch = on`".to_owned()
            }
            Self::FamilyPast { .. } => {
                "add ::/0 to AllowedIPs, or set `# weft: KillSwitch = on`, or switch IPv6 off".to_owned()
            }
            Self::Prefixes { prefixes, .. } => {
                let example = prefixes.first().map(|prefix| probes(*prefix)[0]);
                let example = example.map(|address| address.to_string()).unwrap_or_default();
                format!("another route or rule comes first: see `ip route get {example}` and `ip rule`")
            }
            Self::SameNetwork { is_of_address: true, example, .. } => format!(
                "give the tunnel another network, at its other ends too; or give Address without its network (/32, /128), \
                 and single addresses to AllowedIPs, such as {}",
                IpNet::from(*example)
            ),
            Self::SameNetwork { network, example, .. } => format!(
                "give the network behind the peer other addresses; or list single ones in AllowedIPs in place of \
                 {network}, such as {}",
                IpNet::from(*example)
            ),
            Self::Loop { cause: LoopCause::Mark { now, of_rules, interface }, .. } => format!(
                "the mark is {now:#x}, and the rules are for {of_rules:#x}: `weft reload {interface}` sets it again"
            ),
            Self::Loop { cause: LoopCause::Roamed { interface }, .. } => format!(
                "the peer was last heard from there: `weft reload {interface}` sets the endpoint of the file again"
            ),
            Self::Loop { endpoint, cause: LoopCause::Circle { .. } } => format!(
                "take one of the two down, or add a route past both (ip route add {} via GATEWAY)",
                IpNet::from(endpoint.ip())
            ),
            Self::Loop { endpoint, .. } => format!(
                "list AllowedIPs without {}, or add a route to it past the tunnel (ip route add {} via GATEWAY)",
                endpoint.ip(),
                IpNet::from(endpoint.ip())
            ),
            Self::Dns(past) => past.advice().to_owned(),
            Self::NoDns { .. } => "the start will fail with this".to_owned(),
            Self::NotForwarded { families } => {
                let settings = families.iter().map(|family| match family {
                    Family::V4 => " net.ipv4.ip_forward=1",
                    Family::V6 => " net.ipv6.conf.all.forwarding=1",
                });
                format!(
                    "`sysctl -w{}` and a masquerade rule let them through (docs/GATEWAY.md, Forwarding, has both); or say what \
                     they may reach here, as in `# weft: PeerAllowedIPs = 10.9.0.0/24`",
                    settings.collect::<String>()
                )
            }
            Self::NotTranslated { interface, .. } => format!(
                "where they have none, give peers the address of this machine: `iifname \"{interface}\" oifname != \
                 \"{interface}\" masquerade` in a chain `type nat hook postrouting priority srcnat` of nft \
                 (docs/GATEWAY.md, Forwarding)"
            ),
            Self::LocalResolver { mark, .. } => {
                format!("have it send with the mark {mark:#x}, or write the endpoint as an address")
            }
        }
    }
}

impl fmt::Display for Misrouted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameServer { server, via: None, .. } => {
                write!(f, "no route leads to the name server {server}")
            }
            Self::NameServer { server, via: Some(via), is_blocked, is_configured, .. } => {
                let what = if *is_configured { "" } else { "the system's name server " };
                let blocked = if *is_blocked { ", and the kill switch blocks that" } else { "" };
                write!(f, "{what}{server} is reached through {via}, not through the tunnel{blocked}")
            }
            Self::NoNames { servers, via, .. } => {
                let servers: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
                write!(f, "no name can be looked up: {}", servers.join(", "))?;
                let verb = if servers.len() == 1 { "is" } else { "are" };
                match via {
                    Some(via) => write!(
                        f,
                        " {verb} reached through {via}, not through the tunnel, and the kill switch blocks that"
                    ),
                    None => write!(f, " {verb} not reached at all"),
                }
            }
            Self::Exception { family, rule: Exception { priority, text, blocks, is_for_all, .. } } => {
                let part = if *is_for_all { "all" } else { "a part" };
                let (verb, where_to) = if *blocks { ("blocks", "") } else { ("leads", " past the tunnel") };
                write!(f, "a rule {verb} {part} of {family}{where_to}: {priority}: {text}")
            }
            Self::Networks { networks, via, is_of_network, is_blocked } => {
                let first = networks.first().map(IpNet::to_string).unwrap_or_default();
                let more = match networks.len() {
                    0 | 1 => String::new(),
                    count => format!(" and {} more networks", count - 1),
                };
                let verb = if more.is_empty() { "goes" } else { "go" };
                write!(f, "traffic to {first}{more} {verb} through {via}, not through the tunnel")?;
                f.write_str(if *is_of_network { ", by routes of the local network (DHCP)" } else { "" })?;
                f.write_str(if *is_blocked { ", and the kill switch blocks that" } else { "" })
            }
            Self::Blocked { family, example, route } => write!(
                f,
                "no route leads to {example} and other addresses of {family}: the route `{route}` of table main takes \
                 them"
            ),
            Self::NoMain { endpoint } => {
                let family = Family::of(endpoint.ip().into());
                write!(f, "no rule leads {family} to the table main, which has the way to {endpoint}")
            }
            Self::Captured { family, example, via, is_within: true, .. } => write!(
                f,
                "traffic of {family}, such as that to {example}, goes through {via}, which is within this tunnel"
            ),
            Self::Captured { family, example, via, rule, .. } => {
                write!(
                    f,
                    "traffic of {family}, such as that to {example}, goes through {via}, not through the tunnel"
                )?;
                match rule {
                    Some(Exception { priority, text, .. }) => {
                        write!(f, ", by a rule of another program: {priority}: {text}")
                    }
                    None => Ok(()),
                }
            }
            Self::TakenOver { family, other, .. } => {
                write!(f, "{other} carries all of {family} now, and none of it once this tunnel is up")
            }
            Self::FamilyPast { family, via } => {
                let carried = if *family == Family::V4 { Family::V6 } else { Family::V4 };
                write!(f, "the tunnel carries {carried} only, and all of {family} goes past it through {via}")
            }
            Self::Prefixes { prefixes, via } => {
                let more = match prefixes.len() {
                    0 | 1 => String::new(),
                    count => format!(" and {} more of AllowedIPs", count - 1),
                };
                let first = prefixes.first().map(IpNet::to_string).unwrap_or_default();
                let verb = if more.is_empty() { "goes" } else { "go" };
                write!(f, "traffic to {first}{more} {verb} through {via}, not through the tunnel")
            }
            Self::SameNetwork { network, other, is_in_tunnel, .. } => {
                write!(f, "{network} is the network of {other} too: traffic to it goes through ")?;
                match is_in_tunnel {
                    true => write!(f, "the tunnel, and what is in the network of {other} is not reached"),
                    false => write!(f, "{other}, not through the tunnel"),
                }
            }
            Self::Loop { endpoint, cause: LoopCause::Circle { other } } => write!(
                f,
                "{endpoint} is reached through {other}, whose packets go through this tunnel: what is sent goes round \
                 in circles in the two"
            ),
            Self::Loop { endpoint, .. } => {
                write!(
                    f,
                    "{endpoint} is reached through the tunnel itself: what is sent to it goes round in circles"
                )
            }
            Self::Dns(past) => past.fmt(f),
            Self::NoDns { says, .. } => f.write_str(says),
            Self::NotForwarded { families } => {
                let families: Vec<String> = families.iter().map(Family::to_string).collect();
                write!(
                    f,
                    "peers are told to send everything here, and this machine does not forward {}: they reach nothing else, \
                     and no Internet",
                    families.join(" and ")
                )
            }
            Self::NotTranslated { networks, .. } => {
                let networks: Vec<String> = networks.iter().map(IpNet::to_string).collect();
                write!(
                    f,
                    "peers are forwarded with their own addresses: others answer only if their routers have a route to {} \
                     by this machine",
                    networks.join(", ")
                )
            }
            Self::LocalResolver { server, .. } => write!(
                f,
                "the name server {server} is on this machine, and its own queries go through the tunnel: a peer that \
                 moves may not be found by its name"
            ),
        }
    }
}
