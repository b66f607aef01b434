//! Peers that are changed while streams pass: no session ends, no packet is lost, no byte is wrong.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::IpNet;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::settings::PeerSettingsChange;
use weft_host::routes::Netlink;
use weft_lab::traffic::Amount;
use weft_tunnel::{DropReason, PresharedKey};
use weft_uapi::Control as _;

use crate::accounts::{Bed, Setting, unexplained_drops_besides};
use crate::support::{End, Family, PORT, alone};

const FLOWS: u32 = 4;
/// Bytes of each flow: long enough for some rounds of changes on any machine.
const BYTES: u64 = 12 << 20;

fn net(text: &str) -> AllowedIpChange {
    AllowedIpChange::Add(text.parse::<IpNet>().unwrap())
}

/// Another address of the outer interface, in the same family: two sockets have no order between them.
fn second_address(end: End) -> IpAddr {
    match end.outer(Family::V4) {
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() + 100)),
        address => address,
    }
}

fn add_second_address(bed: &Bed, end: End) {
    bed.ends.namespace(end).run(|| {
        let netlink = Netlink::open().unwrap();
        let link = netlink.link(&"eth0".parse().unwrap()).unwrap();
        netlink.add_address(&link, IpNet::new(second_address(end), 24).unwrap()).unwrap();
    });
}

/// Every setting of a peer that can change while its session goes on, each by itself.
fn changes(bed: &Bed, end: End, round: usize, preshared_key: &PresharedKey) -> Vec<PeerChange> {
    let controller = bed.controller(end);
    let state = controller.get().unwrap();
    let peer = &state.peers[0];
    let other = if end == End::A { End::B } else { End::A };
    let address = if round.is_multiple_of(2) { second_address(other) } else { other.outer(Family::V4) };
    let mut all: Vec<AllowedIpChange> = peer.allowed_ips.iter().copied().map(AllowedIpChange::Add).collect();
    all.push(net("10.200.0.0/16"));
    let change = || PeerChange { update_only: true, ..PeerChange::new(peer.public_key) };
    let set = |settings| PeerChange { settings, ..change() };
    let keepalive = |interval| {
        set(PeerSettingsChange { persistent_keepalive: Some(interval), ..PeerSettingsChange::default() })
    };
    let shared = |key| set(PeerSettingsChange { preshared_key: Some(key), ..PeerSettingsChange::default() });
    vec![
        keepalive(NonZeroU16::new(25)),
        shared(Some(preshared_key.clone())),
        PeerChange { endpoint: Some(SocketAddr::new(address, PORT)), ..change() },
        // All of them again and one more, as `wg syncconf` says it.
        PeerChange { replace_allowed_ips: true, allowed_ips: all, ..change() },
        PeerChange {
            allowed_ips: vec![AllowedIpChange::Remove("10.200.0.0/16".parse().unwrap())],
            ..change()
        },
        keepalive(None),
        shared(None),
    ]
}

#[test]
fn streams_go_on_unharmed_while_their_peers_are_changed() {
    let _alone = alone();
    for setting in [Setting::inline(1), Setting::threads(2)] {
        let Some(bed) = Bed::new(setting) else { return };
        add_second_address(&bed, End::A);
        add_second_address(&bed, End::B);
        let transfer = bed.ends.transfer(End::A, Family::V4, FLOWS, Amount::Count(BYTES));
        let (mut rounds, mut under_way) = (0, 0);
        while !transfer.is_finished() {
            let before = transfer.bytes();
            let preshared_key = PresharedKey::generate().unwrap();
            for end in [End::A, End::B] {
                for peer in changes(&bed, end, rounds, &preshared_key) {
                    let change = DeviceChange { peers: vec![peer], ..DeviceChange::default() };
                    bed.controller(end).set(change).unwrap();
                }
            }
            rounds += 1;
            under_way += usize::from(before > 0 && transfer.bytes() > before);
        }
        assert_eq!(transfer.finish(), u64::from(FLOWS) * BYTES, "{setting:?}");
        assert!(under_way > 0, "of {rounds} rounds none met traffic");
        for end in [End::A, End::B] {
            let reading = bed.read(end);
            let handshakes = reading.weft.tunnel.handshakes;
            assert_eq!(handshakes, 1, "{setting:?}, {rounds} rounds: a session ended");
            // What was sent from a peer's new address may overtake what still waits from its old one, in
            // another socket, by more than the replay window.
            assert_eq!(unexplained_drops_besides(&reading, &[DropReason::Replayed]), None, "{setting:?}");
        }
        bed.stop();
    }
}
