//! The log: lines on standard error, human or JSON, or entries of the systemd journal. No thread is started
//! until [`queue::start`].

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::sync::Mutex;

use time::{OffsetDateTime, UtcOffset};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

mod file;
#[cfg(target_os = "linux")]
mod journal;
pub mod queue;

pub use file::File;
use queue::Queued;

#[cfg(not(target_os = "linux"))]
use crate::unsupported::journal;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people; entries with fields where standard error is the systemd journal.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// The log filter cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error(
    "the log filter {filter:?} ({origin}) is not valid: {reason}; write a level like `debug`, or targets like \
         `info,weft_host::routes=debug`"
)]
pub struct InvalidFilter {
    filter: String,
    origin: &'static str,
    reason: String,
}

/// Starts the log. It logs what `filter` selects, else what RUST_LOG selects, else what `default` selects.
/// Journal entries carry the name of the `interface`. Lines go to `file` instead of standard error, if there
/// is one.
///
/// A second call changes nothing.
pub fn init(
    filter: Option<&str>,
    default: &str,
    format: Format,
    interface: Option<&str>,
    file: Option<File>,
) -> Result<(), InvalidFilter> {
    let variable = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|value| !value.trim().is_empty());
    let (filter, origin) = match (filter, &variable) {
        (Some(filter), _) => (filter, "--log"),
        (None, Some(filter)) => (filter.as_str(), EnvFilter::DEFAULT_ENV),
        (None, None) => (default, "the default"),
    };
    let invalid = |reason: String| InvalidFilter { filter: filter.to_owned(), origin, reason };
    // The variable is for all programs of its user, and may name targets of another one.
    if origin == "--log"
        && let Some(reason) = mistyped_level(filter)
    {
        return Err(invalid(reason));
    }
    let filter = parse(filter).map_err(|reason| invalid(reason.to_string()))?;
    if format == Format::Human
        && let Some(journal) = journal::connect(interface)
    {
        // A program that embeds this library may have set its own subscriber.
        let layer = Queued::new(journal);
        let _already_set = tracing_subscriber::registry().with(filter).with(layer).try_init();
        return Ok(());
    }
    let is_terminal = file.is_none() && io::stderr().is_terminal();
    let is_coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let writer =
        file.map_or_else(|| BoxMakeWriter::new(io::stderr), |file| BoxMakeWriter::new(Mutex::new(file)));
    // Otherwise tracing reports a closed standard error to standard error, and panics.
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    let _already_set = match format {
        Format::Human if is_terminal => {
            let layer = layer.with_ansi(is_coloured).with_target(false).with_timer(LocalClock::new());
            registry.with(Queued::for_people(layer)).try_init()
        }
        Format::Human => registry.with(Queued::new(layer.with_ansi(false))).try_init(),
        Format::Json => registry.with(Queued::new(layer.json().flatten_event(true))).try_init(),
    };
    Ok(())
}

/// Returns what is wrong with a word that is no level and no target of weft: as a target that does not exist,
/// it would silence all others.
fn mistyped_level(filter: &str) -> Option<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_known = |word: &str| {
        LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
            || word.parse::<u8>().is_ok()
            || word.contains(['=', '[', ':'])
            || word.starts_with("weft")
            || word == "boringtun"
    };
    let word = filter.split(',').map(str::trim).find(|word| !word.is_empty() && !is_known(word))?;
    let near = weft_config::closest(word, LEVELS.into_iter());
    let near = near.map(|level| format!(", did you mean `{level}`?")).unwrap_or_default();
    Some(format!("`{word}` is no level{near}"))
}

/// Parses a filter. boringtun is silent unless the filter names it: it warns of every repeated handshake and
/// reports an error when a peer is gone, in both cases without naming the peer. weft logs the relevant cases
/// itself.
fn parse(filter: &str) -> Result<EnvFilter, ParseError> {
    // Later directives win.
    EnvFilter::builder().parse(format!("boringtun=off,{filter}"))
}

/// The time of day, as a clock on the wall shows it at the start: later threads may not read the time zone.
struct LocalClock(UtcOffset);

impl LocalClock {
    fn new() -> Self {
        Self(UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC))
    }
}

impl FormatTime for LocalClock {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        let now = OffsetDateTime::now_utc().to_offset(self.0);
        write!(line, "{:02}:{:02}:{:02}", now.hour(), now.minute(), now.second())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A log that is not written while it is locked.
    #[derive(Clone, Default)]
    pub(super) struct Lines(pub(super) Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns which of three lines are logged.
    fn logged(filter: &str) -> [bool; 3] {
        let lines = Lines::default();
        let writer = lines.clone();
        let builder = tracing_subscriber::fmt().with_env_filter(parse(filter).unwrap());
        tracing::subscriber::with_default(builder.with_writer(move || writer.clone()).finish(), || {
            tracing::info!("of weft");
            tracing::debug!("in detail");
            tracing::error!(target: "boringtun::noise::timers", "of boringtun");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        ["of weft", "in detail", "of boringtun"].map(|line| text.contains(line))
    }

    #[test]
    fn a_person_reads_the_text_and_a_program_the_fields() {
        let logged = |is_person: bool| {
            let lines = Lines::default();
            let writer = lines.clone();
            let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
            let registry = tracing_subscriber::registry();
            let work = || {
                tracing::info!(name: weft_config::SAYS_ALL, port = 51820, "wg0 is up: port 51820");
                tracing::info!(peer = "laptop", "peer is at a new endpoint");
            };
            if is_person {
                let layer = layer.with_target(false).with_timer(LocalClock(UtcOffset::UTC));
                tracing::subscriber::with_default(registry.with(Queued::for_people(layer)), work);
            } else {
                let layer = layer.json().flatten_event(true);
                tracing::subscriber::with_default(registry.with(Queued::new(layer)), work);
            }
            String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
        };
        let person = logged(true);
        let texts: Vec<&str> = person.lines().map(|line| &line["00:00:00  ".len()..]).collect();
        assert_eq!(texts, ["INFO wg0 is up: port 51820", "INFO peer is at a new endpoint peer=\"laptop\""]);
        assert!(person.as_bytes()[2] == b':' && person.as_bytes()[5] == b':', "{person}");
        let program = logged(false);
        assert!(program.contains("\"port\":51820") && program.contains("\"peer\":\"laptop\""), "{program}");
    }

    #[test]
    fn a_word_that_is_no_level_is_an_error_with_the_one_that_is_meant() {
        for (filter, said) in [
            ("debgu", "`debgu` is no level, did you mean `debug`?"),
            ("weft_host=debug,inof", "`inof` is no level, did you mean `info`?"),
            ("loud", "`loud` is no level"),
        ] {
            assert_eq!(mistyped_level(filter).as_deref(), Some(said));
        }
        for filter in
            ["debug", "OFF", "3", "weft_host", "boringtun", "info,weft_host::routes=debug", "a=warn", ""]
        {
            assert_eq!(mistyped_level(filter), None, "{filter}");
        }
    }

    #[test]
    fn boringtun_says_nothing_unless_it_is_asked() {
        assert_eq!(logged("info"), [true, false, false]);
        assert_eq!(logged("debug"), [true, true, false]);
        assert_eq!(logged("info,boringtun=debug"), [true, false, true]);
        assert_eq!(logged("boringtun=debug"), [false, false, true]);
        assert!(parse("weft=loud").is_err());
    }
}
