//! `weft-bench stages` where there are no network namespaces: its arguments. `commands/unsupported.rs` answers.

pub(crate) mod args;
