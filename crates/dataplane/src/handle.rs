//! Commands to the event loop from other threads.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::mpsc as async_mpsc;
use weft_tunnel::Change;
use weft_udp::{self as udp, BindError};

use crate::{Command, DataplaneError, Snapshot, capture};

/// Capacity of the channel of commands to the event loop.
const COMMANDS: usize = 64;

/// A handle for sending commands to the packet thread. Its calls wait for the event loop, usually a fraction
/// of a millisecond; they must not be made from within a tokio runtime.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: async_mpsc::Sender<Command>,
}

impl Handle {
    /// Returns a handle, and the queue of its commands for the event loop.
    pub fn new() -> (Self, async_mpsc::Receiver<Command>) {
        let (commands, queue) = async_mpsc::channel(COMMANDS);
        (Self { commands }, queue)
    }

    /// Ends the event loop, if it has not ended.
    pub fn stop(&self) {
        // This fails if the channel is closed: then the loop has ended already.
        let _ = self.commands.blocking_send(Command::Stop);
    }

    /// Returns every counter and peer. Memory for `peers` peers is allocated here, not on the packet thread.
    pub fn snapshot(&self, peers: usize) -> Result<Snapshot, DataplaneError> {
        self.ask(|answer| Command::Snapshot { peers: Vec::with_capacity(peers), answer })
    }

    /// Applies changes to the tunnel, and returns when all are applied.
    pub fn change(&self, changes: Vec<Change>) -> Result<(), DataplaneError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.ask(|answer| Command::Change { changes, answer })
    }

    /// Changes the UDP port and the mark, both or neither. Returns the port in use.
    pub fn rebind(
        &self,
        port: Option<u16>,
        fwmark: Option<u32>,
    ) -> Result<Result<u16, BindError>, DataplaneError> {
        self.ask(|answer| Command::Rebind { port, fwmark, answer })
    }

    /// Returns duplicates of the descriptors of the UDP sockets.
    pub fn sockets(&self) -> Result<io::Result<Vec<udp::Descriptor>>, DataplaneError> {
        self.ask(|answer| Command::Sockets { answer })
    }

    /// Begins a capture. Returns `None` if too many captures are running.
    pub fn capture(
        &self,
        filter: capture::CaptureFilter,
    ) -> Result<Option<capture::Capture>, DataplaneError> {
        let (capture, tap) = capture::Capture::new(filter);
        let taken = self.ask(|answer| Command::Capture { tap: Box::new(tap), answer })?;
        Ok(taken.then_some(capture))
    }

    /// Reports whether the event loop takes a turn within `patience`. Never waits longer, even if the event
    /// loop hangs.
    pub fn takes_a_turn(&self, patience: Duration) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        // A full queue means that the event loop takes no commands: other callers wait for answers too.
        self.commands.try_send(Command::Ping { answer }).is_ok() && answered.recv_timeout(patience).is_ok()
    }

    fn ask<T>(&self, command: impl FnOnce(mpsc::SyncSender<T>) -> Command) -> Result<T, DataplaneError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.commands.blocking_send(command(answer)).map_err(|_| DataplaneError::Ended)?;
        answered.recv().map_err(|_| DataplaneError::Ended)
    }
}
