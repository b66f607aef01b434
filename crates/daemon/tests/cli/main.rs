//! The `weft` binary as a user meets it: what it prints, and how it ends.
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod command_line;
mod errors;
mod files;
mod inspection;
mod keys;
mod linked;
mod peers;
mod services;
mod shown;
mod support;
