//! The event loops of nodes: turns that read the TUN and the socket, run timers and drain queues.
//!
//! A node may have several shards: the simulation then does what the kernel and the event loops do between
//! them, on one thread.

use weft_tunnel::{
    Change, DropReason, Event, Inbound, Offload, Outbound, PacketMut, Progress, RecvMeta, TAILROOM, Tunnel,
};

use super::World;
use super::network::Datagram;
use super::node::{Node, hand_over, shard_of};

/// Bound of the turns at one instant, so that a tunnel that never finishes fails the test.
const MAX_TURNS_AT_ONE_INSTANT: usize = 10_000;

impl World {
    /// Sends a packet from the TUN of `from`.
    pub(crate) fn give(
        &mut self,
        from: usize,
        mut packet: Vec<u8>,
        offload: Offload,
    ) -> Result<Outbound, DropReason> {
        self.pump(from);
        let shard = self.shard_for(from, &packet);
        let len = packet.len();
        packet.resize(len + TAILROOM, 0xee);
        let mut packet = PacketMut::new(&mut packet, len, offload).unwrap();
        let now = self.now;
        let Node { tunnel, others, transmits, .. } = &mut self.nodes[from];
        assert!(transmits.has_room_for_super_packet());
        let result = shard_of(tunnel, others, shard).handle_tun_packet(&mut packet, now, transmits);
        self.pump(from);
        result
    }

    /// Returns the shard that handles a packet from the TUN: any shard may read it, and hands it over.
    fn shard_for(&mut self, node: usize, packet: &[u8]) -> usize {
        let shards = self.nodes[node].shard_count();
        let reader = if shards == 1 { 0 } else { (self.random() % shards as u64) as usize };
        let owner = self.nodes[node].shard_mut(reader).shard_of(packet);
        assert_ne!(owner, Some(reader as u16), "that is the reader itself");
        owner.map_or(reader, usize::from)
    }

    /// Delivers a datagram from the socket of `to`, as its event loop does. Returns the inner packet.
    pub(crate) fn deliver(&mut self, to: usize, datagram: &Datagram) -> Result<Option<Vec<u8>>, DropReason> {
        let meta = RecvMeta {
            source: datagram.source,
            local: Some(datagram.destination.ip()),
            ecn: datagram.ecn,
            len: datagram.bytes.len(),
            stride: datagram.bytes.len().max(1),
        };
        let now = self.now;
        let is_stray = self.happens(self.stray_percent);
        let stray = if is_stray { self.random() as usize % self.nodes[to].shard_count() } else { 0 };
        let node = &mut self.nodes[to];
        node.plain.clear();
        let before = node.drops();
        let mut bytes = datagram.bytes.clone();
        let receiver = if is_stray { stray } else { node.socket_of(datagram) };
        let Node { tunnel, others, plain, control, .. } = node;
        let mut result =
            shard_of(tunnel, others, receiver).handle_datagram(&meta, &mut bytes, now, plain, control);
        if let Ok(Inbound::Elsewhere(shard)) = result {
            assert_ne!(usize::from(shard), receiver, "handed over to itself");
            assert_eq!(node.drops(), before, "it is not dropped");
            assert!(node.control.is_empty(), "and not answered");
            self.handed_over += 1;
            self.handed_over_initiations += u64::from(datagram.bytes[0] == 1);
            let Node { tunnel, others, plain, control, .. } = node;
            let tunnel = shard_of(tunnel, others, shard.into());
            result = hand_over(tunnel, &meta, &bytes, now, plain, control);
            // A datagram that the kernel gave to the wrong shard, of a peer that moved.
            if let Ok(Inbound::Elsewhere(shard)) = result {
                assert!(node.has_moves && is_stray, "handed over again, to {shard}");
                let Node { tunnel, others, plain, control, .. } = node;
                let tunnel = shard_of(tunnel, others, shard.into());
                result = hand_over(tunnel, &meta, &bytes, now, plain, control);
            }
        }
        assert_eq!(bytes, datagram.bytes, "it is as it was");
        if let Err(reason) = result {
            self.data.refused += u64::from(Tunnel::is_data(&bytes) && bytes.len() > 32);
            let after = node.drops();
            assert_eq!(after.get(reason), before.get(reason) + 1, "{reason:?} is counted once");
            assert_eq!(after.total(), before.total() + 1, "and nothing else is");
        }
        let packet = result.map(|inbound| match inbound {
            Inbound::Packet(plain) => Some(node.plain.get(plain).to_vec()),
            Inbound::Consumed => None,
            Inbound::Elsewhere(shard) => panic!("handed over again, to {shard}"),
        });
        if let Ok(Some(packet)) = &packet {
            node.packets.push(packet.clone());
        }
        self.pump(to);
        packet
    }

    /// Runs turns of the event loop of `node`: staged packets, timers, and everything that waits for the
    /// socket.
    pub(crate) fn pump(&mut self, node: usize) {
        for shard in 0..self.nodes[node].shard_count() {
            self.pump_shard(node, shard);
        }
        self.nodes[node].check_indices();
    }

    fn pump_shard(&mut self, node: usize, shard: usize) {
        let now = self.now;
        for _ in 0..MAX_TURNS_AT_ONE_INSTANT {
            let Node { tunnel, others, transmits, control, events, .. } = &mut self.nodes[node];
            let tunnel = shard_of(tunnel, others, shard);
            let mut progress = Progress::Done;
            if self.flushes && tunnel.has_ready_staged() {
                progress = tunnel.flush_staged(now, transmits);
            }
            if tunnel.handle_timeout(now, control) == Progress::Blocked {
                progress = Progress::Blocked;
            }
            let first_event = events.len();
            while let Some(event) = tunnel.poll_event() {
                events.push(event);
            }
            self.tell_first_shard(node, shard, first_event);
            self.drain(node);
            if progress == Progress::Done {
                let due = self.nodes[node].shard_mut(shard).poll_timeout();
                assert!(due.is_none_or(|(at, _)| at > now), "still due after handle_timeout: {due:?}");
                return;
            }
        }
        panic!("a tunnel never has enough");
    }

    /// Tells shard 0, which receives all initiations, where the peers of another shard are now.
    fn tell_first_shard(&mut self, node: usize, shard: usize, first_event: usize) {
        if shard == 0 {
            return;
        }
        let Node { tunnel, events, .. } = &mut self.nodes[node];
        for event in &events[first_event..] {
            if let Event::EndpointChanged { peer, endpoint } = *event {
                assert!(tunnel.apply(Change::Endpoint { peer, endpoint }, self.now));
            }
        }
    }

    fn drain(&mut self, node: usize) {
        if self.full.contains(&node) {
            return;
        }
        while let Some(message) = self.nodes[node].control.pop() {
            self.put_on_the_wire(node, &message.transmit());
        }
        while let Some(batch) = self.nodes[node].transmits.pop() {
            self.nodes[node].last_path_peer = Some(batch.path().peer);
            self.put_on_the_wire(node, &batch.unsent());
            self.nodes[node].transmits.recycle(batch);
        }
    }
}
