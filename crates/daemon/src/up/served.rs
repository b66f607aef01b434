//! Changes over UAPI, which the control thread has to follow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_config::device::{DeviceChange, DeviceState};
use weft_uapi::{Control, ControlError};

use super::supervisor::{Inbox, Message};

/// The controller for UAPI, which reports each change to the control thread.
pub(super) struct Announced {
    controller: Arc<dyn Control>,
    inbox: Inbox,
    is_configured: Arc<AtomicBool>,
}

impl Announced {
    /// `is_configured` becomes true with each change.
    pub(super) fn new(controller: Arc<dyn Control>, inbox: Inbox, is_configured: Arc<AtomicBool>) -> Self {
        Self { controller, inbox, is_configured }
    }
}

impl Control for Announced {
    fn get(&self) -> Result<DeviceState, ControlError> {
        self.controller.get()
    }

    fn set(&self, change: DeviceChange) -> Result<(), ControlError> {
        self.controller.set(change)?;
        self.is_configured.store(true, Ordering::Relaxed);
        // Does not wait for room, because the control thread may wait for the command that asked for the
        // change.
        let _full = self.inbox.try_send(Message::Configured);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An interface that accepts every change.
    struct Accepting;

    impl Control for Accepting {
        fn get(&self) -> Result<DeviceState, ControlError> {
            Err(ControlError::Ended)
        }

        fn set(&self, _change: DeviceChange) -> Result<(), ControlError> {
            Ok(())
        }
    }

    #[test]
    fn a_change_is_noted_also_when_the_inbox_has_no_room() {
        let (inbox, _messages) = mpsc::sync_channel(0);
        let is_configured = Arc::<AtomicBool>::default();
        let announced = Announced::new(Arc::new(Accepting), inbox, Arc::clone(&is_configured));
        announced.set(DeviceChange::default()).unwrap();
        assert!(is_configured.load(Ordering::Relaxed));
    }
}
