//! Batches sent with one call, and the fallback where the kernel or the path does not accept them.

use super::*;

#[test]
fn a_batch_travels_whole_and_is_received_with_its_stride() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        let sent = contents(1200, 1200 * 30 + 37);
        for address in [V4, V6] {
            let accepted = send(&mut a, to(address, b.port(), 1200, &sent)).await.unwrap();
            assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: false, path_mtu: None });
            let received = receive(&mut b, 31).await;
            assert_in_order(&received, &sent, 1200);
            for (meta, _) in &received {
                assert_eq!(meta.source, SocketAddr::new(address, a.port()));
                assert_eq!(meta.local, Some(address));
                assert_eq!((meta.stride, meta.len), (1200, sent.len()));
            }
        }
        let stats = a.stats();
        assert_eq!((stats.datagrams_sent, stats.batches_sent), (62, 2));
        assert_eq!(stats.batch_segments, [0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(stats.bytes_sent, 2 * sent.len() as u64);
        let stats = b.stats();
        assert_eq!((stats.datagrams_received, stats.recv_calls), (62, 2));
        assert_eq!(stats.bytes_received, 2 * sent.len() as u64);
    });
}

#[test]
fn a_batch_is_separate_datagrams_for_any_other_program() {
    in_namespace(async || {
        let mut a = open();
        for (address, equal) in [(V4, true), (V4, false), (V6, true), (V6, false)] {
            let other = StdSocket::bind((address, 0)).unwrap();
            let port = other.local_addr().unwrap().port();
            let sent = contents(1000, 1000 * 64 - if equal { 0 } else { 1 });
            let accepted = send(&mut a, to(address, port, 1000, &sent)).await.unwrap();
            assert_eq!(accepted.bytes, sent.len());
            for expected in sent.chunks(1000) {
                let mut bytes = [0; 2000];
                let len = other.recv(&mut bytes).unwrap();
                assert_eq!(&bytes[..len], expected);
            }
        }
    });
}

#[test]
fn one_call_takes_what_udp_carries_and_says_so() {
    in_namespace(async || {
        let mut a = open();
        let sent = contents(1000, 80_000);
        let accepted = send(&mut a, to(V4, 9, 1000, &sent)).await.unwrap();
        assert_eq!(accepted.bytes, 64_000);
        let accepted = send(&mut a, to(V4, 9, 1452, &sent)).await.unwrap();
        assert_eq!(accepted.bytes, 45 * 1452);
    });
}

#[test]
fn a_datagram_beyond_what_udp_carries_is_too_long() {
    in_namespace(async || {
        let mut a = open();
        let sent = vec![0; 65_508];
        let answer = send(&mut a, to(V4, 9, 65_508, &sent)).await;
        assert!(matches!(answer, Err(SendError::TooLong)), "{answer:?}");
    });
}
