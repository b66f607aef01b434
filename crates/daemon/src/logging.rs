//! The log: lines on standard error, human or JSON. Starts no thread.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

mod limit;

pub use limit::LogLimit;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// The log filter cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error(
    "the log filter {filter:?} ({origin}) is not valid: {reason}; write a level like `debug`, or targets like \
         `info,weft::routes=debug`"
)]
pub struct InvalidFilter {
    filter: String,
    origin: &'static str,
    reason: String,
}

/// Starts the log: what `filter` lets through, else what RUST_LOG does, else `default`.
///
/// A second call changes nothing.
pub fn init(filter: Option<&str>, default: &str, format: Format) -> Result<(), InvalidFilter> {
    let variable = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|value| !value.trim().is_empty());
    let (filter, origin) = match (filter, &variable) {
        (Some(filter), _) => (filter, "--log"),
        (None, Some(filter)) => (filter.as_str(), EnvFilter::DEFAULT_ENV),
        (None, None) => (default, "the default"),
    };
    let filter = EnvFilter::builder().parse(filter).map_err(|reason| InvalidFilter {
        filter: filter.to_owned(),
        origin,
        reason: reason.to_string(),
    })?;
    // Its report of a standard error that is closed would go there, and panic.
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    // Somebody who embeds this may have set a subscriber of his own.
    let _already_set = match format {
        Format::Human => builder.with_ansi(is_coloured()).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// Colours are for a terminal, unless NO_COLOR is set to anything (no-color.org).
fn is_coloured() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
