//! Runs this program under callgrind, and parses the output.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::work::Work;

/// The argument that selects the mode under callgrind.
pub(crate) const MEASURE: &str = "--measure-under-callgrind";
/// The function in which callgrind collects, and after which it writes a file.
const COUNTED: &str = "weft_bench_counted";

/// Runs the counted work.
// SAFETY: no other symbol of the program has this name.
#[unsafe(no_mangle)]
#[inline(never)]
fn weft_bench_counted(work: &mut dyn Work) {
    work.run();
}

/// Runs `work` where callgrind counts.
pub(crate) fn counted(work: &mut dyn Work) {
    weft_bench_counted(work);
}

/// Returns why nothing can be counted here.
pub(crate) fn missing() -> Option<String> {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return Some("the committed counts are those of a processor with AVX2".into());
    }
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    match version {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("valgrind does not work: {status}")),
        Err(error) => Some(format!("valgrind cannot be started: {error}")),
    }
}

/// Returns the instructions of each of the `workloads` pieces of work, in order.
pub(crate) fn run(workloads: usize) -> Result<Vec<u64>> {
    let directory = tempfile::tempdir()?;
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let out = directory.path().join("out");
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--dump-after={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .arg(MEASURE)
        .output()
        .context("cannot start valgrind")?;
    ensure!(
        output.status.success(),
        "valgrind ended with {}:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let program = program.to_string_lossy();
    let totals = (1..=workloads).map(|number| {
        let file = directory.path().join(format!("out.{number}"));
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("callgrind did not write {}", file.display()))?;
        let total = total(&text, &program);
        ensure!(total > 0, "callgrind counted nothing of {}", Path::new(&*program).display());
        Ok(total)
    });
    totals.collect()
}

/// Reports whether a function executes the same instructions on every processor. That excludes the cipher,
/// and what C and assembly have: their symbols have no Rust paths.
fn is_portable(function: &str) -> bool {
    let path = function.trim_start_matches('<');
    let is_cipher = ["aws_lc_rs::", "ring::", "weft_aead::"].iter().any(|it| path.starts_with(it));
    function == COUNTED || (function.contains("::") && !is_cipher)
}

/// Returns the instructions of the portable functions of `program` itself.
///
/// In callgrind's format a cost line is a position and a count. The line after `calls=` is the inclusive cost
/// of a call, which the called function's lines count already.
fn total(text: &str, program: &str) -> u64 {
    let (mut is_ours, mut is_counted, mut is_call) = (false, false, false);
    let mut total = 0;
    for line in text.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_ours = object == program;
        } else if let Some(function) = line.strip_prefix("fn=") {
            is_counted = is_portable(function);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if is_ours && is_counted && !is_call {
                total += cost.unwrap_or(0);
            }
            is_call = false;
        }
    }
    total
}
