//! The sockets of every system but Linux, on Linux. What the tests of [`crate::Udp`] rely on is in
//! [`crate::tests`].

use weft_tunnel::{Ecn, Transmit};

use super::*;
use crate::tests::{V4, contents, in_namespace, open, receive, send, to};
use crate::{Udp as _, UdpConfig, open_shards};

mod script;

#[test]
fn what_only_the_sockets_of_linux_do_is_not_run() {
    for test in [
        "steering: sockets of handshake messages and junk, and their filters (12 tests)",
        "shards: several packet threads that share a port (11 tests)",
        "a_datagram_beyond_the_buffer_is_flagged",
        "without_gso_a_batch_is_one_call_of_single_datagrams",
        "what_is_told_of_the_send_buffer_is_that_of_the_sockets_that_send",
    ] {
        weft_lab::not_run(test, "the portable sockets do not do this");
    }
}

#[test]
fn several_packet_threads_are_refused() {
    let error = open_shards(Vec::new(), &UdpConfig::default(), 2).unwrap_err().to_string();
    assert!(error.ends_with("this system allows 1 to 1"), "{error}");
}

#[test]
fn an_invalid_source_costs_others_neither_batches_nor_ecn() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        let sent = contents(100, 800);
        // No address of a machine: EINVAL on every kernel.
        let invalid = Some([224, 0, 0, 1].into());
        let transmit = Transmit { source: invalid, ..to(V4, b.port(), 100, &sent) };
        assert!(send(&mut a, transmit).await.unwrap().source_unusable);
        receive(&mut b, 8).await;

        let before = a.stats().batches_sent;
        let transmit = Transmit { ecn: Ecn::Ect0, ..to(V4, b.port(), 100, &sent) };
        send(&mut a, transmit).await.unwrap();
        assert_eq!(a.stats().batches_sent, before + 1);
        assert!(receive(&mut b, 8).await.iter().all(|(meta, _)| meta.ecn == Ecn::Ect0));
    });
}
