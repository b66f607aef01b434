//! An unavailable congestion control is refused by name, before any tunnel is brought up.
#![cfg(target_os = "linux")]

use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_weft-bench");

#[test]
fn a_congestion_control_that_the_kernel_does_not_have_is_refused_by_name() {
    for command in ["compare", "tunnel", "sweep", "rtt"] {
        // `--weft` only has to name a file: it never runs.
        let output = Command::new(BENCH)
            .args([command, "--congestion", "none-such", "--weft", BENCH])
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {error}");
        assert!(
            error.starts_with("error: the kernel has no congestion control none-such, only "),
            "{command}: {error}"
        );
    }
}
