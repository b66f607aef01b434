//! `weft-bench`: weft measured side by side with other implementations of WireGuard, on this machine.

use std::process::ExitCode;

use clap::Parser as _;

#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is measured elsewhere"))]
mod cli;

#[cfg(target_os = "linux")]
mod compare;
#[cfg(not(target_os = "linux"))]
#[path = "compare/unsupported.rs"]
mod compare;
#[cfg(target_os = "linux")]
mod interrupt;
#[cfg(target_os = "linux")]
mod iperf;
#[cfg(target_os = "linux")]
mod link;
#[cfg(not(target_os = "linux"))]
#[path = "link/unsupported.rs"]
mod link;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod peers;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod progress;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod stages;
#[cfg(not(target_os = "linux"))]
#[path = "stages/unsupported.rs"]
mod stages;
mod rtt;
#[cfg(not(target_os = "linux"))]
#[path = "rtt/unsupported.rs"]
mod rtt;
#[cfg(target_os = "linux")]
mod stats;
#[cfg(target_os = "linux")]
mod topology;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let result = match &cli.command {
        cli::Command::Compare(args) => compare::run(args),
        cli::Command::Stages(args) => stages::run(args),
        cli::Command::Link(args) => link::run(args),
        cli::Command::Rtt(args) => rtt::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
