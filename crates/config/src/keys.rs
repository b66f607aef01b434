//! The keys of a configuration file. A match over them is exhaustive: a key that no code handles does not
//! compile.

/// Declares an enum of keys with their documented spelling, and for the manual an example and the meaning.
#[macro_export]
#[doc(hidden)]
macro_rules! keys {
    ($(#[$doc:meta])* pub $name:ident { $($key:ident = $text:literal $(=> $example:literal: $meaning:literal)?,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "wg(8), wg-quick(8), README.md and the UAPI's page describe the keys")]
        pub enum $name {
            $($key,)+
        }

        impl $name {
            /// All keys, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$key,)+];

            /// The keys with an example and the meaning of each.
            pub const MANUAL: &[(Self, &str, &str)] = &[$($((Self::$key, $example, $meaning),)?)+];

            /// Returns the documented spelling.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$key => $text,)+
                }
            }

            /// Returns the key that is written so. Keys are case-insensitive.
            pub fn find(written: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|key| key.text().eq_ignore_ascii_case(written))
            }
        }
    };
}

keys! {
    /// A key of `[Interface]`.
    pub InterfaceKey {
        PrivateKey = "PrivateKey" => "qN3V0Gq8S2h2dYfA7H1m0mZ4nR6v3k9Jc5wXbT1uPkM=":
            "The key of this machine, as weft genkey prints it.",
        PrivateKeyFile = "PrivateKeyFile" => "/etc/wireguard/wg0.key":
            "A file with the key, in place of PrivateKey. Of weft alone.",
        ListenPort = "ListenPort" => "51820":
            "The UDP port. Without it the system chooses one.",
        FwMark = "FwMark" => "0x1234":
            "The mark of outgoing packets, for rules of the system; off: none.",
        Address = "Address" => "10.9.0.1/24, fd09::1/64":
            "The addresses of this machine in the tunnel.",
        Mtu = "MTU" => "1420":
            "The largest packet in the tunnel. Without it weft derives it from the way to the peers.",
        Table = "Table" => "off":
            "The routing table: a number or name; off: no routes; auto: the main table, and another one for a default route.",
        Dns = "DNS" => "10.9.0.1, corp.example":
            "Name servers while the interface is up, and domains to search.",
        SaveConfig = "SaveConfig" => "true":
            "Write the state into the file when the interface is taken down.",
        PreUp = "PreUp" => "logger weft starts %i":
            "A command before the interface is up; %i is its name. May be given several times, as the next three.",
        PostUp = "PostUp" => "logger %i is up":
            "A command once the interface is up.",
        PreDown = "PreDown" => "logger %i ends":
            "A command before the interface is taken down.",
        PostDown = "PostDown" => "logger %i is down":
            "A command after that.",
    }
}

keys! {
    /// A key of `[Peer]`.
    pub PeerKey {
        PublicKey = "PublicKey" => "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=":
            "The key of the peer. Each peer has one.",
        PresharedKey = "PresharedKey" => "m4YqC1vN8r0sWfU6pHk3zTj9xGd2bLe5aRoQi7yVtDc=":
            "A second key that both ends share, as weft genpsk prints it.",
        PresharedKeyFile = "PresharedKeyFile" => "/etc/wireguard/laptop.psk":
            "A file with it, in place of PresharedKey. Of weft alone.",
        AllowedIps = "AllowedIPs" => "10.9.0.2/32, fd09::2/128":
            "The addresses behind the peer: packets to them go to it, and only packets from them are taken from it.",
        Endpoint = "Endpoint" => "vpn.example.com:51820":
            "Where the peer is reached, until it is heard from another address.",
        PersistentKeepalive = "PersistentKeepalive" => "25":
            "Send something at least as often, in seconds, so that a firewall on the way stays open; off: no.",
    }
}

keys! {
    /// A setting of weft in `[Interface]`: a comment `# weft: KEY = VALUE`.
    pub InterfaceSetting {
        KillSwitch = "KillSwitch" => "on":
            "Let packets leave through the tunnel alone, also after a crash; allow-local: to local networks too.",
        PathMtuDiscovery = "PathMtuDiscovery" => "on":
            "Let no outer packet be fragmented, and learn the MTU of each path.",
        MssClamp = "MssClamp" => "on":
            "Make forwarded TCP connections fit the tunnel.",
        Metrics = "Metrics" => "127.0.0.1:9586":
            "Serve metrics, health checks and a status page at this address, or at unix:PATH.",
        MetricsHost = "MetricsHost" => "gateway.example.com":
            "Answer there to this name of the machine too. May be given several times.",
        SpeedTest = "SpeedTest" => "on":
            "Let peers run weft speedtest with this machine.",
        Endpoint = "Endpoint" => "vpn.example.com:51820":
            "What weft peer add tells clients: where they reach this machine.",
        PeerDns = "PeerDNS" => "10.9.0.1":
            "What it tells them as DNS.",
        PeerAllowedIps = "PeerAllowedIPs" => "10.9.0.0/24, fd09::/64":
            "What it tells them as AllowedIPs; otherwise everything.",
    }
}

keys! {
    /// A setting of weft in `[Peer]`: a comment `# weft: KEY = VALUE`.
    pub PeerSetting {
        RateToPeer = "RateToPeer" => "50Mbit":
            "The highest rate of packets to the peer, in kbit, Mbit or Gbit.",
        RateFromPeer = "RateFromPeer" => "10Mbit":
            "The highest rate of packets from it.",
        Expected = "Expected" => "on":
            "Whether the peer is missed when it is silent; otherwise that depends on its other settings.",
        Expires = "Expires" => "2030-12-31":
            "When the peer ends, in UTC: to the end of that day, or at a time such as 2030-12-31T18:00:00Z.",
    }
}

/// The program that defines a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// wg(8); wg-quick(8) passes the key on.
    Wg,
    /// wg-quick(8); wg(8) rejects the key.
    WgQuick,
    /// weft; both reject the key.
    Weft,
}

impl InterfaceKey {
    /// Returns the program that defines the key.
    pub const fn origin(self) -> Origin {
        match self {
            Self::PrivateKey | Self::ListenPort | Self::FwMark => Origin::Wg,
            Self::Address | Self::Mtu | Self::Table | Self::Dns | Self::SaveConfig => Origin::WgQuick,
            Self::PreUp | Self::PostUp | Self::PreDown | Self::PostDown => Origin::WgQuick,
            Self::PrivateKeyFile => Origin::Weft,
        }
    }
}

impl PeerKey {
    /// Returns the program that defines the key.
    pub const fn origin(self) -> Origin {
        match self {
            Self::PublicKey | Self::PresharedKey | Self::AllowedIps => Origin::Wg,
            Self::Endpoint | Self::PersistentKeepalive => Origin::Wg,
            Self::PresharedKeyFile => Origin::Weft,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_an_example_that_is_read_without_a_warning() {
        let (own, peers) = (InterfaceKey::MANUAL, PeerKey::MANUAL);
        let settings = (InterfaceSetting::MANUAL, PeerSetting::MANUAL);
        assert_eq!((own.len(), peers.len()), (InterfaceKey::ALL.len(), PeerKey::ALL.len()));
        let all = (InterfaceSetting::ALL.len(), PeerSetting::ALL.len());
        assert_eq!((settings.0.len(), settings.1.len()), all);
        // A key is in this file or in another one.
        let is_other_file = |text: &str| text.ends_with("KeyFile");
        let mut file = "[Interface]\n".to_owned();
        for (key, example, _) in own.iter().filter(|(key, ..)| !is_other_file(key.text())) {
            file += &format!("{} = {example}\n", key.text());
        }
        for (key, example, _) in settings.0 {
            file += &format!("# weft: {} = {example}\n", key.text());
        }
        file += "[Peer]\n";
        for (key, example, _) in peers.iter().filter(|(key, ..)| !is_other_file(key.text())) {
            file += &format!("{} = {example}\n", key.text());
        }
        for (key, example, _) in settings.1 {
            file += &format!("# weft: {} = {example}\n", key.text());
        }
        let parsed = crate::parse_to_edit(&file, std::path::Path::new("wg0.conf"), "wg0".parse().unwrap());
        let parsed = parsed.unwrap_or_else(|error| panic!("{error}\n{file}"));
        assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
    }

    #[test]
    fn keys_are_found_whatever_their_case() {
        assert_eq!(InterfaceKey::find("mtu"), Some(InterfaceKey::Mtu));
        assert_eq!(PeerKey::find("ALLOWEDips"), Some(PeerKey::AllowedIps));
        assert_eq!(PeerKey::find("Address"), None);
        for key in InterfaceKey::ALL {
            assert_eq!(InterfaceKey::find(key.text()), Some(*key));
        }
    }
}
