//! A congestion control that the kernel does not have is refused before anything is brought up, by name.
#![cfg(target_os = "linux")]

use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_weft-bench");

#[test]
fn a_congestion_control_that_the_kernel_does_not_have_is_refused_by_name() {
    for command in ["compare", "tunnel", "sweep", "rtt"] {
        // What would be measured need not be there: it is a file, and never runs.
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
