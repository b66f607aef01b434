//! `weft-bench`: weft measured side by side with other implementations of WireGuard, on this machine.
#![cfg(target_os = "linux")]

use std::process::ExitCode;

use clap::Parser as _;

mod batches;
mod case;
mod cli;
mod commands;
mod congestion;
mod floods;
mod implementation;
mod interrupt;
mod link;
mod machine;
mod measure;
mod metric;
mod output;
mod peers;
mod permission;
mod plot;
mod process;
mod progress;
mod report;
mod rootless;
mod rounds;
mod rtt;
mod shards;
mod soak;
mod stages;
mod stats;
mod targets;
mod tools;
mod topology;
mod usage;

/// Runs the command of this process's command line.
pub fn main() -> ExitCode {
    match commands::run(&cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let missing = error.downcast_ref::<permission::Missing>().is_some();
            (if missing { weft_config::exit::Code::Permission } else { weft_config::exit::Code::Failure })
                .into()
        }
    }
}
