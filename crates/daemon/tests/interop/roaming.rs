//! An end moves under traffic: the other one follows, and TCP survives.
//!
//! ```text
//!     weft's namespace               router                wireguard-go's namespace
//!   weft0  10.7.0.1                                            wgo…  10.7.0.2
//!   wan  10.91.1.2, later .3 ─── .1        .1 ─── 10.91.2.2, later .3  wan
//!        fd91:0:0:1::2, …::3 ─ ::1        ::1 ─── fd91:0:0:2::2, …::3
//! ```

use std::net::{SocketAddr, UdpSocket};

use weft_lab::routed::{End as Side, Routed};
use weft_lab::until;

use crate::conversation::{Conversation, MIB};
use crate::end::{End, inner_v4};
use crate::topology::{Family, GO, GO_PORT, WEFT, WEFT_PORT};
use crate::weft_end::Weft;
use crate::wireguard_go::{WireguardGo, can_run};

/// A port that an end moves to.
const OTHER_PORT: u16 = 41414;

struct Roaming {
    lab: Routed,
    weft_end: End,
    go_end: End,
    weft: Weft,
    go: WireguardGo,
    conversation: Conversation,
}

impl Roaming {
    /// Both ends up and talking. Only weft was told where the other is.
    fn start(outside: Family) -> Option<Self> {
        if !can_run() {
            return None;
        }
        let lab = Routed::new(1500).unwrap();
        let (mut weft_end, mut go_end) = (End::new(WEFT, WEFT_PORT), End::new(GO, GO_PORT));
        weft_end.peers.push(go_end.as_peer(Some(endpoint(outside, Side::Server, 2, GO_PORT))));
        go_end.peers.push(weft_end.as_peer(None));
        let go = WireguardGo::start(&lab.server, &go_end);
        let weft = Weft::start(&lab.client, &weft_end);
        let conversation = Conversation::start((&lab.client, inner_v4(WEFT)), (&lab.server, inner_v4(GO)));
        conversation.wait_for_more(MIB);
        Some(Self { lab, weft_end, go_end, weft, go, conversation })
    }

    fn expect_weft_finds(&self, endpoint: SocketAddr) {
        until("weft follows its peer", || {
            self.weft.peer(&self.go_end.public_key()).endpoint == Some(endpoint)
        });
        self.conversation.wait_for_more(2 * MIB);
    }

    fn expect_go_finds(&self, endpoint: SocketAddr) {
        until("wireguard-go follows its peer", || {
            self.go.peer(&self.weft_end.public_key()).endpoint == Some(endpoint)
        });
        self.conversation.wait_for_more(2 * MIB);
    }

    /// Nothing was lost, and without another handshake.
    fn finish(self) {
        self.conversation.finish();
        assert_eq!(self.weft.snapshot().tunnel.handshakes, 1);
    }
}

/// Tells wireguard-go where weft is.
fn tell_go(go: &WireguardGo, weft: &End, endpoint: SocketAddr) {
    go.set(&["peer", &weft.public_key().to_string(), "endpoint", &endpoint.to_string()]);
}

fn endpoint(outside: Family, side: Side, host: u8, port: u16) -> SocketAddr {
    let address = match outside {
        Family::V4 => Routed::v4(side, host),
        Family::V6 => Routed::v6(side, host),
    };
    SocketAddr::new(address, port)
}

#[test]
fn weft_follows_its_peer_to_another_port() {
    let Some(roaming) = Roaming::start(Family::V4) else { return };
    roaming.go.set(&["listen-port", &OTHER_PORT.to_string()]);
    roaming.expect_weft_finds(endpoint(Family::V4, Side::Server, 2, OTHER_PORT));
    roaming.finish();
}

#[test]
fn weft_follows_its_peer_to_another_address_and_back() {
    for outside in [Family::V4, Family::V6] {
        let Some(roaming) = Roaming::start(outside) else { return };
        for (from, to) in [(2, 3), (3, 2)] {
            roaming.lab.move_end(Side::Server, from, to).unwrap();
            // wireguard-go holds on to the address that it last sent from, though it is gone, until it is
            // told of its peer's endpoint again (or has heard nothing for 15 s).
            tell_go(&roaming.go, &roaming.weft_end, endpoint(outside, Side::Client, 2, WEFT_PORT));
            roaming.expect_weft_finds(endpoint(outside, Side::Server, to, GO_PORT));
        }
        roaming.finish();
    }
}

#[test]
fn weft_follows_its_peer_from_one_family_to_the_other() {
    let Some(roaming) = Roaming::start(Family::V4) else { return };
    let Roaming { lab, weft_end, go_end, weft, go, conversation } = roaming;
    conversation.finish();
    let in_weft = lab.client.run(|| UdpSocket::bind((inner_v4(WEFT), 0))).unwrap();
    let in_go = lab.server.run(|| UdpSocket::bind((inner_v4(GO), 0))).unwrap();
    in_weft.set_nonblocking(true).unwrap();
    for outside in [Family::V6, Family::V4] {
        // Anything that still comes from weft leads wireguard-go back, so it is told until it has sent
        // something.
        until("weft follows its peer", || {
            tell_go(&go, &weft_end, endpoint(outside, Side::Client, 2, WEFT_PORT));
            in_go.send_to(b"here I am", in_weft.local_addr().unwrap()).unwrap();
            weft.peer(&go_end.public_key()).endpoint == Some(endpoint(outside, Side::Server, 2, GO_PORT))
        });
        let conversation = Conversation::start((&lab.client, inner_v4(WEFT)), (&lab.server, inner_v4(GO)));
        conversation.wait_for_more(MIB);
        conversation.finish();
        let view = go.peer(&weft_end.public_key());
        assert_eq!(view.endpoint, Some(endpoint(outside, Side::Client, 2, WEFT_PORT)));
    }
    assert_eq!(weft.snapshot().tunnel.handshakes, 1);
}

#[test]
fn weft_itself_moves_to_another_address_and_back() {
    for outside in [Family::V4, Family::V6] {
        let Some(roaming) = Roaming::start(outside) else { return };
        for (from, to) in [(2, 3), (3, 2)] {
            roaming.lab.move_end(Side::Client, from, to).unwrap();
            roaming.expect_go_finds(endpoint(outside, Side::Client, to, WEFT_PORT));
        }
        roaming.finish();
    }
}

#[test]
fn weft_comes_back_on_another_port_and_address() {
    let Some(mut roaming) = Roaming::start(Family::V4) else { return };
    roaming.weft.stop();
    roaming.lab.move_end(Side::Client, 2, 3).unwrap();
    roaming.weft_end.port = OTHER_PORT;
    roaming.weft = Weft::start(&roaming.lab.client, &roaming.weft_end);
    roaming.expect_go_finds(endpoint(Family::V4, Side::Client, 3, OTHER_PORT));
    roaming.finish();
}
