//! How much may be in flight.

mod new_reno;

pub(crate) use new_reno::NewReno;

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// Bytes that are delivered and were not before.
    pub(crate) bytes: u64,
    /// Payload bytes of a full segment.
    pub(crate) mss: u64,
    /// Most bytes that were in flight after the last transmission: a window that was not used does not grow.
    pub(crate) flight: u64,
}

/// A congestion controller. All is in bytes.
pub(crate) trait Congestion: std::fmt::Debug + Send {
    /// Returns the bytes that may be in flight.
    fn window(&self) -> u64;
    /// Returns the window above which it grows slowly; `u64::MAX` before the first loss.
    fn threshold(&self) -> u64;
    /// Something was delivered, and no loss is being repaired.
    fn on_ack(&mut self, acknowledged: Acknowledged);
    /// Something is lost, the first since the last recovery.
    fn on_loss(&mut self, flight: u64, mss: u64);
    /// The retransmission timer has expired. `is_first`: for the first time since something was delivered.
    fn on_timeout(&mut self, flight: u64, mss: u64, is_first: bool);
}
