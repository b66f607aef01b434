//! `weft-bench`: weft measured side by side with other implementations of WireGuard, on this machine.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    weft_bench::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: weft-bench needs the network namespaces of Linux");
    ExitCode::FAILURE
}
