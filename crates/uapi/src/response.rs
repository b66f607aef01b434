//! Writes answers as lines, in the order of wireguard-go.

use std::fmt::Display;
use std::io::{self, Write};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use weft_config::device::{DeviceState, PeerState};
use weft_tunnel::PresharedKey;

use super::Errno;
use crate::key::Key;
use crate::values::hex;

/// The answer to `get=1`. It is written in pieces: with many peers it is long, and the client may read
/// slowly.
pub struct Answer {
    state: Arc<DeviceState>,
    next: Piece,
}

/// The part that is written next.
#[derive(Clone, Copy)]
enum Piece {
    Interface,
    Peer(usize),
    AllowedIps { peer: usize, from: usize },
    End,
    Done,
}

/// The maximum number of allowed-ips in one piece.
const ALLOWED_IPS: usize = 128;

impl Answer {
    /// The maximum bytes of one piece.
    pub const MAX_PIECE: usize = 8 * 1024;

    /// Creates the answer that reports this state.
    pub fn new(state: impl Into<Arc<DeviceState>>) -> Self {
        Self { state: state.into(), next: Piece::Interface }
    }

    /// Writes the next piece, which may contain keys. Returns false if there was none left.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_piece(&mut self, out: &mut impl Write) -> io::Result<bool> {
        self.next = match self.next {
            Piece::Interface => {
                self.write_interface(out)?;
                self.peer_or_end(0)
            }
            Piece::Peer(place) => {
                if let Some(peer) = self.state.peers.get(place) {
                    write_peer(peer, out)?;
                }
                Piece::AllowedIps { peer: place, from: 0 }
            }
            Piece::AllowedIps { peer, from } => {
                let rest = self.state.peers.get(peer).and_then(|peer| peer.allowed_ips.get(from..));
                let rest = rest.unwrap_or_default();
                for prefix in rest.iter().take(ALLOWED_IPS) {
                    write_line(out, Key::AllowedIp, prefix)?;
                }
                if rest.len() > ALLOWED_IPS {
                    Piece::AllowedIps { peer, from: from + ALLOWED_IPS }
                } else {
                    self.peer_or_end(peer + 1)
                }
            }
            Piece::End => {
                write_errno(Errno::Success, out)?;
                Piece::Done
            }
            Piece::Done => return Ok(false),
        };
        Ok(true)
    }

    fn peer_or_end(&self, place: usize) -> Piece {
        if place < self.state.peers.len() { Piece::Peer(place) } else { Piece::End }
    }

    fn write_interface(&self, out: &mut impl Write) -> io::Result<()> {
        let settings = &self.state.settings;
        if let Some(key) = &settings.private_key {
            write_line(out, Key::PrivateKey, hex(Some(key.as_bytes())).as_str())?;
        }
        if settings.listen_port != 0 {
            write_line(out, Key::ListenPort, settings.listen_port)?;
        }
        if settings.fw_mark != 0 {
            write_line(out, Key::FwMark, settings.fw_mark)?;
        }
        Ok(())
    }
}

fn write_peer(peer: &PeerState, out: &mut impl Write) -> io::Result<()> {
    let settings = &peer.settings;
    write_line(out, Key::PublicKey, hex(Some(peer.public_key.as_bytes())).as_str())?;
    let preshared_key = settings.preshared_key.as_ref().map(PresharedKey::as_bytes);
    write_line(out, Key::PresharedKey, hex(preshared_key).as_str())?;
    write_line(out, Key::ProtocolVersion, 1)?;
    if let Some(endpoint) = peer.endpoint {
        write_line(out, Key::Endpoint, endpoint)?;
    }
    // With a clock before 1970 the peer is reported without a handshake.
    let handshake = peer.last_handshake.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let handshake = handshake.unwrap_or(Duration::ZERO);
    write_line(out, Key::LastHandshakeSec, handshake.as_secs())?;
    write_line(out, Key::LastHandshakeNsec, handshake.subsec_nanos())?;
    write_line(out, Key::TxBytes, peer.tx_bytes)?;
    write_line(out, Key::RxBytes, peer.rx_bytes)?;
    write_line(out, Key::PersistentKeepalive, settings.persistent_keepalive.map_or(0, NonZeroU16::get))
}

fn write_line(out: &mut impl Write, key: Key, value: impl Display) -> io::Result<()> {
    writeln!(out, "{key}={value}")
}

/// Writes the lines that end an answer.
///
/// # Errors
/// Those of `out`.
pub fn write_errno(errno: Errno, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{}={}\n\n", Key::Errno, errno.number())
}

#[cfg(test)]
mod tests {
    use weft_config::settings::InterfaceSettings;
    use weft_tunnel::{PeerSettings, PrivateKey, PublicKey};

    use super::*;

    fn text(state: DeviceState) -> String {
        let (mut answer, mut text) = (Answer::new(state), Vec::new());
        loop {
            let before = text.len();
            let more = answer.write_piece(&mut text).unwrap();
            assert!(text.len() - before <= Answer::MAX_PIECE);
            if !more {
                return String::from_utf8(text).unwrap();
            }
        }
    }

    #[test]
    fn an_interface_without_anything_is_an_empty_answer() {
        assert_eq!(text(DeviceState::default()), "errno=0\n\n");
    }

    #[test]
    fn everything_is_told_in_the_order_of_wireguard_go() {
        let bare = PeerState::new(PublicKey::from_bytes([0xab; 32]));
        let full = PeerState {
            public_key: PublicKey::from_bytes([1; 32]),
            endpoint: Some("[2001:db8::1]:51820".parse().unwrap()),
            is_endpoint_set: true,
            // Windows counts in 100 ns.
            last_handshake: Some(SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 500)),
            tx_bytes: 7,
            rx_bytes: u64::MAX,
            settings: PeerSettings {
                preshared_key: Some(PresharedKey::from_bytes([0xcd; 32])),
                persistent_keepalive: NonZeroU16::new(25),
                ..PeerSettings::default()
            },
            allowed_ips: vec!["10.0.0.0/8".parse().unwrap(), "fd00::1/128".parse().unwrap()],
        };
        let settings = InterfaceSettings {
            private_key: Some(PrivateKey::from_bytes([0x48; 32])),
            listen_port: 51820,
            fw_mark: 0xca6c,
        };
        let state = DeviceState { settings, peers: vec![full, bare] };
        let (own, first, psk) = ("48".repeat(32), "01".repeat(32), "cd".repeat(32));
        let (second, zero) = ("ab".repeat(32), "00".repeat(32));
        assert_eq!(
            text(state),
            format!(
                "private_key={own}\nlisten_port=51820\nfwmark=51820\npublic_key={first}\npreshared_key={psk}\n\
                 protocol_version=1\nendpoint=[2001:db8::1]:51820\nlast_handshake_time_sec=1700000000\n\
                 last_handshake_time_nsec=500\ntx_bytes=7\nrx_bytes=18446744073709551615\n\
                 persistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\nallowed_ip=fd00::1/128\n\
                 public_key={second}\npreshared_key={zero}\nprotocol_version=1\nlast_handshake_time_sec=0\n\
                 last_handshake_time_nsec=0\ntx_bytes=0\nrx_bytes=0\npersistent_keepalive_interval=0\nerrno=0\n\n"
            )
        );
    }

    #[test]
    fn many_allowed_ips_come_in_pieces_and_none_is_lost() {
        for count in [0, 1, ALLOWED_IPS, ALLOWED_IPS + 1, 5 * ALLOWED_IPS] {
            let allowed_ips: Vec<ipnet::IpNet> = (0..count)
                .map(|number| format!("fd00:1111:2222:3333:4444:5555:6666:{number:x}/128").parse().unwrap())
                .collect();
            let peer = PeerState { allowed_ips, ..PeerState::new(PublicKey::from_bytes([1; 32])) };
            let state = DeviceState { peers: vec![peer], ..DeviceState::default() };
            let text = text(state);
            assert_eq!(text.matches("allowed_ip=fd00:").count(), count);
            assert!(text.ends_with("errno=0\n\n"));
        }
    }
}
