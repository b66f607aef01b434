//! The table of `weft-bench link`.

use super::measure::{Datagrams, Report};
use crate::output;

/// Formats the requested properties beside the measured ones.
pub(super) fn text(report: &Report) -> String {
    let Report { asked, ping, half, flood, tcp, counters, .. } = report;
    let mut table = output::table(["", "asked", "measured"], 1);
    let rate = asked.rate.map_or("no limit".to_owned(), |rate| mbit(rate as f64));
    table.add_row([
        "ping: least / p50 / p99".to_owned(),
        format!("{:.2} ms", asked.round_trip_ms),
        format!("{:.2} / {:.2} / {:.2} ms", ping.least, ping.median, ping.p99),
    ]);
    if let Some(Datagrams { sent_rate, received_rate, .. }) = flood {
        table.add_row([
            format!("datagrams sent at {}: frames arrived", mbit(*sent_rate)),
            rate,
            mbit(*received_rate),
        ]);
    }
    let datagrams = format!("datagrams sent at {}: ", mbit(half.sent_rate));
    table.add_row([format!("{datagrams}lost"), percent(asked.loss), percent(half.lost)]);
    table.add_row([format!("{datagrams}out of order"), percent(asked.reorder), percent(half.out_of_order)]);
    // Payload share of full frames: 1448 of 1514 bytes.
    let payload =
        asked.rate.map_or_else(String::new, |rate| format!("up to {}", mbit(rate as f64 * 1448.0 / 1514.0)));
    table.add_row(["one TCP stream: payload".to_owned(), payload, mbit(tcp.rate)]);
    table.add_row(["one TCP stream: retransmits".to_owned(), String::new(), tcp.retransmits.to_string()]);
    let mut text = format!("{}\n{table}\n", report.link);
    for (direction, counters) in ["there", "back"].into_iter().zip(counters) {
        text += &format!(
            "{direction}: {} frames, {} dropped at the queue, {} lost on purpose, {} made late; at most {} bytes or \
             {:.1} ms in the queue; at most {:.2} ms later than asked\n",
            counters.frames,
            counters.dropped,
            counters.lost,
            counters.reordered,
            counters.greatest_queue_bytes,
            counters.greatest_queue_time.as_secs_f64() * 1e3,
            counters.greatest_lateness.as_secs_f64() * 1e3
        );
    }
    let flood_cores =
        flood.map_or_else(String::new, |flood| format!(" {:.2} under the flood,", flood.link_cores));
    text += &format!(
        "cores of the link's thread: {:.2} at half the rate,{flood_cores} {:.2} with the stream\n",
        half.link_cores, tcp.link_cores
    );
    let full = half.socket_full.max(flood.map_or(0.0, |flood| flood.socket_full));
    if full > 0.0 {
        text +=
            &format!("note: up to {} of the datagrams were lost in the receiver's socket\n", percent(full));
    }
    if report.missed > 0 {
        text += &format!("note: {} frames were lost before the link, which came too late\n", report.missed);
    }
    text
}

fn mbit(rate: f64) -> String {
    format!("{:.1} Mbit/s", rate / 1e6)
}

fn percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}
