use super::*;
use crate::link::{self, LinkOptions};
use crate::{PATIENCE, wait_until};

/// Two joined namespaces: 10.90.0.1 and fd90::1 in the first one, .2 and ::2 in the second one.
fn pair() -> Option<(Namespace, Namespace)> {
    if !crate::here::namespaces_permitted() {
        return None;
    }
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let nets = |texts: [&str; 2]| texts.map(|text| text.parse().unwrap()).to_vec();
    let options = LinkOptions {
        addresses_a: nets(["10.90.0.1/24", "fd90::1/64"]),
        addresses_b: nets(["10.90.0.2/24", "fd90::2/64"]),
        ..LinkOptions::default()
    };
    link::join(&a, &b, &options).unwrap();
    Some((a, b))
}

fn run(a: &Namespace, b: &Namespace, options: NumberedOptions) -> NumberedReport {
    let address = |text: &str| text.parse().unwrap();
    Numbered::start(a, address("10.90.0.1"), b, address("10.90.0.2"), options).unwrap().finish()
}

#[test]
fn ten_thousand_flows_arrive_and_every_fifth_datagram_is_answered() {
    let Some((a, b)) = pair() else { return };
    let options = NumberedOptions {
        flows: 10_000,
        datagram_bytes: 100,
        datagrams_per_second: 50_000,
        burst: 5,
        amount: Amount::Count(50_000),
        replies: Replies::EveryPackets(5),
        ..NumberedOptions::default()
    };
    let report = run(&a, &b, options);
    assert_eq!((report.flows, report.silent_flows), (10_000, 0));
    let all = |count| Tally { sent: count, received: count, ..Tally::default() };
    assert_eq!(report.forward, all(50_000));
    assert_eq!(report.replies, all(10_000));
}

#[test]
fn super_packets_arrive_as_the_datagrams_they_were_made_of() {
    let Some((a, b)) = pair() else { return };
    let options = NumberedOptions {
        flows: 2,
        datagram_bytes: 1000,
        datagrams_per_second: 20_000,
        burst: 32,
        segmentation_offload: true,
        amount: Amount::Count(3_210),
        replies: Replies::From(1_000),
    };
    let report = run(&a, &b, options);
    assert_eq!(report.forward, Tally { sent: 3_210, received: 3_210, ..Tally::default() });
    assert_eq!(report.replies.sent, report.replies.received);
    assert!(report.replies.sent > 1_000);
}

#[test]
fn what_a_removed_link_swallows_is_lost_and_nothing_else() {
    let Some((a, b)) = pair() else { return };
    let options =
        NumberedOptions { amount: Amount::Until(Instant::now() + PATIENCE), ..NumberedOptions::default() };
    let address = |text: &str| text.parse().unwrap();
    let flows = Numbered::start(&a, address("fd90::1"), &b, address("fd90::2"), options).unwrap();
    wait_until("datagrams to arrive", || (flows.progress().1 >= 300).then_some(()));
    link::remove(&a, "eth0").unwrap();
    wait_until("datagrams to be refused", || (flows.shared.refused.load(Relaxed) > 100).then_some(()));
    flows.stop();
    let report = flows.finish();
    let forward = report.forward;
    assert!(forward.refused > 100 && forward.received >= 300, "{forward:?}");
    assert_eq!((forward.corrupt, forward.duplicates, forward.out_of_order), (0, 0, 0));
}

#[test]
fn tcp_runs_both_ways_at_once_over_a_link() {
    use crate::traffic::{TcpReceiver, TcpSenders};
    let Some((a, b)) = pair() else { return };
    let listen = |namespace: &Namespace, address: &str| {
        namespace.run(|| TcpReceiver::listen(SocketAddr::new(address.parse().unwrap(), 0))).unwrap()
    };
    let (at_a, at_b) = (listen(&a, "fd90::1"), listen(&b, "10.90.0.2"));
    let amount = Amount::Count(2_000_000);
    let forth = TcpSenders::start(&a, at_b.local_addr(), 64, amount, 1).unwrap();
    let back = TcpSenders::start(&b, at_a.local_addr(), 3, amount, 2).unwrap();
    for (sent, received, count) in [(forth.finish(), at_b.finish(), 64), (back.finish(), at_a.finish(), 3)] {
        assert_eq!((sent.len(), received.len()), (count, count));
        for flow in sent {
            assert_eq!((flow.bytes, flow.confirmed, flow.error), (2_000_000, 2_000_000, None));
        }
        for flow in received {
            assert_eq!((flow.bytes, flow.first_mismatch, flow.error), (2_000_000, None, None));
        }
    }
}
