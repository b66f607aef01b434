//! `weft-bench`: weft measured side by side with other implementations of WireGuard, on this machine.

use std::process::ExitCode;

use clap::Parser as _;

#[cfg(target_os = "linux")]
mod batches;
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is measured elsewhere"))]
mod case;
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is measured elsewhere"))]
mod cli;
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is measured elsewhere"))]
mod metric;
mod permission;

#[cfg(target_os = "linux")]
mod commands;
#[cfg(not(target_os = "linux"))]
#[path = "commands/unsupported.rs"]
mod commands;
#[cfg(target_os = "linux")]
mod congestion;
#[cfg(target_os = "linux")]
mod floods;
#[cfg(not(target_os = "linux"))]
#[path = "floods/unsupported.rs"]
mod floods;
#[cfg(target_os = "linux")]
mod implementation;
#[cfg(target_os = "linux")]
mod interrupt;
#[cfg(target_os = "linux")]
mod link;
#[cfg(not(target_os = "linux"))]
#[path = "link/unsupported.rs"]
mod link;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod measure;
#[cfg(target_os = "linux")]
mod peers;
#[cfg(not(target_os = "linux"))]
#[path = "peers/unsupported.rs"]
mod peers;
#[cfg(target_os = "linux")]
mod plot;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod progress;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod rounds;
#[cfg(target_os = "linux")]
mod rtt;
#[cfg(not(target_os = "linux"))]
#[path = "rtt/unsupported.rs"]
mod rtt;
#[cfg(target_os = "linux")]
mod stages;
#[cfg(not(target_os = "linux"))]
#[path = "stages/unsupported.rs"]
mod stages;
#[cfg(target_os = "linux")]
mod stats;
#[cfg(target_os = "linux")]
mod targets;
#[cfg(target_os = "linux")]
mod tools;
#[cfg(target_os = "linux")]
mod topology;
#[cfg(target_os = "linux")]
mod usage;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let missing = error.downcast_ref::<permission::Missing>().is_some();
            (if missing { weft_config::exit::Code::Permission } else { weft_config::exit::Code::Failure })
                .into()
        }
    }
}
