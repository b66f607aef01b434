//! Files of other programs that look like one of WireGuard. They get one message that says what they are,
//! instead of one for each line. Keys of other WireGuard programs get a message that names the program.

use std::fmt;

use super::lexer::{self, Header, Section};

/// A format that is not WireGuard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// AmneziaWG, which changes WireGuard's messages.
    AmneziaWg,
    /// A file of AmneziaWG that leaves WireGuard's messages as they are, and only adds others.
    AmneziaWgJunk,
    /// A .netdev or .network file of systemd-networkd.
    Networkd,
    /// A keyfile of NetworkManager.
    NetworkManager,
    /// wireproxy.
    Wireproxy,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AmneziaWg => {
                "this is a file of AmneziaWG, which weft does not speak: without such lines its server would not \
                 answer; use a program of AmneziaWG, or ask for a file of WireGuard"
            }
            Self::AmneziaWgJunk => {
                "this is a file of AmneziaWG, which weft does not speak; these values only add packets that a server \
                 of WireGuard ignores: remove all lines with Jc, Jmin, Jmax, S1 to S4 and H1 to H4 to use it with weft"
            }
            Self::Networkd => {
                "this is a file of systemd-networkd; write its keys into [Interface] and [Peer], or leave the \
                 interface to systemd-networkd"
            }
            Self::NetworkManager => {
                "this is a keyfile of NetworkManager; write its keys into [Interface] and [Peer], or leave the \
                 interface to NetworkManager (`nmcli connection up NAME`)"
            }
            Self::Wireproxy => {
                "this section is wireproxy's; remove it and run `weft proxy`, which has options for SOCKS5, HTTP and \
                 forwarded ports"
            }
        })
    }
}

/// The keys of AmneziaWG in [Interface].
const AMNEZIA: [&str; 20] = [
    "Jc", "Jmin", "Jmax", "S1", "S2", "S3", "S4", "H1", "H2", "H3", "H4", "I1", "I2", "I3", "I4", "I5", "J1",
    "J2", "J3", "Itime",
];

/// Reports whether a key or a word of awg(8) is AmneziaWG's.
pub fn is_of_amnezia_wg(written: &str) -> bool {
    AMNEZIA.iter().any(|key| key.eq_ignore_ascii_case(written))
}

/// Returns the other format, with the first line and key that show it.
pub(super) fn find(text: &str) -> Option<(usize, String, Dialect)> {
    let mut amnezia = None;
    let mut changes_messages = false;
    let mut is_interface = false;
    for line in lexer::lines(text) {
        match line.header() {
            Some(Header::Unknown(name)) => {
                let shown = || line.text().to_owned();
                match of_section(name) {
                    Some(dialect) => return Some((line.number, shown(), dialect)),
                    None => is_interface = false,
                }
            }
            Some(header) => is_interface = header == Header::Known(Section::Interface),
            None => {
                let Some((key, value)) = line.key_value().filter(|_| is_interface) else { continue };
                let Some(key) = AMNEZIA.iter().find(|amnezia| amnezia.eq_ignore_ascii_case(key)) else {
                    continue;
                };
                changes_messages |= !is_plain(key, value);
                amnezia.get_or_insert((line.number, (*key).to_owned()));
            }
        }
    }
    let dialect = if changes_messages { Dialect::AmneziaWg } else { Dialect::AmneziaWgJunk };
    amnezia.map(|(line, key)| (line, key, dialect))
}

/// Reports whether a value of AmneziaWG is what WireGuard does: no padding, and its message types.
fn is_plain(key: &str, value: &str) -> bool {
    match key.split_at(1) {
        ("J", "c" | "min" | "max") => true,
        ("S", _) => value == "0",
        ("H", message_type) => value == message_type,
        _ => false,
    }
}

fn of_section(name: &str) -> Option<Dialect> {
    Some(match name.to_ascii_lowercase().as_str() {
        "netdev" | "wireguardpeer" | "match" => Dialect::Networkd,
        "connection" => Dialect::NetworkManager,
        name if name.starts_with("wireguard-peer.") => Dialect::NetworkManager,
        "socks5" | "http" | "tcpclienttunnel" | "tcpservertunnel" | "udpproxytunnel" | "stdiotunnel" => {
            Dialect::Wireproxy
        }
        _ => return None,
    })
}

/// Returns the program that a key is known from, and what to do about it.
pub(super) fn origin_of(written: &str) -> Option<(&'static str, &'static str)> {
    const PROGRAMS: &str = "remove the line: a tunnel of weft serves all programs (`weft exec` gives a tunnel to one \
                            command alone)";
    Some(match written.to_ascii_lowercase().as_str() {
        "includedapplications" | "excludedapplications" => ("the WireGuard app for Android", PROGRAMS),
        "allowedapps" | "disallowedapps" => ("WireSock", PROGRAMS),
        "disallowedips" => {
            ("WireSock", "remove the line, and list in AllowedIPs only what is routed into the tunnel")
        }
        "advancedsecurity" => ("AmneziaWG", "weft does not speak it: use a program of AmneziaWG"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_program_is_known_by_its_sections_and_keys() {
        for (text, line, key, dialect) in [
            ("[Interface]\nMTU = 1420\nJc = 4\nS1 = 15\nH1 = 123\n[Peer]\n", 3, "Jc", Dialect::AmneziaWg),
            ("[interface]\njc=4\nJmin = 40\nS1 = 0\nH1 = 1\nH4 = 4", 2, "Jc", Dialect::AmneziaWgJunk),
            ("[Interface]\ni1 = <b 0xf6ab3267fa>\n", 2, "I1", Dialect::AmneziaWg),
            ("[NetDev]\nName=wg0\nKind=wireguard\n[WireGuard]\n", 1, "[NetDev]", Dialect::Networkd),
            ("[connection]\nid=wg0\n[wireguard]\n", 1, "[connection]", Dialect::NetworkManager),
            ("[Interface]\n[Peer]\n[Socks5]\nBindAddress = x\n", 3, "[Socks5]", Dialect::Wireproxy),
        ] {
            assert_eq!(find(text), Some((line, key.to_owned(), dialect)), "{text}");
        }
        for text in
            ["", "[Interface]\nMTU = 1\n[Peer]\nJc = 4\n", "# Jc = 4\n[Interface]\n", "[Peers]\nS1 = 1"]
        {
            assert_eq!(find(text), None, "{text}");
        }
    }
}
