//! The command: counts, compares, and reports what to do.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::callgrind;
use crate::counts::{self, Change, Counts};
use crate::work;

/// The command that writes the file.
const WRITE: &str = "cargo bench -p weft-micro --bench instructions -- --write";
/// Runs before the counted one, which allocate all buffers.
const WARM_UP: usize = 2;

pub(crate) fn main() -> ExitCode {
    let has = |name: &str| std::env::args().skip(1).any(|argument| argument == name);
    if has(callgrind::MEASURE) {
        measure();
        return ExitCode::SUCCESS;
    }
    match check(has("--write")) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all countable work, under callgrind.
fn measure() {
    for mut workload in work::all() {
        if workload.countable {
            for _ in 0..WARM_UP {
                workload.work.prepare();
                workload.work.run();
            }
            workload.work.prepare();
            callgrind::counted(&mut *workload.work);
        }
    }
}

fn check(write: bool) -> Result<ExitCode> {
    if let Some(reason) = callgrind::missing() {
        eprintln!("NOT RUN: instruction counts: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let workloads: Vec<_> = work::all().into_iter().filter(|workload| workload.countable).collect();
    let totals = callgrind::run(workloads.len())?;
    let counted: Counts = workloads
        .iter()
        .zip(totals)
        .map(|(workload, total)| (workload.name.to_owned(), counts::per_packet(total, workload.packets)))
        .collect();
    let path = counts::path();
    if write {
        std::fs::write(&path, counts::to_text(&counted))
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("{} counts written to {}", counted.len(), path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}: write it with `{WRITE}`", path.display()))?;
    let committed = counts::parse(&text).with_context(|| format!("in {}", path.display()))?;
    let changes = counts::compare(&committed, &counted);
    for (name, change) in &changes {
        println!("{}", change.line(name));
    }
    let bad = changes.iter().filter(|(_, change)| change.is_bad()).count();
    if bad > 0 {
        eprintln!(
            "{bad} of {} instruction counts are not those of crates/micro/instructions.toml. Mend the code, or, if \
             it has to be so, commit what this writes:\n    {WRITE}",
            counted.len()
        );
        return Ok(ExitCode::FAILURE);
    }
    println!("{} instruction counts are within {} % of those committed", counted.len(), counts::TOLERANCE);
    if changes.iter().any(|(_, change)| matches!(change, Change::Fewer { .. })) {
        println!("to hold on to what was gained, commit what this writes:\n    {WRITE}");
    }
    Ok(ExitCode::SUCCESS)
}
