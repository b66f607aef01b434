//! The calls of the application.

use super::connection::{Connection, nanoseconds};
use super::sequence::FIRST;
use crate::chunk::{Chunk, LARGE, SMALL};
use crate::common::Common;
use crate::{Event, StreamError, StreamState};

/// The least that may be queued to send, whatever the congestion window is.
const MIN_SEND_BUFFER: u64 = 256 << 10;

impl Connection {
    /// Takes what has arrived; an empty chunk is the end.
    pub(crate) fn take(&mut self, common: &mut Common) -> Result<Option<Chunk>, StreamError> {
        if let Some(chunk) = self.receive.take(&mut common.pool) {
            if self.wants_window_update() && !self.fin_received && self.state != StreamState::Closed {
                self.wants_ack = true;
            }
            return Ok(Some(chunk));
        }
        if self.fin_received {
            return Ok(Some(Chunk::default()));
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        self.waits_to_read = true;
        Ok(None)
    }

    /// Returns an empty chunk if there is room for it.
    pub(crate) fn reserve(&mut self, common: &mut Common) -> Result<Option<Chunk>, StreamError> {
        self.may_send()?;
        if !self.has_room(common) {
            self.waits_to_write = true;
            return Ok(None);
        }
        let size = if self.has_memory(common) { LARGE } else { SMALL };
        Ok(Some(Chunk::new(common.pool.buffer(size), 0, 0)))
    }

    fn may_send(&self) -> Result<(), StreamError> {
        match self.error {
            Some(error) => Err(error),
            None if self.is_finishing || self.state == StreamState::Closed => Err(StreamError::Finished),
            None => Ok(()),
        }
    }

    /// Two windows may be queued: one in flight, and one that follows while the first is acknowledged.
    fn has_room(&self, common: &Common) -> bool {
        let most = u64::from(common.limits.send_buffer);
        let limit = (2 * self.congestion.window()).max(MIN_SEND_BUFFER).min(most);
        let is_open = !matches!(self.state, StreamState::SynSent | StreamState::SynReceived);
        is_open && self.send.len() < limit && (self.send.len() == 0 || self.has_memory(common))
    }

    fn has_memory(&self, common: &Common) -> bool {
        common.held + (LARGE as u64) <= common.memory
    }

    pub(crate) fn put(&mut self, chunk: Chunk, common: &mut Common) -> Result<(), StreamError> {
        if let Err(error) = self.may_send() {
            common.pool.put(chunk.into_buffer());
            return Err(error);
        }
        self.send.push(chunk, &mut common.pool);
        Ok(())
    }

    /// This direction ends behind what was put.
    pub(crate) fn finish(&mut self, common: &mut Common) {
        if self.state != StreamState::Closed && !self.is_finishing {
            self.is_finishing = true;
            self.advance(common);
        }
    }

    /// The application is gone.
    pub(crate) fn release(&mut self, common: &mut Common) {
        self.is_released = true;
        self.silent_since = common.now;
        match self.state {
            StreamState::Closed | StreamState::TimeWait => {}
            StreamState::SynSent => self.fail(StreamError::Closed, common),
            _ if self.receive.ready() > 0 => self.reset(common),
            StreamState::FinWait2 => self.limit_wait(common),
            _ => self.finish(common),
        }
        // Nobody takes what is there, and what comes is answered by a reset.
        self.receive.clear(&mut common.pool);
    }

    /// Has the connection fail when the peer acknowledges nothing of what is sent for this time (RFC 5482).
    pub(crate) fn give_up_after(&mut self, time: std::time::Duration) {
        self.user_timeout = nanoseconds(time);
    }

    /// Reports whether nothing more comes from the peer.
    pub(crate) fn has_ended(&self) -> bool {
        self.fin_received || self.error.is_some()
    }

    pub(crate) fn reset(&mut self, common: &mut Common) {
        self.is_released = true;
        if self.una >= FIRST && !matches!(self.state, StreamState::Closed | StreamState::TimeWait) {
            self.send_reset(common);
        }
        self.fail(StreamError::Closed, common);
    }

    pub(super) fn readable(&mut self, common: &mut Common) {
        if !self.is_released && std::mem::take(&mut self.waits_to_read) {
            common.events.push_back(Event::Readable(self.id));
        }
    }

    pub(super) fn writable(&mut self, common: &mut Common) {
        if !self.is_released && std::mem::take(&mut self.waits_to_write) {
            common.events.push_back(Event::Writable(self.id));
        }
    }

    pub(super) fn writable_if_room(&mut self, common: &mut Common) {
        if self.waits_to_write && self.has_room(common) {
            self.writable(common);
        }
    }
}
