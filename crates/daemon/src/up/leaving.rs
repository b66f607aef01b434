//! What this daemon leaves with the service manager for the next one, kept up to date by a dedicated thread:
//! after a crash it is a second old, or a little more with very many peers.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use weft_config::InterfaceName;
use weft_confine::EndProcessOnPanic;
use weft_control::Controller;
use weft_uapi::{Control as _, ControlError};

use super::handover::{Kept, Names};
use crate::carried_over::{AtHandover, Base, State};
use crate::service_manager::{self, FdStore};

/// Changes within this time are written together.
const PATIENCE: Duration = Duration::from_secs(1);
/// With very many peers a write takes a while. Writing takes at most one part in this many of a core.
const SHARE: u32 = 100;
/// Capacity of the channel to the thread. One waiting notice of a change says as much as many.
const TOLD: usize = 16;

/// Why nothing can be left for the next daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeaveError {
    #[error("cannot notify the service manager: {0}")]
    Store(#[from] io::Error),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("cannot write the state of the peers: {0}")]
    State(#[from] serde_json::Error),
}

enum Message {
    Changed,
    /// The sockets were replaced. The answer follows when the old ones are out of the store.
    Rebound(SyncSender<()>),
    /// The interface ends.
    End,
    Base(Box<Base>),
}

/// Keeps the state in the store up to date.
pub(super) struct Leaving {
    tell: SyncSender<Message>,
    thread: JoinHandle<Writer>,
}

/// The store, and the source of what is written to it.
pub(super) struct Writer {
    store: FdStore,
    names: Names,
    interface: InterfaceName,
    controller: Arc<Controller>,
    base: Base,
    /// When this process started: none of its key pairs counts from an earlier clock.
    began: (Instant, SystemTime),
    /// The port of the sockets in the store.
    port: u16,
    /// Every name in the store.
    stored: BTreeSet<String>,
    room: Room,
}

/// Whether the store has room for everything.
enum Room {
    /// The service manager has not answered yet.
    Unknown,
    Enough,
    /// The store cannot be used, for this reason.
    TooLittle(String),
}

impl Leaving {
    /// Puts the descriptors of a running interface into the store, and starts the thread that writes changes.
    ///
    /// # Errors
    /// When the service manager cannot be reached, or no thread can be started.
    pub(super) fn start(
        kept: Kept,
        interface: InterfaceName,
        controller: Arc<Controller>,
        base: Base,
        began: (Instant, SystemTime),
    ) -> Result<Self, LeaveError> {
        let Kept { store, names, stored, new } = kept;
        let port = controller.listen_port();
        let stored = stored.into_iter().collect();
        let room = Room::Unknown;
        let mut writer = Writer { store, names, interface, controller, base, began, port, stored, room };
        for (name, descriptor) in &new {
            writer.store.keep(name, descriptor)?;
            writer.stored.insert(name.clone());
        }
        drop(new);
        writer.keep_sockets()?;
        let (tell, told) = mpsc::sync_channel(TOLD);
        let rebound = tell.clone();
        writer.controller.after_rebind(move || {
            let (answer, answered) = mpsc::sync_channel(1);
            if rebound.send(Message::Rebound(answer)).is_ok() {
                let _ended = answered.recv();
            }
        });
        let _has_room = tell.try_send(Message::Changed);
        let thread = std::thread::Builder::new().name("weft-leaving".to_owned()).spawn(move || {
            let _guard = EndProcessOnPanic;
            writer.run(&told)
        })?;
        Ok(Self { tell, thread })
    }

    /// Notes that the interface was changed, or that something happened to a peer.
    pub(super) fn changed(&self) {
        // If the channel is full, the waiting messages cause a write anyway.
        let _full = self.tell.try_send(Message::Changed);
    }

    /// Notes that the file was loaded again.
    pub(super) fn loaded(&self, base: Base) {
        let _ended = self.tell.send(Message::Base(Box::new(base)));
    }

    /// Ends the thread and returns its writer.
    pub(super) fn finish(self) -> Option<Writer> {
        let _ended = self.tell.send(Message::End);
        weft_confine::join(self.thread)
    }
}

impl Writer {
    /// Runs until [`Message::End`].
    fn run(mut self, told: &Receiver<Message>) -> Self {
        self.look_for_room();
        let mut due: Option<Instant> = None;
        let mut not_before = Instant::now();
        loop {
            let message = match due {
                None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => told.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(Message::Changed) => {}
                Ok(Message::Rebound(answer)) => {
                    if let Err(error) = self.replace_sockets().and_then(|()| Ok(self.store.settle()?)) {
                        tracing::warn!("the service manager may keep the previous port: {error}");
                    }
                    let _gone = answer.try_send(());
                }
                Ok(Message::Base(base)) => self.base = *base,
                Err(RecvTimeoutError::Timeout) => {
                    // Waiting for its answer does not count as work.
                    self.look_for_room();
                    let start = Instant::now();
                    match self.write() {
                        Ok(()) => tracing::debug!("wrote the state for a restart"),
                        Err(error) => tracing::warn!("cannot write the state for a restart: {error}"),
                    }
                    due = None;
                    not_before = Instant::now() + start.elapsed() * SHARE;
                    continue;
                }
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return self,
            }
            due = due.or_else(|| Some((Instant::now() + PATIENCE).max(not_before)));
        }
    }

    /// Checks whether the store has room. A store that accepts nothing, or not everything, is not tried
    /// again: systemd logs a line each time. A store that is slow to answer, as while the machine boots, is
    /// asked again before the next write.
    fn look_for_room(&mut self) {
        if !matches!(self.room, Room::Unknown) {
            return;
        }
        // The state is added later.
        let needed = self.stored.len() + usize::from(!self.stored.contains(&self.names.state()));
        let room = std::env::var("FDSTORE").ok().and_then(|room| room.parse().ok());
        let has_room = room.is_none_or(|room: usize| room >= needed);
        let reason = match self.store.settle() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::debug!("the service manager has not answered yet whether it keeps descriptors");
                return;
            }
            Err(error) => format!("the service manager does not take descriptors: {error}"),
            Ok(()) => {
                let kept = service_manager::job().ok().map(|job| job.kept);
                if has_room && kept.is_none_or(|kept| kept as usize >= self.stored.len()) {
                    self.room = Room::Enough;
                    return;
                }
                format!(
                    "the service manager does not keep {needed} descriptors: raise FileDescriptorStoreMax="
                )
            }
        };
        tracing::warn!("a restart will interrupt the interface: {reason}");
        self.room = Room::TooLittle(reason);
        for name in std::mem::take(&mut self.stored) {
            if let Err(error) = self.store.forget(&name) {
                tracing::debug!(%error, "cannot empty the file-descriptor store");
            }
        }
    }

    /// Writes the current state into the store.
    fn write(&mut self) -> Result<(), LeaveError> {
        if matches!(self.room, Room::TooLittle(_)) {
            return Ok(());
        }
        self.replace_sockets()?;
        let snapshot = self.controller.snapshot().map_err(ControlError::from)?;
        let sources: HashMap<_, _> =
            snapshot.peers.iter().filter_map(|peer| Some((peer.public_key, peer.source?))).collect();
        drop(snapshot);
        let device = self.controller.get()?;
        let (began, wall_clock) = self.began;
        let latest_stamp = SystemTime::now().max(wall_clock + began.elapsed());
        let rest = AtHandover { latest_stamp, sources };
        let state = State::of(self.interface.clone(), self.base.clone(), device, &rest);
        let name = self.names.state();
        self.store.keep_sealed(&name, &state.to_bytes()?)?;
        self.stored.insert(name);
        Ok(())
    }

    /// If the port changed, replaces the sockets in the store. The service manager's copies of the old
    /// sockets keep the old port in use.
    fn replace_sockets(&mut self) -> Result<(), LeaveError> {
        let port = self.controller.listen_port();
        if port == self.port || matches!(self.room, Room::TooLittle(_)) {
            return Ok(());
        }
        self.port = port;
        for name in self.stored.extract_if(.., |name| self.names.is_socket(name)) {
            self.store.forget(&name)?;
        }
        self.keep_sockets()
    }

    /// Puts those sockets into the store that are not in it.
    fn keep_sockets(&mut self) -> Result<(), LeaveError> {
        for (name, socket) in self.names.of_sockets(self.controller.sockets()?).map_err(io::Error::other)? {
            if !self.stored.contains(&name) {
                self.store.keep(&name, &socket)?;
                self.stored.insert(name);
            }
        }
        Ok(())
    }

    /// Writes the final state. Returns true if the service is being restarted and everything is in the store;
    /// false if it is not being restarted.
    ///
    /// # Errors
    /// When that is not known, or not everything is in the store.
    pub(super) fn leave(&mut self) -> Result<bool, String> {
        if let Room::TooLittle(reason) = &self.room {
            return Err(reason.clone());
        }
        let written = self.write().and_then(|()| Ok(self.store.settle()?));
        written.map_err(|error| error.to_string())?;
        let job = service_manager::job()?;
        let kept = usize::try_from(job.kept).unwrap_or(usize::MAX);
        if job.is_restart && kept < self.stored.len() {
            return Err(format!(
                "the service manager keeps {kept} of {} descriptors: raise FileDescriptorStoreMax=",
                self.stored.len()
            ));
        }
        Ok(job.is_restart)
    }

    /// Removes everything from the store. Failures are harmless: the store's contents go with the service.
    pub(super) fn withdraw(self) {
        if self.stored.is_empty() {
            return;
        }
        let forgotten = self.stored.iter().try_for_each(|name| self.store.forget(name));
        if let Err(error) = forgotten.and_then(|()| self.store.settle()) {
            tracing::debug!(%error, "cannot empty the file-descriptor store");
        }
    }
}
