//! System calls of the daemons, counted by perf in a separate run: counting slows every system call on the
//! machine.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::{Bench, measure};
use crate::case::Case;
use crate::process::Process;

/// Longest run with perf, in seconds.
const SECONDS: u32 = 2;
/// Time for perf to attach.
const ATTACH: Duration = Duration::from_millis(300);
/// Timeout for perf to print its count.
const PERF: Duration = Duration::from_secs(10);
const EVENT: &str = "raw_syscalls:sys_enter";

/// Returns the system calls of both daemons per Gbit carried; `None` for a case that carries nothing, or
/// without daemons.
///
/// # Errors
/// When perf cannot count them here, or the measurement fails.
pub(crate) fn per_gbit(bench: &mut Bench<'_>, case: Case) -> Result<Option<f64>> {
    let processes = bench.tunnel.processes().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if processes.is_empty() || !carries(case) {
        return Ok(None);
    }
    let words = ["perf", "stat", "-x", ",", "-e", EVENT, "-p", &processes].map(str::to_owned);
    let mut perf = Process::start(&bench.tunnel.near, &words, bench.tunnel.file("perf.log"))?;
    // perf does not report when it is attached; the calls that it misses at the start are few.
    bench.interrupt.sleep(ATTACH)?;
    perf.check()?;
    let mut short =
        Bench { secs: bench.secs.min(SECONDS), tunnel: &mut *bench.tunnel, interrupt: bench.interrupt };
    let measured = measure(&mut short, case)?;
    perf.signal(Signal::SIGINT)?;
    bench.interrupt.wait_for("perf's count", PERF, || Ok(perf.has_ended()?.then_some(())))?;
    let output = perf.output();
    let calls = parse(&output).with_context(|| format!("perf printed: {}", output.trim()))?;
    Ok((measured.gbit > 0.0).then(|| calls / measured.gbit))
}

fn carries(case: Case) -> bool {
    matches!(case, Case::Tcp { .. } | Case::UdpFlood { .. } | Case::Connections { .. })
}

/// Parses perf's output: `value,unit,event,…`
fn parse(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.contains(EVENT))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_count_is_read() {
        assert_eq!(parse("144,,raw_syscalls:sys_enter,1218979,100.00,,\n"), Some(144.0));
        assert_eq!(parse("<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
        assert_eq!(parse("event syntax error: 'raw_syscalls:sys_enter'"), None);
    }
}
