//! An unavailable congestion control is refused by name, before any tunnel is brought up.
#![cfg(target_os = "linux")]

mod support;

use support::refusal;

#[test]
fn a_congestion_control_that_the_kernel_does_not_have_is_refused_by_name() {
    for command in ["compare --alone", "rtt"] {
        // `--weft` only has to name a file: it never runs.
        let error = refusal(
            &format!("{command} --congestion none-such --weft {}", env!("CARGO_BIN_EXE_weft-bench")),
            1,
        );
        let begins = "error: the kernel has no congestion control none-such, only ";
        assert!(error.starts_with(begins), "{command}: {error}");
    }
}
