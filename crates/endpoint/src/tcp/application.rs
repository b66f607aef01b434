//! The calls of the application.

use super::connection::{Connection, nanoseconds};
use super::sequence::FIRST;
use crate::chunk::{Chunk, LARGE};
use crate::common::Common;
use crate::{Event, StreamError, StreamState};

/// The least that may be queued to send, whatever the congestion window is, where there is memory.
const MIN_SEND_BUFFER: u64 = 256 << 10;
/// The least time that counts as a round trip, since timestamps have milliseconds.
const MIN_ROUND: u64 = 1_000_000;

impl Connection {
    /// Takes what has arrived; an empty chunk is the end.
    pub(crate) fn take(&mut self, common: &mut Common) -> Result<Option<Chunk>, StreamError> {
        if let Some(chunk) = self.receive.take(&mut common.pool) {
            self.moved(chunk.len() as u64, common.now);
            self.account(common);
            self.measure(common);
            if self.wants_window_update(common) && !self.fin_received && self.state != StreamState::Closed {
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

    /// Fits the window to what the application takes in a round trip. In slow start twice that is in flight
    /// one round trip later, and is twice as much again before this is seen; later the half is enough.
    fn measure(&mut self, common: &Common) {
        let (since, from) = self.taken_since;
        let time = common.now - since;
        let round = self.echo_age.or(self.rtt.smoothed()).unwrap_or(0).max(MIN_ROUND);
        if time < round {
            return;
        }
        let read = self.receive.read();
        self.taken_since = (common.now, read);
        let taken = (read - from).saturating_mul(round) / time;
        let most = common.largest(common.limits.receive_window);
        let most = if self.receive_scale == 0 { most.min(65_535) } else { most };
        // The time may be that of an emptier path if no timestamps come back.
        let is_measured = self.echo_age.take().is_some();
        if 4 * taken > self.wanted && !common.pool.is_scarce {
            self.wanted = self.wanted.max(most.min(4 * taken));
        } else if is_measured {
            self.wanted -= self.wanted.saturating_sub((LARGE as u64).max(2 * taken)) / 8;
        }
    }

    /// Returns an empty chunk if there is room for it.
    pub(crate) fn reserve(&mut self, common: &mut Common) -> Result<Option<Chunk>, StreamError> {
        self.may_send()?;
        if !self.has_room(common) {
            self.waits_to_write = true;
            return Ok(None);
        }
        Ok(Some(Chunk::new(common.pool.buffer(LARGE), 0, 0)))
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
        let least = if common.pool.is_scarce { LARGE as u64 } else { MIN_SEND_BUFFER };
        let most = common.largest(common.limits.send_buffer);
        let limit = (2 * self.congestion.window()).max(least).min(most);
        let is_open = !matches!(self.state, StreamState::SynSent | StreamState::SynReceived);
        let has_memory = common.reserved + LARGE as u64 <= common.memory;
        is_open && self.send.len() < limit && (self.send.len() == 0 || has_memory)
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
