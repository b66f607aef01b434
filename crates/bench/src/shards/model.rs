//! What follows for many packet threads from the stages as measured on one: a machine with many cores was not
//! measured.

use serde::Serialize;

use crate::stages::StageCosts;

/// Packet threads up to which the model goes.
const THREADS: u32 = 32;

pub(super) const ASSUMPTIONS: &str = "\
The model assumes:
* Each packet thread has a core to itself, and a core is as fast as the one measured, however many work. Caches, memory
  and clock frequency that cores share are left out.
* All packet threads have as much traffic: many peers, none of which is heavy. A peer is never served by two threads.
* The kernel's work before a socket or a queue of the TUN is done by other cores. With one receive queue, one core does
  all of it for what arrives: it cannot deliver more than it takes for the way to the socket, which is measured as \"UDP
  send\" with the veth. With a receive queue for each packet thread, nothing but the number of cores ends the growth.
* The kernel chooses the queue of a flow that begins here, so with K threads (K-1)/K of these packets are read by another
  thread than the peer's, and each of them costs the hand-over. Its cost was measured on one thread: without the wake-up
  of a thread that sleeps, and with the packets in the cache of the core that seals them.
* Flows that the peers begin stay with the thread of the peer, and cost no hand-over.
* Receiving includes writing to the TUN up to the socket of a program here, and sending the way up to the receiver's
  socket: behind a network card both cost the packet thread less.
";

/// Throughput by number of packet threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Model {
    /// Nanoseconds of a packet thread for a packet, without the hand-over.
    pub(crate) inbound_ns: f64,
    pub(crate) outbound_ns: f64,
    /// Nanoseconds for handing a packet over.
    pub(crate) hand_over_ns: f64,
    /// Nanoseconds of the core that delivers to the sockets.
    pub(crate) delivery_ns: f64,
    /// The number of packet threads from which on one core does not deliver enough.
    pub(crate) ends_at: u32,
    /// The most expensive stage of a packet thread in each direction.
    pub(crate) longest: [&'static str; 2],
    pub(crate) rows: Vec<Row>,
}

/// Gbit/s of inner packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) packet_threads: u32,
    pub(crate) inbound: f64,
    pub(crate) inbound_one_receive_queue: f64,
    /// Flows that the peers began.
    pub(crate) outbound: f64,
    /// Flows that began here.
    pub(crate) outbound_begun_here: f64,
    /// Share of their packets that is handed over.
    pub(crate) foreign: f64,
}

impl Model {
    /// Computes the model for packets of this length.
    pub(super) fn new(costs: &StageCosts, hand_over_ns: f64, packet_bytes: usize) -> Self {
        let inbound = [
            ("UDP receive", costs.udp_receive.median),
            ("decrypt", costs.decrypt.median),
            ("coalesce and TUN write", costs.coalesce.median + costs.tun_write.median),
        ];
        let outbound = [
            ("TUN read", costs.tun_read.median),
            ("split and encrypt", costs.split_and_encrypt.median),
            ("UDP send", costs.udp_send.median),
        ];
        let sum = |stages: &[(&str, f64)]| stages.iter().map(|(_, ns)| ns).sum::<f64>();
        let longest = |stages: [(&'static str, f64); 3]| {
            stages.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(name, _)| name)
        };
        let (inbound_ns, outbound_ns) = (sum(&inbound), sum(&outbound));
        let delivery_ns = costs.udp_send.median;
        // Bits per nanosecond are Gbit/s.
        let bits = packet_bytes as f64 * 8.0;
        let row = |packet_threads: u32| {
            let threads = f64::from(packet_threads);
            let foreign = (threads - 1.0) / threads;
            let all_inbound = threads * bits / inbound_ns;
            Row {
                packet_threads,
                inbound: all_inbound,
                inbound_one_receive_queue: all_inbound.min(bits / delivery_ns),
                outbound: threads * bits / outbound_ns,
                outbound_begun_here: threads * bits / (outbound_ns + foreign * hand_over_ns),
                foreign,
            }
        };
        Self {
            inbound_ns,
            outbound_ns,
            hand_over_ns,
            delivery_ns,
            ends_at: (inbound_ns / delivery_ns).ceil() as u32,
            longest: [longest(inbound), longest(outbound)],
            rows: (1..=THREADS).map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Summary;

    #[test]
    fn threads_add_up_until_one_core_delivers_no_more_and_the_hand_over_costs_its_share() {
        let cost = |median| Summary { median, lowest: median, highest: median };
        let costs = StageCosts {
            tun_read: cost(100.0),
            split_and_encrypt: cost(700.0),
            udp_send: cost(200.0),
            udp_receive: cost(50.0),
            decrypt: cost(550.0),
            coalesce: cost(50.0),
            tun_write: cost(150.0),
        };
        let model = Model::new(&costs, 100.0, 1000);
        assert_eq!((model.inbound_ns, model.outbound_ns, model.ends_at), (800.0, 1000.0, 4));
        assert_eq!(model.longest, ["decrypt", "split and encrypt"]);
        let [one, four, eight] = [1, 4, 8].map(|threads| model.rows[threads - 1]);
        assert_eq!((one.inbound, one.outbound, one.outbound_begun_here), (10.0, 8.0, 8.0));
        assert_eq!([four, eight].map(|row| row.inbound), [40.0, 80.0]);
        assert_eq!([four, eight].map(|row| row.inbound_one_receive_queue), [40.0, 40.0]);
        assert_eq!((four.foreign, four.outbound), (0.75, 32.0));
        assert!((four.outbound_begun_here - 4.0 * 8000.0 / 1075.0).abs() < 1e-9);
    }
}
