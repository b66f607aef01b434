//! The keys of the protocol. A match over them is exhaustive: a key that no code handles does not compile.

weft_config::keys! {
    /// A key of a request or of an answer.
    pub Key {
        PrivateKey = "private_key",
        ListenPort = "listen_port",
        FwMark = "fwmark",
        ReplacePeers = "replace_peers",
        PublicKey = "public_key",
        Remove = "remove",
        UpdateOnly = "update_only",
        PresharedKey = "preshared_key",
        ProtocolVersion = "protocol_version",
        Endpoint = "endpoint",
        LastHandshakeSec = "last_handshake_time_sec",
        LastHandshakeNsec = "last_handshake_time_nsec",
        TxBytes = "tx_bytes",
        RxBytes = "rx_bytes",
        PersistentKeepalive = "persistent_keepalive_interval",
        ReplaceAllowedIps = "replace_allowed_ips",
        AllowedIp = "allowed_ip",
        // boringtun sends this in place of the private key.
        OwnPublicKey = "own_public_key",
        Errno = "errno",
    }
}

impl Key {
    /// Returns the key that is written exactly so.
    pub(crate) fn exactly(written: &[u8]) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.text().as_bytes() == written)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}
