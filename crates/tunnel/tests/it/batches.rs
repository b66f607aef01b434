//! GSO batches: which datagrams go to the socket together.

use weft_tunnel::{Offload, Outbound, PacketMut, TAILROOM, TransmitQueue};

use crate::sim::{A, B, World, inner_v4, tcp};

#[test]
fn a_batch_ends_with_its_super_packet() {
    let mut world = World::settled_pair();
    let now = world.now;
    let mut transmits = TransmitQueue::new(16);
    // Single packets share a batch, with each other and with a super-packet behind them.
    for segments in [3, 1, 1, 2, 2] {
        let mut bytes = tcp(inner_v4(A), inner_v4(B), 1, &vec![5; segments * 1000]);
        let len = bytes.len();
        bytes.resize(len + TAILROOM, 0);
        let offload =
            if segments > 1 { Offload::TcpSegmentation { segment_size: 1000 } } else { Offload::None };
        let mut packet = PacketMut::new(&mut bytes, len, offload).unwrap();
        let tunnel = &mut world.nodes[A].tunnel;
        assert_eq!(tunnel.handle_tun_packet(&mut packet, now, &mut transmits), Ok(Outbound::Sealed));
    }
    assert_eq!(transmits.len(), 3);
    let batches: Vec<usize> =
        std::iter::from_fn(|| transmits.pop()).map(|batch| batch.unsent().segments()).collect();
    assert_eq!(batches, [3, 4, 2]);
}
