//! The closing report of the demo, and its verdict.

use std::time::Duration;

use weft_lab::numbered::NumberedReport;

use super::account::Account;
use super::ends::KernelDrops;
use super::load::TcpFlowResult;

/// The results of a run.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Report {
    /// How long traffic was sent.
    pub(super) seconds: f64,
    /// Whether Ctrl-C ended it early.
    pub(super) interrupted: bool,
    /// TCP by direction and family.
    pub(super) tcp: Vec<TcpFlowResult>,
    /// The numbered UDP flows: from a, then from b.
    pub(super) udp: Vec<NumberedReport>,
    /// The daemons: a, then b.
    pub(super) daemons: Vec<DaemonReport>,
    /// CPU time of the rest of the process: sending, receiving and checking the traffic.
    pub(super) traffic_cpu_seconds: f64,
    /// Errors within weft.
    pub(super) problems: Vec<String>,
    /// Remarks that are not weft's fault.
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct DaemonReport {
    pub(super) name: &'static str,
    pub(super) cpu_seconds: f64,
    #[serde(flatten)]
    pub(super) account: Account,
    pub(super) kernel_drops: KernelDrops,
}

impl Report {
    pub(super) fn new(
        elapsed: Duration,
        interrupted: bool,
        (tcp, udp): (Vec<TcpFlowResult>, Vec<NumberedReport>),
        daemons: Vec<DaemonReport>,
        traffic_cpu: Duration,
    ) -> Self {
        let mut report = Self {
            seconds: elapsed.as_secs_f64(),
            interrupted,
            tcp,
            udp,
            daemons,
            traffic_cpu_seconds: traffic_cpu.as_secs_f64(),
            problems: Vec::new(),
            notes: Vec::new(),
        };
        report.judge();
        report
    }

    /// Returns the Gbit/s of payload for `bytes` over the run.
    pub(super) fn gbit_per_second(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / self.seconds.max(0.001) / 1e9
    }

    /// Returns the Gbit/s of payload over all TCP flows.
    pub(super) fn total_gbit_per_second(&self) -> f64 {
        self.gbit_per_second(self.tcp.iter().map(|flow| flow.received_bytes).sum())
    }

    pub(super) fn judge(&mut self) {
        let (mut problems, mut notes) = (Vec::new(), Vec::new());
        for flow in &self.tcp {
            let name = format!("TCP {} {}", flow.direction, flow.family);
            if let Some(position) = flow.first_mismatch {
                problems.push(format!("{name}: the byte at {position} arrived corrupted or displaced."));
            } else if let Some(error) = &flow.error {
                problems.push(format!("{name}: the flow broke: {error}."));
            } else if flow.confirmed_bytes != flow.sent_bytes {
                let missing = flow.sent_bytes.saturating_sub(flow.confirmed_bytes);
                problems.push(format!("{name}: {missing} bytes were lost."));
            } else if flow.sent_bytes == 0 {
                problems.push(format!("{name}: nothing was sent."));
            }
        }
        let explained = |daemon: &DaemonReport| daemon.kernel_drops.total() + daemon.account.overload();
        let explained: u64 = self.daemons.iter().map(explained).sum();
        for (flow, direction) in self.udp.iter().zip(["a → b", "b → a"]) {
            let (name, tally) = (format!("UDP {direction}"), flow.forward);
            for (count, fate) in [
                (tally.corrupt, "arrived corrupted"),
                (tally.duplicates, "arrived twice"),
                (tally.out_of_order, "arrived out of order"),
            ] {
                if count > 0 {
                    problems.push(format!("{name}: {count} of {} datagrams {fate}.", tally.sent));
                }
            }
            if tally.lost > explained {
                problems.push(format!(
                    "{name}: {} of {} datagrams were lost, and only {explained} drops explain it.",
                    tally.lost, tally.sent
                ));
            } else if tally.lost > 0 {
                notes.push(format!(
                    "{name}: {} of {} datagrams were lost, which the drops below explain.",
                    tally.lost, tally.sent
                ));
            }
        }
        for daemon in &self.daemons {
            let name = format!("Daemon {}", daemon.name);
            let account = &daemon.account;
            problems.extend(account.imbalances().iter().map(|imbalance| format!("{name}: {imbalance}.")));
            if account.dropped() > 0 {
                let reasons: Vec<_> =
                    account.drops.iter().map(|(label, count)| format!("{count} {label}")).collect();
                problems.push(format!("{name} dropped packets: {}.", reasons.join(", ")));
            }
            if account.handshakes == 0 {
                problems.push(format!("{name}: no handshake came through."));
            }
            if account.overload() > 0 {
                notes.push(format!(
                    "{name}: {} datagrams arrived faster than they could be opened, and were dropped.",
                    account.overload()
                ));
            }
            let drops = daemon.kernel_drops;
            for (count, place) in [
                (drops.tun_queue_full, "because the queue of the TUN was full"),
                (drops.receive_buffer_full, "because a UDP receive buffer was full"),
                (drops.link, "on the link between the daemons"),
            ] {
                if count > 0 {
                    notes.push(format!("{name}: the kernel dropped {count} packets {place}."));
                }
            }
        }
        self.problems = problems;
        self.notes = notes;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use weft_lab::numbered::Tally;

    use super::*;
    use crate::demo::load::TCP_FLOWS;

    pub(in crate::demo) fn clean() -> Report {
        let flow = |flow: &crate::demo::load::TcpFlow| TcpFlowResult {
            direction: flow.direction(),
            family: flow.family(),
            sent_bytes: 1_250_000_000,
            received_bytes: 1_250_000_000,
            confirmed_bytes: 1_250_000_000,
            first_mismatch: None,
            retransmits: 12,
            error: None,
        };
        let udp = NumberedReport {
            flows: 1,
            forward: Tally { sent: 1000, received: 1000, ..Tally::default() },
            ..NumberedReport::default()
        };
        let account = Account {
            handshakes: 1,
            packets_read: 21_000,
            segments_read: 900_000,
            sealed: 900_000,
            datagrams_sent: 900_001,
            batch_segments: [1, 0, 3, 0, 100, 2_000, 19_000],
            opened: 900_000,
            segments_written: 900_000,
            packets_written: 30_000,
            datagrams_received: 900_001,
            receive_calls: 25_000,
            ..Account::default()
        };
        let daemon = |name| DaemonReport {
            name,
            cpu_seconds: 4.5,
            account: account.clone(),
            kernel_drops: KernelDrops::default(),
        };
        Report::new(
            Duration::from_secs(10),
            false,
            (TCP_FLOWS.iter().map(flow).collect(), vec![udp, udp]),
            vec![daemon("a"), daemon("b")],
            Duration::from_secs(5),
        )
    }

    fn judged(change: impl FnOnce(&mut Report)) -> Report {
        let mut report = clean();
        change(&mut report);
        report.judge();
        report
    }

    #[test]
    fn a_clean_run_has_neither_problems_nor_notes() {
        let report = clean();
        assert_eq!((report.problems.len(), report.notes.len()), (0, 0), "{report:?}");
        assert!((report.total_gbit_per_second() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn loss_that_the_kernel_counted_is_a_note_and_any_other_a_problem() {
        let lose = |report: &mut Report| report.udp[0].forward.lost = 3;
        assert!(judged(lose).problems[0].contains("3 of 1000 datagrams were lost"));
        let report = judged(|report| {
            lose(report);
            report.daemons[0].kernel_drops.tun_queue_full = 5;
        });
        assert_eq!((report.problems.len(), report.notes.len()), (0, 2));
    }

    #[test]
    fn corruption_and_reordering_are_problems() {
        assert!(judged(|r| r.tcp[1].first_mismatch = Some(77)).problems[0].contains("byte at 77"));
        assert!(judged(|r| r.tcp[0].confirmed_bytes -= 5).problems[0].contains("5 bytes were lost"));
        assert!(judged(|r| r.udp[1].forward.out_of_order = 2).problems[0].contains("UDP b → a: 2 of 1000"));
        assert!(judged(|r| r.daemons[0].account.sealed -= 1).problems[0].contains("Daemon a"));
    }
}
