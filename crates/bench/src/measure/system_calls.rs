//! System calls of the daemons, counted by perf in a run of its own: while they are counted, every system call on
//! the machine takes a little longer.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::{Bench, measure};
use crate::case::Case;
use crate::process::Process;

/// How long such a run takes at most, in seconds.
const SECONDS: u32 = 2;
/// How long perf is given to attach itself.
const ATTACH: Duration = Duration::from_millis(300);
/// How long perf may take to print its count.
const PERF: Duration = Duration::from_secs(10);
const EVENT: &str = "raw_syscalls:sys_enter";

/// What both daemons call for each Gbit carried; nothing for a case that carries nothing, or without daemons.
///
/// # Errors
/// When perf cannot count them here.
pub(crate) fn per_gbit(bench: &mut Bench<'_>, case: Case) -> Result<Option<f64>> {
    let processes = bench.tunnel.processes().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if processes.is_empty() || !carries(case) {
        return Ok(None);
    }
    let words = ["perf", "stat", "-x", ",", "-e", EVENT, "-p", &processes].map(str::to_owned);
    let mut perf = Process::start(&bench.tunnel.near, &words, bench.tunnel.file("perf.log"))?;
    // It does not say when it is attached; what it misses of the first moment is a small part.
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

/// `value,unit,event,…`
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
