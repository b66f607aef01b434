//! Hands log messages to the program, one line each.

use std::fmt::{self, Write as _};
use std::sync::{PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Receives a message. Called on any thread; it must not block, log, or call weft.
pub type Logger = Box<dyn Fn(Level, &str) + Send + Sync>;

static LOGGER: RwLock<Option<(Level, Logger)>> = RwLock::new(None);

/// Hands messages up to `level` to `logger`; `None` ends that. When the call returns, the previous logger is
/// not called any more. A program with another subscriber of `tracing` keeps it.
pub fn set_logger(logger: Option<(Level, Logger)>) {
    let previous = std::mem::replace(&mut *LOGGER.write().unwrap_or_else(PoisonError::into_inner), logger);
    drop(previous);
    let _another_is_set = tracing::subscriber::set_global_default(Forward);
    tracing::callsite::rebuild_interest_cache();
}

/// The subscriber that knows the logger. Spans have no part in a line.
struct Forward;

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // boringtun warns of every repeated handshake, without naming the peer.
        !metadata.target().starts_with("boringtun")
            && self.max_level_hint() >= Some((*metadata.level()).into())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let logger = LOGGER.read().unwrap_or_else(PoisonError::into_inner);
        Some(logger.as_ref().map_or(LevelFilter::OFF, |(level, _)| (*level).into()))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{}{}", line.message, line.fields).replace(['\n', '\0'], " ");
        if let Some((_, logger)) = &*LOGGER.read().unwrap_or_else(PoisonError::into_inner) {
            logger(*event.metadata().level(), &text);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn messages_reach_the_logger_up_to_its_level_until_it_is_replaced() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let logger: Logger = Box::new(move |level, line| kept.lock().unwrap().push((level, line.to_owned())));
        set_logger(Some((Level::INFO, logger)));
        tracing::info!(port = 7, "a\nb");
        tracing::debug!("not this");
        tracing::error!(target: "boringtun::noise", "nor this");
        set_logger(None);
        tracing::error!("nor this");
        assert_eq!(*lines.lock().unwrap(), [(Level::INFO, "a b port=7".to_owned())]);
        assert_eq!(Arc::strong_count(&lines), 1);
    }
}
