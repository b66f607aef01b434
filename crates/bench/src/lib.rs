//! `weft-bench`: weft measured side by side with other implementations of WireGuard, on this machine.
#![cfg(target_os = "linux")]

use std::process::ExitCode;

use clap::Parser as _;

mod args;
mod cli;
mod compare;
mod floods;
mod implementation;
mod interrupt;
mod machine;
mod pacing;
mod peers;
mod report;
mod rootless;
mod rtt;
mod shards;
mod site;
mod soak;
mod stages;
mod stats;
mod status;
mod topology;
mod worker;

pub fn main() -> ExitCode {
    match cli::run(&cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let missing = error.downcast_ref::<site::Missing>().is_some();
            (if missing { weft_config::exit::Code::Permission } else { weft_config::exit::Code::Failure })
                .into()
        }
    }
}
