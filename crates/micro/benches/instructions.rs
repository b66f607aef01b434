//! Counts the instructions per packet of each piece of the packet path, and compares them with those in
//! `instructions.toml`: unlike times, they are the same on a busy machine and on an idle one.
//!
//! ```text
//! cargo bench -p weft-micro --bench instructions              compare; fails where a count grew by over 3 %
//! cargo bench -p weft-micro --bench instructions -- --write   write what was counted to the file
//! ```
//!
//! The program runs itself under callgrind. Code that depends on the machine is excluded: the functions of
//! other objects, since the C library chooses its `memcpy` by processor, and those of the cipher, which does
//! the same. weft's processor detection finds AVX2 and never AVX-512, which valgrind lacks; without AVX2
//! nothing is compared.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "instructions/callgrind.rs"]
mod callgrind;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "instructions/check.rs"]
mod check;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "instructions/counts.rs"]
mod counts;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod work;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    check::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    eprintln!("NOT RUN: instruction counts: they are those of Linux on x86_64");
    ExitCode::SUCCESS
}
