//! The client gets another address.
//!
//! ```text
//!   client  wan 10.91.1.2, then .3 ─── router ─── 10.91.2.2 wan  server
//! ```

use std::net::{SocketAddr, UdpSocket};

use weft_lab::routed::{End, Routed};
use weft_lab::{PATIENCE, until};

use crate::conversation::MIB;
use crate::weft::{CLIENT, PORT, Pair, SERVER, inner_v4, options, routed, talk};

struct Moving {
    lab: Routed,
    pair: Pair,
    is_v6: bool,
}

impl Moving {
    fn start(is_v6: bool) -> Option<Self> {
        let lab = routed()?;
        let server = if is_v6 { Routed::v6(End::Server, 2) } else { Routed::v4(End::Server, 2) };
        let pair = Pair::start(&lab.client, &lab.server, server, None, &options());
        Some(Self { lab, pair, is_v6 })
    }

    fn client_at(&self, host: u8) -> Option<SocketAddr> {
        let address = if self.is_v6 { Routed::v6(End::Client, host) } else { Routed::v4(End::Client, host) };
        Some(SocketAddr::new(address, PORT))
    }

    #[track_caller]
    fn expect_at(&self, host: u8) {
        until("the server learns where the client is", || {
            self.pair.server.peer().endpoint == self.client_at(host)
        });
    }
}

#[test]
fn a_flow_goes_on_from_the_new_address() {
    for is_v6 in [false, true] {
        let Some(moving) = Moving::start(is_v6) else { return };
        let conversation = talk(&moving.lab.client, &moving.lab.server);
        for (from, to) in [(2, 3), (3, 2)] {
            moving.lab.move_end(End::Client, from, to).unwrap();
            moving.expect_at(to);
            conversation.wait_for_more(2 * MIB);
        }
        conversation.finish();
        // Neither end had to wait for a silence to start a new handshake.
        assert_eq!(moving.pair.client.handshakes(), 1);
    }
}

#[test]
fn a_client_with_nothing_to_send_tells_its_new_address() {
    for is_v6 in [false, true] {
        let Some(moving) = Moving::start(is_v6) else { return };
        talk(&moving.lab.client, &moving.lab.server).finish();
        // The last word is the client's, so that it owes no keepalive.
        let sink = moving.lab.server.run(|| UdpSocket::bind((inner_v4(SERVER), 0))).unwrap();
        sink.set_read_timeout(Some(PATIENCE)).unwrap();
        let client = moving.lab.client.run(|| UdpSocket::bind((inner_v4(CLIENT), 0))).unwrap();
        client.send_to(b"last", sink.local_addr().unwrap()).unwrap();
        assert_eq!(sink.recv(&mut [0; 8]).unwrap(), 4);
        assert_eq!(moving.pair.server.peer().endpoint, moving.client_at(2));
        let sealed = moving.pair.client.snapshot().tunnel.sealed;
        moving.lab.move_end(End::Client, 2, 3).unwrap();
        moving.expect_at(3);
        let after = moving.pair.client.snapshot().tunnel;
        // It had nothing to send, and did not have to wait for a silence to start a new handshake.
        assert_eq!((after.sealed, after.handshakes), (sealed, 1));
    }
}
