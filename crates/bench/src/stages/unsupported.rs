//! `weft-bench stages` on systems without network namespaces: only its arguments. `commands/unsupported.rs`
//! reports the error.

pub(crate) mod args;
