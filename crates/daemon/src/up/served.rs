//! What the sockets of an interface call: the controller directly, the control thread for everything else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use weft_config::device::{DeviceChange, DeviceState};
use weft_report::StatusReport;
use weft_report::control_socket::{CaptureRequest, ManageError, Reload, ReloadReport};
use weft_uapi::{Control, ControlError};
use zeroize::Zeroizing;

use super::supervisor::{Inbox, Message};
use crate::control::Managed;
use crate::control::socket::Manage;
use crate::recording::Recording;

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
        // Does not wait for room, because the control thread may wait for the command that asked for the change.
        let _full = self.inbox.try_send(Message::Configured);
        Ok(())
    }
}

/// The interface for its control socket.
pub(super) struct Managing {
    managed: Arc<Managed>,
    inbox: Inbox,
}

impl Managing {
    pub(super) fn new(managed: Arc<Managed>, inbox: Inbox) -> Self {
        Self { managed, inbox }
    }
}

impl Manage for Managing {
    fn status(&self) -> Result<StatusReport, ManageError> {
        self.managed.status()
    }

    fn reload(&self, reload: &Reload) -> Result<ReloadReport, ManageError> {
        let reload = Reload {
            text: Zeroizing::new(reload.text.to_string()),
            file: reload.file.clone(),
            dry_run: reload.dry_run,
        };
        let (answer, answered) = mpsc::sync_channel(1);
        self.inbox.send(Message::Reload(reload, answer)).map_err(|_| ManageError::Ended)?;
        answered.recv().map_err(|_| ManageError::Ended)?
    }

    fn capture(&self, request: &CaptureRequest) -> Result<Recording, ManageError> {
        self.managed.capture(request)
    }

    fn stop(&self) {
        self.managed.stop();
    }
}

#[cfg(test)]
mod tests {
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
