//! The machine slept for longer than a session lives, and its clock did not notice; or the clock was set.
//!
//! ```text
//!   client  wan 10.91.1.2 ─── router ─── 10.91.2.2 wan  server
//! ```

use std::time::Duration;

use weft_host::network::NetworkChange;
use weft_lab::routed::{End, Routed};
use weft_lab::until;

use crate::conversation::MIB;
use crate::weft::{Pair, options, routed, talk};

#[test]
fn after_a_long_sleep_a_new_session_is_there_before_it_is_needed() {
    let Some(lab) = routed() else { return };
    let pair = Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), None, &options());
    talk(&lab.client, &lab.server).finish();
    assert_eq!(pair.client.handshakes(), 1);
    pair.client.tell(NetworkChange { slept: Some(Duration::from_secs(3600)), ..NetworkChange::default() });
    until("there is a new session", || pair.client.handshakes() == 2 && pair.server.handshakes() == 2);
    talk(&lab.client, &lab.server).finish();
}

#[test]
fn a_clock_that_is_put_right_costs_no_packet_and_the_next_handshake_comes_through() {
    let Some(lab) = routed() else { return };
    let pair = Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), None, &options());
    let conversation = talk(&lab.client, &lab.server);
    for end in [&pair.client, &pair.server] {
        end.tell(NetworkChange {
            clock_set_forward: Some(Duration::from_secs(3600)),
            ..NetworkChange::default()
        });
        conversation.wait_for_more(MIB);
    }
    // The old session is used until a new one is needed.
    assert_eq!((pair.client.handshakes(), pair.server.handshakes()), (1, 1));
    pair.client.tell(NetworkChange { slept: Some(Duration::from_secs(3600)), ..NetworkChange::default() });
    until("there is a new session", || pair.client.handshakes() == 2 && pair.server.handshakes() == 2);
    conversation.wait_for_more(MIB);
    conversation.finish();
}
