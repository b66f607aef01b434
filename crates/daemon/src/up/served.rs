//! The servers of an interface: UAPI, the control socket, and metrics. They answer while the commands of the
//! configuration run, which ask the interface as wg-quick's commands do: they are opened before PreUp, and
//! closed after PreDown.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use weft_config::device::{DeviceChange, DeviceState};
use weft_config::{Config, InterfaceName};
use weft_control::Controller;
use weft_report::control_socket::{ManageError, Reload};
use weft_uapi::{self as uapi, Control, ControlError};
use zeroize::Zeroizing;

use super::in_force;
use super::interruption::Interruption;
use super::message::{Inbox, Message};
use super::{Options, UpError};
use crate::control::{Managed, Phase, socket};
use crate::interface::Interface;
use crate::metrics;
use crate::status::Running;

/// The servers of an interface.
pub(super) struct Served {
    pub(super) managed: Arc<Managed>,
    pub(super) uapi: Option<uapi::Server>,
    pub(super) metrics: Option<metrics::Server>,
    pub(super) socket: Option<socket::Server>,
}

impl Served {
    /// Opens the control socket at this path, or none, and serves metrics on the listener. UAPI is not
    /// served.
    ///
    /// # Errors
    /// Metrics cannot be served. A control socket that cannot be opened is only logged.
    pub(super) fn open(
        interface: &Interface,
        config: &Config,
        options: &Options,
        inbox: &Inbox,
        interruption: &Interruption,
        socket: Option<PathBuf>,
        metrics: Option<metrics::Listener>,
    ) -> Result<Self, UpError> {
        let running = Running {
            tun_threads: options.tun_queues().with_threads(),
            tun_offload: interface.opened().offload,
            file: in_force::peers_of(config),
            ..Running::new(config.interface.name.as_str())
        };
        let (to_stop, to_load) = (inbox.clone(), inbox.clone());
        let interruption = interruption.clone();
        let stop = move |phase| {
            if phase == Phase::Starting {
                interruption.interrupt();
            }
            drop(to_stop.send(Message::Stop));
        };
        let reload = move |reload: &Reload| {
            let reload = Reload {
                text: Zeroizing::new(reload.text.to_string()),
                file: reload.file.clone(),
                dry_run: reload.dry_run,
                within_command: reload.within_command,
                is_saved: reload.is_saved,
            };
            let (answer, answered) = mpsc::sync_channel(1);
            to_load.send(Message::Reload(reload, answer)).map_err(|_| ManageError::Ended)?;
            answered.recv().map_err(|_| ManageError::Ended)?
        };
        let managed = Managed::new(Arc::clone(interface.controller()), running, stop, Some(Box::new(reload)));
        let removed = inbox.clone();
        // Without room, the control thread is told by the next removal.
        managed.when_removed(move || drop(removed.try_send(Message::Removed)));
        managed.enter(Phase::Starting);
        let hosts = &config.interface.host.metrics.hosts;
        let serve = |listener| metrics::serve(listener, hosts, Arc::<Managed>::clone(&managed));
        let metrics = metrics.map(serve).transpose()?;
        let socket = socket.and_then(|path| managed.serve_at(&path));
        Ok(Self { managed, uapi: None, metrics, socket })
    }

    /// Serves UAPI. A failure is only logged.
    pub(super) fn serve_uapi(
        &mut self,
        name: &InterfaceName,
        controller: &Arc<Controller>,
        inbox: &Inbox,
        is_configured: &Arc<AtomicBool>,
    ) {
        let controller: Arc<dyn Control> = controller.clone();
        let control = Arc::new(Announced::new(controller, inbox.clone(), Arc::clone(is_configured)));
        let removed = inbox.clone();
        let on_gone = move || drop(removed.send(Message::SocketRemoved));
        let server = uapi::Listener::open(name).map_err(|error| error.to_string()).and_then(|listener| {
            uapi::Server::start(listener, control, on_gone).map_err(|error| error.to_string())
        });
        self.uapi =
            server.inspect_err(|error| tracing::warn!("wg(8) cannot ask this interface: {error}")).ok();
    }
}

/// The controller for UAPI, which reports each change to the control thread.
struct Announced {
    controller: Arc<dyn Control>,
    inbox: Inbox,
    is_configured: Arc<AtomicBool>,
}

impl Announced {
    /// `is_configured` becomes true with each change.
    fn new(controller: Arc<dyn Control>, inbox: Inbox, is_configured: Arc<AtomicBool>) -> Self {
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
