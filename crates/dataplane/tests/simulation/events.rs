//! What the events of a plan do.

use std::num::NonZeroU16;

use weft_tunnel::{Change, MAX_BATCH_SEGMENTS, MAX_PACKET, Offload, PeerConfig, ip};

use crate::kernel::Given;
use crate::network::Network;
use crate::node::MTU;
use crate::packet::{ACK, CWR, FIN, Label, PSH, inner_v4, join, leave_checksum};
use crate::plan::{Event, Flow, GATEWAY, ROVING, addresses_of};
use crate::world::World;

/// Segments of a TCP super-packet at most: more would be longer than an IP packet, but for tiny ones.
pub(crate) const MAX_TCP_SEGMENTS: usize = 512;

impl World {
    pub(crate) fn happen(&mut self, node: usize, event: Event) {
        match event {
            // While no daemon runs, no one changes its configuration.
            Event::Remove(_) | Event::Add(_) | Event::Keepalive | Event::Reroute(_)
                if !self.nodes[node].runs() => {}
            Event::Burst => self.burst(node),
            Event::Stray => self.stray(node),
            Event::TunIsFull(is_full) => {
                self.network.borrow_mut().kernels[node].fill_tun(is_full);
            }
            Event::SocketIsFull(is_full) => {
                let now = self.now();
                self.network.borrow_mut().kernels[node].fill_socket(is_full, now);
            }
            Event::Errors(percent) => self.network.borrow_mut().kernels[node].errors_percent = percent,
            Event::Cut(is_cut) => self.network.borrow_mut().cut[node] = is_cut,
            Event::Translator => {
                let now = self.now();
                let kernel = &mut self.network.borrow_mut().kernels[node];
                if let Some(translator) = &mut kernel.translator {
                    translator.outside.set_port(translator.outside.port() + 1);
                    kernel.moved_at = now;
                }
            }
            Event::Port => {
                let port = 1024 + self.chance.below(60_000) as u16;
                self.nodes[node].rebind(port);
            }
            Event::Restart => {
                let now = self.now();
                self.network.borrow_mut().kernels[node].restart(now);
                self.removed.retain(|(of, _)| *of != node);
                self.nodes[node].start();
            }
            Event::HandOver => self.nodes[node].hand_over(),
            Event::TakeOver => self.nodes[node].take_over(),
            Event::Clock => self.nodes[node].ahead += self.chance.below(100_000) as i64,
            Event::Remove(other) => {
                if self.removed.insert((node, other)) {
                    let key = self.nodes[node].peers[&other].public_key;
                    self.nodes[node].change(vec![Change::RemovePeer(key)]);
                }
            }
            Event::Add(other) => {
                if self.removed.remove(&(node, other)) {
                    let config = Box::new(self.nodes[node].peers[&other].clone());
                    self.nodes[node].change(vec![Change::AddPeer(config)]);
                }
            }
            Event::Keepalive => {
                let interval = NonZeroU16::new(self.chance.below(30) as u16);
                for peer in self.nodes[node].peers.values_mut() {
                    peer.settings.persistent_keepalive = interval;
                }
                let peers = self.nodes[node].peers.values();
                let change =
                    |peer: &PeerConfig| Change::PersistentKeepalive { peer: peer.public_key, interval };
                let changes = peers.map(change).collect();
                self.nodes[node].change(changes);
            }
            Event::Reroute(other) => self.nodes[node].reroute(other, addresses_of(ROVING)),
            Event::Move(other, thread) => self.nodes[node].move_peer(other, thread),
            Event::Snapshot => self.nodes[node].ask(),
            Event::LinkMtu(mtu) => self.network.borrow_mut().set_link_mtu(node, mtu),
            Event::Junk => self.junk(node),
        }
    }

    fn stray(&mut self, node: usize) {
        let other = if node == GATEWAY { 1 } else { GATEWAY };
        let mut headers = Flow::plain(node, other, 0).headers;
        if self.chance.happens(50) {
            headers.destination = inner_v4(200).into();
        } else {
            headers.source = inner_v4(100).into();
        }
        let label = Label { number: 0, from: node as u32, to: 0, flow: 0, place: 0 };
        let bytes = headers.next_packet(&label.payload(100), 0);
        self.network.borrow_mut().give(
            node,
            0,
            Vec::new(),
            Given { bytes, offload: Offload::None, segments: 1 },
        );
    }

    fn junk(&mut self, node: usize) {
        for _ in 0..self.chance.below(300) {
            let len: usize = *self.chance.one_of(&[0, 1, 31, 32, 64, 92, 148, 1000]);
            let chance = &mut self.chance;
            let mut bytes: Vec<u8> = (0..len).map(|_| chance.next() as u8).collect();
            if len > 4 {
                bytes[..4].copy_from_slice(&[1 + chance.below(4) as u8, 0, 0, 0]);
            }
            self.network.borrow_mut().stranger(node, bytes);
        }
    }

    fn burst(&mut self, node: usize) {
        let flows: Vec<_> = (0..self.flows.len()).filter(|flow| self.flows[*flow].from == node).collect();
        let flow = *self.chance.one_of(&flows);
        // Seldom more than a socket or a TUN can hold for a moment.
        let magnitude = if self.chance.happens(2) { 12 } else { self.chance.below(7) };
        let mut count = 1 + self.chance.below(1 << magnitude);
        // Packets of one size are joined on their way.
        let len = self.chance.below(usize::from(MTU));
        let is_even = self.chance.happens(50);
        let joins = self.network.borrow().kernels[node].has_offloads && is_even;
        while count > 0 {
            let len = if is_even { len } else { self.chance.below(usize::from(MTU)) };
            count -= if joins { self.give_joined(flow, len, count) } else { self.give(flow, len).1 };
        }
    }

    /// Gives a packet of a flow to the TUN of its sender. Returns its number, and how many there are.
    pub(crate) fn give(&mut self, flow: usize, len: usize) -> (u64, usize) {
        let mut network = self.network.borrow_mut();
        let flow = &mut self.flows[flow];
        let len = flow.longest(&network).min(len);
        let (number, mut packet) = flow.next_packet(network.new_number(), len, ACK);
        let leaves_checksum = network.kernels[flow.from].has_offloads && flow.headers.has_checksum;
        let (bytes, offload) =
            if leaves_checksum { leave_checksum(&mut packet) } else { (packet.clone(), Offload::None) };
        network.give(flow.from, flow.number, vec![(number, packet)], Given { bytes, offload, segments: 1 });
        (number, 1)
    }

    /// Gives up to `most` packets of a flow to the TUN of its sender as one super-packet. Returns how many
    /// there are.
    fn give_joined(&mut self, index: usize, len: usize, most: usize) -> usize {
        let mut network = self.network.borrow_mut();
        let flow = &mut self.flows[index];
        // What the kernel joins has a checksum.
        flow.headers.has_checksum = true;
        let is_tcp = flow.headers.protocol == ip::TCP;
        let len = flow.longest(&network).min(len);
        let payload = flow.payload_of(len);
        let most = most
            .min(if is_tcp { MAX_TCP_SEGMENTS } else { MAX_BATCH_SEGMENTS })
            .min((MAX_PACKET - flow.headers.len()) / payload);
        if most < 2 {
            drop(network);
            return self.give(index, len).1;
        }
        let (at_first, at_last) =
            (if self.chance.happens(10) { CWR } else { 0 }, *self.chance.one_of(&[0, PSH, PSH | FIN]));
        let mut packets = Vec::new();
        for place in 0..most {
            let is_last = place + 1 == most;
            let len = if is_last { flow.headers.len() + 1 + self.chance.below(payload) } else { len };
            let flags = if place == 0 { at_first } else { 0 } | if is_last { at_last } else { 0 };
            packets.push(flow.next_packet(network.new_number(), len, ACK | flags));
        }
        let bytes: Vec<_> = packets.iter().map(|(_, packet)| packet.clone()).collect();
        let (bytes, offload) = join(&bytes);
        network.give(flow.from, flow.number, packets, Given { bytes, offload, segments: most as u64 });
        most
    }
}

impl Flow {
    /// Returns the bytes of the longest packet that programs send in this flow now.
    pub(crate) fn longest(&self, network: &Network) -> usize {
        // IPv6 knows no packets that routers may fragment.
        let stays_whole = self.headers.stays_whole || self.headers.destination.is_ipv6();
        let mtu = network.kernels[self.from].inner_mtu(self.headers.destination, network.now);
        if stays_whole { mtu.min(usize::from(MTU)) } else { usize::from(MTU) }
    }

    /// Returns the bytes of the payload of a packet of `len` bytes.
    fn payload_of(&self, len: usize) -> usize {
        len.saturating_sub(self.headers.len()).max(Label::BYTES)
    }

    /// Returns the next packet, of `len` bytes or as many as it needs, with its number in the world.
    fn next_packet(&mut self, number: u64, len: usize, flags: u8) -> (u64, Vec<u8>) {
        let label = Label {
            number,
            from: self.from as u32,
            to: self.to as u32,
            flow: self.number,
            place: self.places,
        };
        self.places += 1;
        let payload = label.payload(self.payload_of(len));
        (number, self.headers.next_packet(&payload, flags))
    }
}
