//! Platforms without an implementation: [`open`] fails.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use weft_tunnel::{PlainSlab, Plaintext};

use crate::Tun;
use crate::batch::TunBatch;
use crate::config::{OpenError, TunConfig, TunOffload};
use crate::stats::TunStats;

/// A descriptor of a queue. It has no values on this platform.
pub type Descriptor = Infallible;

/// A TUN device. It has no values on this platform.
#[derive(Debug)]
pub struct Device(Infallible);

/// The maximum number of queues of a device.
pub const MAX_QUEUES: usize = 1;
/// Whether a device takes super-packets.
pub const SUPER_PACKETS: bool = false;

/// Fails with [`OpenError::Unsupported`] and the name of the platform.
#[allow(clippy::needless_pass_by_value)]
pub fn open(_config: TunConfig) -> Result<Device, OpenError> {
    Err(OpenError::Unsupported { platform: std::env::consts::OS })
}

/// Returns the name of the device that a queue is attached to.
pub fn name_of_queue(descriptor: &Descriptor) -> io::Result<String> {
    match *descriptor {}
}

/// Checks that a descriptor is an attached queue of the device `name`.
pub fn check_queue(descriptor: &Descriptor, _name: &str) -> Result<(), String> {
    match *descriptor {}
}

/// Fails with [`OpenError::Unsupported`] and the name of the platform.
#[allow(clippy::needless_pass_by_value)]
pub fn open_queues(
    _name: &str,
    _existing: Vec<Descriptor>,
    _count: usize,
) -> Result<Vec<Descriptor>, OpenError> {
    Err(OpenError::Unsupported { platform: std::env::consts::OS })
}

/// Asks the threads of a device whether they work. There are no threads on this platform.
#[derive(Clone, Debug, Default)]
pub struct Pulse;

impl Pulse {
    /// Returns an empty list: there are no threads.
    pub fn silent(&self, _patience: Duration) -> Vec<String> {
        Vec::new()
    }
}

impl Device {
    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        match self.0 {}
    }

    /// Returns the offloads that the system accepted.
    pub fn offload(&self) -> TunOffload {
        match self.0 {}
    }

    /// Returns the counters of the device.
    pub fn stats(&self) -> &Arc<TunStats> {
        match self.0 {}
    }

    /// Returns a [`Pulse`], which asks the threads of the device whether they work.
    pub fn pulse(&self) -> Pulse {
        match self.0 {}
    }

    /// Stops every thread and closes the device.
    pub fn shutdown(&mut self) {
        match self.0 {}
    }
}

impl Tun for Device {
    fn poll_recv_many(
        &mut self,
        _: &mut Context<'_>,
        _: &mut VecDeque<TunBatch>,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        match self.0 {}
    }

    fn poll_send_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }

    fn plain_slab(&mut self) -> &mut PlainSlab {
        match self.0 {}
    }

    fn send(&mut self, _: Plaintext) -> io::Result<()> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}
