//! The limits in words, and what to change.

use weft_report::bytes;
use weft_speedtest::{Cause, Direction, Sample, Verdict};

/// Returns what people read for a cause.
pub(super) fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::ReceiveWindow => "the receive window: the receiver's buffer is full",
        Cause::SendBuffer => "the send buffer",
        Cause::RateLimit => "the rate limit of a peer",
        Cause::PacketThread => "weft's packet thread",
        Cause::KernelQueue => "the kernel's queue before weft: it dropped packets",
        Cause::SenderCpu => "the processors of the sender",
        Cause::ReceiverCpu => "the processors of the receiver",
        Cause::Link => "the link: its queue is filled, and the round trip above its minimum",
        Cause::LossOutside => "loss outside of weft",
        Cause::SlowStart => "slow start: the congestion window still grew",
        Cause::Application => "the application: there was nothing to send",
        Cause::Unclear => "nothing that the samples show",
    }
}

/// Returns what to change about the main limit.
pub(super) fn of(
    limits: &[Verdict],
    bits_per_second: u64,
    sender: &[Sample],
    direction: Direction,
) -> String {
    let Some(main) = limits.first() else { return String::new() };
    let (sends, receives) = match direction {
        Direction::Up => ("this machine", "the peer"),
        Direction::Down => ("the peer", "this machine"),
    };
    let tcp = sender.last().and_then(|sample| sample.tcp.clone()).unwrap_or_default();
    // What is in flight at this rate; the kernel needs about twice that of a buffer.
    let product = (bits_per_second as f64 / 8.0 * tcp.rtt_us as f64 / 1e6) as u64;
    let more = bytes(product.saturating_mul(4).max(1 << 20));
    let [sends_at, receives_at] = [sends, receives].map(|end| format!("at {end}"));
    match main.cause {
        Cause::ReceiveWindow => format!(
            "raise the last number of net.ipv4.tcp_rmem {receives_at}, first to {more}: for more than this rate the \
             buffer has to hold more than {} (rate × round trip); programs that set SO_RCVBUF have to leave it out",
            bytes(product)
        ),
        Cause::SendBuffer => format!(
            "raise the last number of net.ipv4.tcp_wmem {sends_at}, first to {more}: for more than this rate the buffer \
             has to hold more than {} (rate × round trip)",
            bytes(product)
        ),
        Cause::RateLimit => {
            "RateToPeer or RateFromPeer of one of the two files is reached: `weft status` shows the limits and \
             their drops"
                .to_owned()
        }
        Cause::PacketThread => {
            "one packet thread is busy all of the time, or drops: `weft top` shows at which end; docs/SCALING.md says \
             what helps, for one peer a faster core"
                .to_owned()
        }
        Cause::KernelQueue => {
            "bursts overflow the queue of the TUN or the receive buffer of the socket, though weft has time: `weft \
             doctor` shows which; raise the queue (`ip link set NAME txqueuelen 4000`) or net.core.rmem_max"
                .to_owned()
        }
        Cause::SenderCpu => format!("the processors {sends_at} are busy with the tunnel and the test"),
        Cause::ReceiverCpu => format!("the processors {receives_at} are busy with the tunnel and the test"),
        Cause::Link => {
            "this is what the path between the peers carries: other traffic on it has to give way, or the path has to \
             become faster"
                .to_owned()
        }
        Cause::LossOutside => format!(
            "datagrams are lost on the path although nothing fills it: look at radio links, duplex settings and \
             policers of the provider; `--congestion bbr` {sends_at} suffers less from such loss"
        ),
        Cause::SlowStart => {
            "the test is too short for this round trip: a longer one (-t 30s) shows the rate that lasts".to_owned()
        }
        Cause::Application => format!("the test itself wrote too little: other programs keep {sends} busy"),
        Cause::Unclear => {
            "the samples with --json may tell more; another test at another time, too".to_owned()
        }
    }
}
