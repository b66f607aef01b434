//! A queue before the log, which a separate thread writes. Whatever reads the log may stop: a journal on a
//! disk that hangs, a pipe that is full, a terminal after Ctrl-S. Threads that move packets must not wait for
//! it, and others not for long.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing::dispatcher::{self, Dispatch};
use tracing::field::{self, Field, Value, ValueSet, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use weft_config::{Notation, SAYS_ALL, printable};
use weft_confine::EndProcessOnPanic;

/// Capacity of the queue, in lines.
const LINES: usize = 1024;
/// How long a thread waits for room, and the end of the process for the last lines.
const PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(5);
/// The most fields that a line may have: the limit of the crate `tracing`.
const FIELDS: usize = 32;

static QUEUE: Queue = Queue::new();

thread_local! {
    /// Whether this thread writes the log.
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// Starts the thread that writes the log; until then each thread writes its lines itself. When the value is
/// dropped, the lines are written for which there is time, and later ones as before.
#[must_use]
pub fn start() -> impl Drop {
    QUEUE.start();
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !QUEUE.flush() {
            // The message would wait too, and a thread that has panicked must end the process.
            std::process::exit(1);
        }
        before(panic);
    }));
    Flush
}

/// Waits until the lines that were logged are written, but not for long.
pub fn flush() {
    QUEUE.flush();
}

struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        QUEUE.flush();
        QUEUE.is_open.store(false, Relaxed);
    }
}

pub(super) struct Queue {
    items: OnceLock<SyncSender<Item>>,
    is_open: AtomicBool,
    /// No line was written since a thread waited for room in vain.
    is_stuck: AtomicBool,
    lost: AtomicU64,
}

enum Item {
    Line(Line),
    /// To be answered when everything before it is written.
    Flush(SyncSender<()>),
}

impl Queue {
    const fn new() -> Self {
        Self {
            items: OnceLock::new(),
            is_open: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        }
    }

    /// Starts the thread. It logs with the subscriber of this thread.
    fn start(&'static self) {
        let (items, received) = sync_channel(LINES);
        if self.items.set(items).is_err() {
            self.is_open.store(true, Relaxed);
            return;
        }
        let subscriber = dispatcher::get_default(Dispatch::clone);
        let work = move || {
            let _guard = EndProcessOnPanic;
            weft_confine::thread(weft_confine::Role::Service);
            IS_WRITER.set(true);
            dispatcher::with_default(&subscriber, || self.write(&received));
        };
        match thread::Builder::new().name("weft-log".to_owned()).spawn(work) {
            Ok(_) => self.is_open.store(true, Relaxed),
            Err(error) => tracing::warn!("cannot start a thread for the log: {error}"),
        }
    }

    fn write(&self, items: &Receiver<Item>) {
        for item in items {
            match item {
                Item::Line(line) => line.log(),
                Item::Flush(done) => drop(done.send(())),
            }
            self.is_stuck.store(false, Relaxed);
            let lost = self.lost.swap(0, Relaxed);
            if lost > 0 {
                tracing::warn!("{lost} lines of the log are lost: what reads the log did not take them");
            }
        }
    }

    /// Reports whether lines of this thread go through the queue.
    fn takes(&self) -> bool {
        self.is_open.load(Relaxed) && !IS_WRITER.get()
    }

    fn add(&self, line: Line) {
        let patience = if moves_packets() || self.is_stuck.load(Relaxed) { Duration::ZERO } else { PATIENCE };
        if !self.send(Item::Line(line), patience) {
            self.is_stuck.store(true, Relaxed);
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Returns whether everything was written in time.
    fn flush(&self) -> bool {
        if !self.takes() {
            return true;
        }
        let (done, written) = sync_channel(1);
        self.send(Item::Flush(done), PATIENCE) && written.recv_timeout(PATIENCE).is_ok()
    }

    /// Returns whether there was room in time.
    fn send(&self, mut item: Item, patience: Duration) -> bool {
        let Some(items) = self.items.get() else { return false };
        let start = Instant::now();
        loop {
            match items.try_send(item) {
                Ok(()) => return true,
                Err(TrySendError::Full(back)) if start.elapsed() < patience => item = back,
                Err(_) => return false,
            }
            thread::sleep(TICK);
        }
    }
}

/// Reports whether this thread moves packets.
fn moves_packets() -> bool {
    let thread = thread::current();
    thread.name().is_some_and(|name| name.starts_with("weft-packets") || name.starts_with("weft-tun-"))
}

/// A layer that has another one log on the thread of a queue.
pub(super) struct Queued<L> {
    layer: L,
    queue: &'static Queue,
    /// Whether fields are left out that the text has already.
    is_for_people: bool,
}

impl<L> Queued<L> {
    pub(super) fn new(layer: L) -> Self {
        Self { layer, queue: &QUEUE, is_for_people: false }
    }

    /// Leaves out what a person has read already in lines that are called [`SAYS_ALL`].
    pub(super) fn for_people(layer: L) -> Self {
        Self { is_for_people: true, ..Self::new(layer) }
    }
}

impl<S: Subscriber, L: Layer<S>> Layer<S> for Queued<L> {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.layer.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.layer.on_record(id, values, context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if IS_WRITER.get() {
            // Of a line that was taken before.
            self.layer.on_event(event, context);
            return;
        }
        let mut line = Line::of(event);
        if self.is_for_people && line.metadata.name() == SAYS_ALL {
            line.values.retain(|(field, _)| field.name() == "message");
        }
        if self.queue.takes() {
            self.queue.add(line);
        } else {
            let metadata = line.metadata;
            line.values(|values| self.layer.on_event(&Event::new(metadata, values), context));
        }
    }
}

/// What was logged, without what it borrowed, and without anything that a terminal would obey: what others
/// sent is among the values.
struct Line {
    metadata: &'static Metadata<'static>,
    values: Vec<(Field, OwnedValue)>,
}

enum OwnedValue {
    Text(String),
    /// What `{}` or `{:?}` made of a value.
    Formatted(String),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
}

impl Line {
    fn of(event: &Event<'_>) -> Self {
        let mut line = Self { metadata: event.metadata(), values: Vec::new() };
        event.record(&mut line);
        line
    }

    /// Logs it on this thread.
    fn log(&self) {
        self.values(|values| Event::dispatch(self.metadata, values));
    }

    /// Calls `then` with the values.
    fn values(&self, then: impl FnOnce(&ValueSet<'_>)) {
        let Some((first, _)) = self.values.first() else { return };
        let values: Vec<(&Field, Box<dyn Value + '_>)> =
            self.values.iter().map(|(field, value)| (field, value.borrow())).collect();
        let mut fields: [(&Field, Option<&dyn Value>); FIELDS] = [(first, None); FIELDS];
        for (place, (field, value)) in fields.iter_mut().zip(&values) {
            *place = (field, Some(&**value));
        }
        then(&self.metadata.fields().value_set(&fields));
    }

    fn add(&mut self, field: &Field, value: OwnedValue) {
        self.values.push((field.clone(), value));
    }
}

impl OwnedValue {
    fn borrow(&self) -> Box<dyn Value + '_> {
        match self {
            Self::Text(text) => Box::new(text.as_str()),
            Self::Formatted(text) => Box::new(field::display(text)),
            Self::Signed(number) => Box::new(*number),
            Self::Unsigned(number) => Box::new(*number),
            Self::Float(number) => Box::new(*number),
            Self::Bool(value) => Box::new(*value),
        }
    }
}

fn shown(text: String) -> String {
    match printable(&text, Notation::Text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shown) => shown,
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, OwnedValue::Formatted(shown(format!("{value:?}"))));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, OwnedValue::Text(shown(value.to_owned())));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, OwnedValue::Signed(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, OwnedValue::Unsigned(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, OwnedValue::Float(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, OwnedValue::Bool(value));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{fmt, registry};

    use super::*;
    use crate::logging::tests::Lines;

    /// Neither queued nor before the queue has begun.
    #[test]
    fn a_terminal_obeys_nothing_of_a_line() {
        for is_queued in [false, true] {
            let (log, queue) = (Lines::default(), &*Box::leak(Box::new(Queue::new())));
            let writer = log.clone();
            let layer = fmt::layer().with_ansi(false).without_time().with_writer(move || writer.clone());
            let subscriber = Dispatch::new(registry().with(Queued { layer, queue, is_for_people: false }));
            dispatcher::with_default(&subscriber, || {
                if is_queued {
                    queue.start();
                }
                let (title, clear) = ("\x1b]0;title\x07", "\u{9b}2J");
                tracing::warn!(title, peer = %clear, kind = ?"\u{202e}", "it says \x1b[31m\u{202e}{clear}");
                assert!(queue.flush());
            });
            let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            assert!(text.contains("it says") && text.contains(r"\u{202e}"), "{text}");
            let obeyed = |c| c != '\n' && weft_config::is_unprintable(c);
            assert!(!text.contains(obeyed), "{is_queued}: {text:?}");
        }
    }

    #[test]
    fn a_log_that_is_not_read_stops_no_thread_and_says_later_how_much_is_missing() {
        let (log, queue) = (Lines::default(), &*Box::leak(Box::new(Queue::new())));
        let writer = log.clone();
        let layer = fmt::layer().with_ansi(false).without_time().with_writer(move || writer.clone());
        let subscriber = Dispatch::new(registry().with(Queued { layer, queue, is_for_people: false }));
        dispatcher::with_default(&subscriber, || queue.start());
        let unread = log.0.lock().unwrap();
        let lines = LINES + 100;
        for name in ["weft-packets-1", "weft-tun-r0", "weft-control"] {
            let subscriber = subscriber.clone();
            let work = move || {
                dispatcher::with_default(&subscriber, || {
                    for number in 0..lines {
                        tracing::info!(number, name, is_last = false, error = %"e", "a line");
                    }
                });
            };
            thread::Builder::new().name(name.to_owned()).spawn(work).unwrap().join().unwrap();
        }
        drop(unread);
        assert!(queue.flush());
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let first = "a line number=0 name=\"weft-packets-1\" is_last=false error=e";
        assert!(text.lines().next().unwrap().ends_with(first), "{text}");
        let lost: usize = text
            .lines()
            .filter_map(|line| line.split_once("queue: ")?.1.split_once(" lines of the log are lost"))
            .map(|(count, _)| count.parse::<usize>().unwrap())
            .sum();
        let written = text.lines().filter(|line| line.contains("a line")).count();
        assert_eq!(written + lost, 3 * lines, "{lost} lost");
    }

    #[cfg(unix)]
    #[test]
    fn a_thread_that_panics_ends_the_process_though_the_log_is_not_read() {
        const CHILD: &str = "WEFT_TEST_UNREAD_LOG";
        const NAME: &str =
            "logging::queue::tests::a_thread_that_panics_ends_the_process_though_the_log_is_not_read";
        if std::env::var_os(CHILD).is_some() {
            crate::logging::init(Some("info"), "info", crate::logging::Format::Human, None, None).unwrap();
            let _log = start();
            for number in 0..LINES {
                tracing::info!(number, "more lines than a pipe holds, and a panic behind them");
            }
            let body = || {
                let _guard = EndProcessOnPanic;
                panic!("on purpose");
            };
            let _ = thread::spawn(body).join();
            std::process::exit(0);
        }
        let (_unread, full) = std::io::pipe().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").env_remove("JOURNAL_STREAM");
        let status = child.stdout(std::process::Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(1));
    }
}
