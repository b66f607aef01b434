//! The machine slept for longer than a session lives, and its clock did not notice; or the clock was set.
//!
//! ```text
//!   client  wan 10.91.1.2 ─── router ─── 10.91.2.2 wan  server
//! ```

use std::time::Duration;

use weft_host::network::Change;
use weft_lab as lab;
use weft_lab::routed::{End, Routed};

use crate::conversation::{Conversation, MIB};
use crate::waiting::until;
use crate::weft::{CLIENT, Pair, SERVER, inner_v4, options};

#[test]
fn after_a_long_sleep_a_new_session_is_there_before_anybody_asks() {
    if !lab::tun_permitted("after_a_long_sleep_a_new_session_is_there_before_anybody_asks") {
        return;
    }
    let lab = Routed::new(1500).unwrap();
    let pair = Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), None, &options());
    let talk = || {
        let conversation =
            Conversation::start((&lab.client, inner_v4(CLIENT)), (&lab.server, inner_v4(SERVER)));
        conversation.wait_for_more(MIB);
        conversation.finish();
    };
    talk();
    assert_eq!(pair.client.handshakes(), 1);
    pair.client.tell(Change { slept: Some(Duration::from_secs(3600)), ..Change::default() });
    until("there is a new session", || pair.client.handshakes() == 2 && pair.server.handshakes() == 2);
    talk();
}

#[test]
fn a_clock_that_is_put_right_costs_no_packet_and_the_next_handshake_comes_through() {
    if !lab::tun_permitted("a_clock_that_is_put_right_costs_no_packet_and_the_next_handshake_comes_through") {
        return;
    }
    let lab = Routed::new(1500).unwrap();
    let pair = Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), None, &options());
    let conversation = Conversation::start((&lab.client, inner_v4(CLIENT)), (&lab.server, inner_v4(SERVER)));
    conversation.wait_for_more(MIB);
    for end in [&pair.client, &pair.server] {
        end.tell(Change { clock_set_forward: Some(Duration::from_secs(3600)), ..Change::default() });
        conversation.wait_for_more(MIB);
    }
    // What was agreed before is used until somebody needs a new session.
    assert_eq!((pair.client.handshakes(), pair.server.handshakes()), (1, 1));
    pair.client.tell(Change { slept: Some(Duration::from_secs(3600)), ..Change::default() });
    until("there is a new session", || pair.client.handshakes() == 2 && pair.server.handshakes() == 2);
    conversation.wait_for_more(MIB);
    conversation.finish();
}
