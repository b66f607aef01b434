//! `weft top`: shows a running interface in a terminal, updated live.
//!
//! One thread polls the daemon, one reads keys, and this thread draws: the view can end although the daemon
//! hangs or the terminal is gone.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use weft_config::InterfaceName;
use weft_config::exit::{Code, Error};
use weft_report::StatusReport;
use weft_report::control_socket::{Client, ClientError};

use crate::args::TopArgs;
use crate::hang_up::is_hung_up;
use crate::{running, signals};

mod app;
mod draw;
mod history;
mod key;
mod peer_table;
mod share_tables;

use app::App;

/// How long a key, a report or a signal may wait until it is handled.
const TURN: Duration = Duration::from_millis(50);

/// Why the view ended.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error("`weft top` needs a terminal; for scripts there is `weft status --json`")]
    NoTerminal,
    #[error("cannot use the terminal: {0}")]
    Terminal(#[source] io::Error),
    #[error("cannot start watching: {0}")]
    Start(#[source] io::Error),
    #[error("a thread of the view has ended")]
    ThreadEnded,
}

impl From<TopError> for Error {
    fn from(error: TopError) -> Self {
        let code = if matches!(error, TopError::NoTerminal) { Code::Usage } else { Code::Failure };
        Self::new(code, error)
    }
}

/// Shows an interface until a key or a signal ends it.
///
/// # Errors
/// [`Code::Usage`] without a terminal; [`Code::Failure`] when the interface does not run.
pub fn run(args: &TopArgs) -> Result<(), Error> {
    let mut client = connect(args.name.as_ref())?;
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal.into());
    }
    let name = client.name().clone();
    let peer = args.peer.as_ref().map(|wanted| {
        let report = client.status()?;
        let peer = report.peer(wanted).map_err(|error| Error::new(Code::Failure, error))?;
        Ok::<_, Error>(peer.public_key.clone())
    });
    let peer = peer.transpose()?;
    let ended = Arc::new(AtomicBool::new(false));
    let on_signal = Arc::clone(&ended);
    signals::watch(move |_| on_signal.store(true, Ordering::Relaxed)).map_err(TopError::Start)?;
    let is_coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut app = App::new(name.as_str(), is_coloured);
    if let Some(key) = peer {
        app.show_peer(key);
    }
    let watcher = Watcher::start(client, name, args.interval).map_err(TopError::Start)?;
    let shown = {
        // Installs a panic hook that restores the terminal too, whichever thread panics.
        let mut terminal = ratatui::try_init().map_err(TopError::Terminal)?;
        let _restore = Restore;
        let keys = read_keys().map_err(TopError::Start)?;
        let shown = show(&mut terminal, &mut app, &watcher, &keys, &ended);
        if terminal.show_cursor().is_err() {
            // Dropping the terminal would try again, print the failure to standard error, and panic if that
            // is closed, too.
            std::mem::forget(terminal);
        }
        shown
    };
    Ok(shown?)
}

/// Restores the terminal when dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // If this fails, there is no place to report it.
        let _ = ratatui::try_restore();
    }
}

fn connect(name: Option<&InterfaceName>) -> Result<Client, Error> {
    let connected = name.map_or_else(running::connect_to_first, |name| Ok(Client::connect(name)?));
    connected.inspect_err(|_| running::warn_of_leftovers(name))
}

fn show(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    watcher: &Watcher,
    keys: &mpsc::Receiver<io::Result<Event>>,
    ended: &AtomicBool,
) -> Result<(), TopError> {
    let mut is_stale = true;
    while !ended.load(Ordering::Relaxed) && !is_terminal_gone() {
        loop {
            match watcher.looks.try_recv() {
                Ok(look) => {
                    app.take(look);
                    is_stale = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(TopError::ThreadEnded),
            }
        }
        if std::mem::take(&mut is_stale) {
            match terminal.draw(|frame| draw::draw(frame, app)) {
                Err(_) if is_terminal_gone() => return Ok(()),
                drawn => drawn.map_err(TopError::Terminal)?,
            };
        }
        let event = match keys.recv_timeout(TURN) {
            Ok(event) => event.map_err(TopError::Terminal)?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Err(TopError::ThreadEnded),
        };
        is_stale = true;
        if let Event::Key(key) = event
            && key.kind != KeyEventKind::Release
            && key::is_end(app, key)
        {
            return Ok(());
        }
    }
    Ok(())
}

fn is_terminal_gone() -> bool {
    is_hung_up(io::stdin()) || is_hung_up(io::stdout())
}

/// Starts the thread that reads keys and changes of the terminal size. The thread is never joined and ends
/// with the process, because crossterm does not return if the terminal is gone.
fn read_keys() -> io::Result<mpsc::Receiver<io::Result<Event>>> {
    let (report, keys) = mpsc::channel();
    let read = move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if report.send(event).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("weft-keys".to_owned()).spawn(read)?;
    Ok(keys)
}

/// The result of one poll of the daemon.
type Look = Result<Box<StatusReport>, ClientError>;

/// The thread that polls the daemon. Dropping it ends the thread after its current request.
struct Watcher {
    looks: mpsc::Receiver<Look>,
    _stop: mpsc::Sender<()>,
    _thread: JoinHandle<()>,
}

impl Watcher {
    fn start(client: Client, name: InterfaceName, interval: Duration) -> io::Result<Self> {
        let (report, looks) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            let mut client = Some(client);
            loop {
                let view = poll(&mut client, &name);
                if view.is_err() {
                    // The next poll connects again: the daemon may be back.
                    client = None;
                }
                let is_over = report.send(view).is_err();
                if is_over || stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("weft-top".to_owned()).spawn(watch)?;
        Ok(Self { looks, _stop: stop, _thread: thread })
    }
}

fn poll(client: &mut Option<Client>, name: &InterfaceName) -> Look {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(name)?),
    };
    client.status().map(Box::new)
}
