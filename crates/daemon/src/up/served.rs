//! What the sockets of an interface call: the controller directly, the control thread for everything else.

use std::sync::{Arc, mpsc};

use weft_config::device::{DeviceChange, DeviceState};
use weft_report::StatusReport;
use weft_report::control_socket::{CaptureRequest, ManageError, Reload, ReloadReport};
use weft_uapi::{Control, ControlError};
use zeroize::Zeroizing;

use super::supervisor::{Inbox, Message};
use crate::control::socket::Manage;
use crate::control::{Controller, Managed};
use crate::recording::Recording;

/// The controller for UAPI, which reports each change to the control thread.
pub(super) struct Announced {
    controller: Arc<Controller>,
    inbox: Inbox,
}

impl Announced {
    pub(super) fn new(controller: Arc<Controller>, inbox: Inbox) -> Self {
        Self { controller, inbox }
    }
}

impl Control for Announced {
    fn get(&self) -> Result<DeviceState, ControlError> {
        self.controller.get()
    }

    fn set(&self, change: DeviceChange) -> Result<(), ControlError> {
        self.controller.set(change)?;
        // Waits for room: without the message nothing watches the paths to new peers. It fails only at the end.
        let _ended = self.inbox.send(Message::Configured);
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
