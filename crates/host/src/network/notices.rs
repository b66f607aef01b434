//! Notices that Windows sends on its threads: a queue for the thread that watches, and the meaning of a
//! notice for the tunnel.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::NetworkChange;
use super::clocks::Ahead;
use crate::routes::tables::Refusal;

/// A notice, with the index of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// An address was added, removed or changed.
    Address(u32),
    /// A route was added, removed or changed.
    Route(u32),
    /// A protocol of an interface was switched on or off, or its settings were changed.
    Interface(u32),
    /// The system did not say what has changed.
    Unknown,
    /// The machine is awake again.
    Resumed,
    /// The watch ends.
    Stop,
}

/// What is asked of the system.
pub(super) trait Machine {
    /// Returns the MTU of the device in bytes; `None` if it is gone.
    fn device_mtu(&self, device: u32) -> Result<Option<u32>, Refusal>;

    /// Returns how long the machine has slept since it was started.
    fn time_asleep(&self) -> Duration;
}

/// The notices that were not handled yet.
pub(super) struct Notices<M> {
    received: Receiver<Notice>,
    machine: M,
    /// The index of weft's device.
    device: Option<u32>,
    asleep: Ahead,
}

impl<M: Machine> Notices<M> {
    /// Returns a queue and its end for the threads of the system.
    pub(super) fn new(machine: M, device: Option<u32>) -> (Sender<Notice>, Self) {
        let (sender, received) = channel();
        let asleep = Ahead::new(machine.time_asleep());
        (sender, Self { received, machine, device, asleep })
    }

    /// Waits for changes, at most until `due`. Returns whether the watch has ended.
    pub(super) fn wait(
        &mut self,
        due: Option<Instant>,
        mut note: impl FnMut(NetworkChange),
    ) -> io::Result<bool> {
        let notice = match due {
            None => self.received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => self.received.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match notice {
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Ok(Notice::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(true),
            Ok(notice) => note(self.change(notice)),
        }
        Ok(false)
    }

    /// Returns the change that a notice tells of. Addresses and routes of weft's device are weft's affair.
    fn change(&mut self, notice: Notice) -> NetworkChange {
        let nothing = NetworkChange::default();
        match (notice, self.device) {
            (Notice::Address(index) | Notice::Route(index), Some(device)) if index == device => nothing,
            (Notice::Address(_), _) => NetworkChange { addresses: true, ..nothing },
            (Notice::Route(_), _) => NetworkChange { routes: true, ..nothing },
            (Notice::Interface(index), Some(device)) if index == device => {
                match self.machine.device_mtu(device) {
                    Ok(Some(mtu)) => NetworkChange { device_mtu: Some(mtu), ..nothing },
                    Ok(None) => NetworkChange { device_gone: true, ..nothing },
                    Err(_) => NetworkChange { missed: true, ..nothing },
                }
            }
            (Notice::Interface(_), _) => NetworkChange { links: true, ..nothing },
            (Notice::Unknown, _) => NetworkChange { missed: true, ..nothing },
            // The clocks may not see a sleep in which the machine was not off: it has no length then.
            (Notice::Resumed, _) => {
                let slept = self.asleep.now(self.machine.time_asleep()).unwrap_or_default();
                NetworkChange { slept: Some(slept), ..nothing }
            }
            (Notice::Stop, _) => nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const DEVICE: u32 = 9;

    #[derive(Default)]
    struct Simulated {
        mtu: Cell<Option<u32>>,
        asleep: Cell<Duration>,
    }

    impl Machine for &Simulated {
        fn device_mtu(&self, device: u32) -> Result<Option<u32>, Refusal> {
            assert_eq!(device, DEVICE);
            Ok(self.mtu.get())
        }

        fn time_asleep(&self) -> Duration {
            self.asleep.get()
        }
    }

    /// Returns what is noted of a notice.
    fn noted(
        machine: &Simulated,
        notices: &mut Notices<&Simulated>,
        of: Notice,
        to: &Sender<Notice>,
    ) -> NetworkChange {
        let mut changes = Vec::new();
        to.send(of).unwrap();
        assert!(!notices.wait(None, |change| changes.push(change)).unwrap(), "{machine:p}");
        assert_eq!(changes.len(), 1);
        changes[0]
    }

    #[test]
    fn other_interfaces_matter_and_the_own_one_only_by_its_mtu_and_its_end() {
        let machine = Simulated::default();
        let (sender, mut notices) = Notices::new(&machine, Some(DEVICE));
        let none = NetworkChange::default();
        let cases = [
            (Notice::Route(4), Some(1420), NetworkChange { routes: true, ..none }),
            (Notice::Address(4), Some(1420), NetworkChange { addresses: true, ..none }),
            (Notice::Interface(4), Some(1420), NetworkChange { links: true, ..none }),
            (Notice::Unknown, Some(1420), NetworkChange { missed: true, ..none }),
            (Notice::Route(DEVICE), Some(1420), none),
            (Notice::Address(DEVICE), Some(1420), none),
            (Notice::Interface(DEVICE), Some(1380), NetworkChange { device_mtu: Some(1380), ..none }),
            (Notice::Interface(DEVICE), None, NetworkChange { device_gone: true, ..none }),
        ];
        for (notice, mtu, expected) in cases {
            machine.mtu.set(mtu);
            assert_eq!(noted(&machine, &mut notices, notice, &sender), expected, "{notice:?}");
        }
    }

    #[test]
    fn the_end_of_a_sleep_is_told_with_its_length_if_the_clocks_know_it() {
        let machine = Simulated::default();
        machine.asleep.set(Duration::from_secs(100));
        let (sender, mut notices) = Notices::new(&machine, None);
        machine.asleep.set(Duration::from_secs(160));
        let mut slept = || noted(&machine, &mut notices, Notice::Resumed, &sender);
        let seconds =
            |seconds| NetworkChange { slept: Some(Duration::from_secs(seconds)), ..NetworkChange::default() };
        assert_eq!(slept(), seconds(60));
        assert_eq!(slept(), seconds(0));
        assert!(seconds(0).concerns_ways());
    }

    #[test]
    fn the_wait_ends_when_a_change_is_due_and_when_the_watch_is_stopped() {
        let machine = Simulated::default();
        let (sender, mut notices) = Notices::new(&machine, None);
        let panics = |change| panic!("{change:?}");
        assert!(!notices.wait(Some(Instant::now()), panics).unwrap());
        sender.send(Notice::Stop).unwrap();
        assert!(notices.wait(None, panics).unwrap());
        drop(sender);
        assert!(notices.wait(None, panics).unwrap());
    }
}
