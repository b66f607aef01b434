//! The sockets of every system but Linux, on Linux. What the tests of [`crate::Udp`] rely on is in
//! [`crate::tests`].

use super::*;

mod script;

impl UdpSockets {
    /// Returns sockets of a machine without IPv6.
    pub(crate) fn of_v4_alone() -> Self {
        let config = UdpConfig::default();
        let (v4, _) = bind::bind_both(&config).unwrap();
        Self::from_sockets(v4, None, &config).unwrap()
    }
}

#[test]
fn what_only_the_sockets_of_linux_do_is_not_run() {
    for test in [
        "steering: sockets of handshake messages and junk, and their filters (12 tests)",
        "a_datagram_beyond_the_buffer_is_flagged",
        "without_gso_a_batch_is_one_call_of_single_datagrams",
        "what_is_told_of_the_send_buffer_is_that_of_the_sockets_that_send",
    ] {
        weft_lab::not_run(test, "the portable sockets do not do this");
    }
}
