//! The keys of a configuration file. A match over them is exhaustive: a key that no code handles does not
//! compile.

/// Declares an enum of keys with their documented spelling.
#[macro_export]
#[doc(hidden)]
macro_rules! keys {
    ($(#[$doc:meta])* pub $name:ident { $($key:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "wg(8), wg-quick(8), README.md and the UAPI's page describe the keys")]
        pub enum $name {
            $($key,)+
        }

        impl $name {
            /// All keys, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$key,)+];

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
        PrivateKey = "PrivateKey",
        PrivateKeyFile = "PrivateKeyFile",
        ListenPort = "ListenPort",
        FwMark = "FwMark",
        Address = "Address",
        Mtu = "MTU",
        Table = "Table",
        Dns = "DNS",
        SaveConfig = "SaveConfig",
        PreUp = "PreUp",
        PostUp = "PostUp",
        PreDown = "PreDown",
        PostDown = "PostDown",
    }
}

keys! {
    /// A key of `[Peer]`.
    pub PeerKey {
        PublicKey = "PublicKey",
        PresharedKey = "PresharedKey",
        PresharedKeyFile = "PresharedKeyFile",
        AllowedIps = "AllowedIPs",
        Endpoint = "Endpoint",
        PersistentKeepalive = "PersistentKeepalive",
    }
}

keys! {
    /// A setting of weft in `[Interface]`: a comment `# weft: KEY = VALUE`.
    pub InterfaceSetting {
        KillSwitch = "KillSwitch",
        PathMtuDiscovery = "PathMtuDiscovery",
        MssClamp = "MssClamp",
        Metrics = "Metrics",
        MetricsHost = "MetricsHost",
        SpeedTest = "SpeedTest",
        Endpoint = "Endpoint",
        PeerDns = "PeerDNS",
        PeerAllowedIps = "PeerAllowedIPs",
    }
}

keys! {
    /// A setting of weft in `[Peer]`: a comment `# weft: KEY = VALUE`.
    pub PeerSetting {
        RateToPeer = "RateToPeer",
        RateFromPeer = "RateFromPeer",
        Expected = "Expected",
        Expires = "Expires",
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
    fn keys_are_found_whatever_their_case() {
        assert_eq!(InterfaceKey::find("mtu"), Some(InterfaceKey::Mtu));
        assert_eq!(PeerKey::find("ALLOWEDips"), Some(PeerKey::AllowedIps));
        assert_eq!(PeerKey::find("Address"), None);
        for key in InterfaceKey::ALL {
            assert_eq!(InterfaceKey::find(key.text()), Some(*key));
        }
    }
}
