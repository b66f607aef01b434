//! A peer that attacks the gateway and the other peers, with its own key.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_tunnel::{PrivateKey, PublicKey};

use super::attack::Kind;
use super::site::{CLIENT, Site, absent_peer};
use crate::interrupt::Interrupt;
use crate::peers::client::{Client, Workbench};
use crate::peers::packet::{Flow, HEADERS, STAMP, Stamp, checksum, sum_of};
use crate::site::GATEWAY;

const HANDSHAKE: Duration = Duration::from_secs(20);
/// Source and destination port of its packets. No program has the destination.
const FROM: u16 = 4004;
const TO: u16 = 9;
/// Packets between two clock reads.
const BURST: u32 = 8;
/// An address of the tunnel's network that no peer has.
const UNASSIGNED: Ipv4Addr = Ipv4Addr::new(10, 0, 200, 1);
/// Bytes of a packet that is not tiny, without what a kind adds.
const LONG: usize = 1200;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// For experiments (RFC 3692): no program takes it.
const EXPERIMENT: u8 = 253;

/// The peer, with a session.
pub(super) struct MaliciousPeer {
    kind: Kind,
    client: Client,
    keys: (PrivateKey, PublicKey),
    absent: usize,
    bench: Workbench,
    /// Packets and handshakes so far.
    number: u32,
}

impl MaliciousPeer {
    /// Creates the peer and waits until it has a session.
    pub(super) fn new(kind: Kind, site: &Site, interrupt: &Interrupt) -> Result<Self> {
        let (client, bench) = (site.scanner()?, Workbench::new());
        let keys = (site.attacking_key().clone(), site.key);
        let mut this = Self { kind, client, keys, absent: site.absent.max(1), bench, number: 0 };
        this.send_to(GATEWAY, Instant::now())?;
        interrupt.wait_for("the session of the peer that attacks", HANDSHAKE, || {
            this.receive(Instant::now())?;
            Ok(this.client.has_session().then_some(()))
        })?;
        Ok(this)
    }

    /// Does some of what it does, and returns how many packets or handshakes these are.
    pub(super) fn burst(&mut self, now: Instant) -> Result<u32> {
        let count = match self.kind {
            Kind::Handshakes => {
                // The answer to the last one may be there.
                self.receive(now)?;
                self.client = self.client.restarted(&self.keys.0, self.keys.1)?;
                self.send_to(GATEWAY, now)?;
                1
            }
            Kind::Scan => {
                for number in self.number..self.number + BURST {
                    self.send_to(absent_peer(number as usize % self.absent), now)?;
                }
                BURST
            }
            kind => {
                let (own, mut number) = (self.client.inner, self.number);
                let write = |packet: &mut [u8]| {
                    number = number.wrapping_add(1);
                    write(packet, kind, own, number)
                };
                self.client.send_written(BURST, now, &mut self.bench, write)?;
                BURST
            }
        };
        self.number = self.number.wrapping_add(count);
        self.receive(now)?;
        Ok(count)
    }

    /// Sends a packet to an address in the tunnel. Without a session a handshake begins.
    fn send_to(&mut self, destination: Ipv4Addr, now: Instant) -> Result<()> {
        let flow = Flow { source: (self.client.inner, FROM), destination: (destination, TO) };
        let stamp = Stamp { run: 0, peer: 0, number: 0 };
        Ok(self.client.send_flow(flow, HEADERS + STAMP, stamp, 1, now, &mut self.bench)?)
    }

    fn receive(&mut self, now: Instant) -> Result<()> {
        self.client.receive(now, &mut self.bench, |_, _| {})?;
        Ok(self.client.timers(now, &mut self.bench)?)
    }
}

/// Writes the packet with this number into a zeroed buffer, and returns its length.
fn write(packet: &mut [u8], kind: Kind, own: Ipv4Addr, number: u32) -> usize {
    let [.., third, low] = number.to_be_bytes();
    // Options are up to 40 bytes.
    let header = if kind == Kind::Options { 60 } else { 20 };
    let (protocol, payload) = match kind {
        Kind::Tiny => (EXPERIMENT, 1),
        Kind::Options => (UDP, 12),
        Kind::Unjoinable => (TCP, 20 + LONG),
        Kind::Pings => (ICMP, 8 + LONG),
        _ => (UDP, 8 + LONG),
    };
    let len = header + payload;
    let [high_len, low_len] = (len as u16).to_be_bytes();
    let source = if kind == Kind::Spoofed { CLIENT } else { own };
    let destination = if kind == Kind::Unroutable { UNASSIGNED } else { GATEWAY };
    packet[..12].copy_from_slice(&[
        0x40 | (header / 4) as u8,
        0,
        high_len,
        low_len,
        third,
        low,
        0,
        0,
        64,
        protocol,
        0,
        0,
    ]);
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&destination.octets());
    let content = &mut packet[header..len];
    match kind {
        // The first of several; the others never come.
        Kind::Fragments => packet[6] = 0x20,
        // Record route, timestamp, source route, one that is too long, and padding.
        Kind::Options => {
            let option = [[7, 39, 4], [0x44, 40, 5], [0x83, 39, 4], [0x99, 255, 1], [1, 1, 0]];
            packet[20..23].copy_from_slice(&option[number as usize % option.len()]);
        }
        Kind::Unjoinable => {
            // Two connections in turn, sequence numbers that do not follow, and URG or not.
            content[..4].copy_from_slice(&[0x0f, 0xa4 + low % 2, 0, TO as u8]);
            content[4..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
            (content[12], content[13]) = (5 << 4, if low % 4 < 2 { 0x10 } else { 0x30 });
            content[14] = 0xff;
        }
        Kind::Pings => {
            content[0] = 8;
            content[4..8].copy_from_slice(&number.to_be_bytes());
            let sum = checksum(sum_of(content));
            content[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        // A UDP datagram without a checksum.
        Kind::Spoofed | Kind::Unroutable => {
            content[..4].copy_from_slice(&[0x0f, 0xa4, 0, TO as u8]);
            content[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        }
        _ => {}
    }
    let sum = checksum(sum_of(&packet[..header]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    len
}
