//! What a running interface answers on its control socket.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Controller;
use super::socket::{Client, Manage, ManageError, Server};
use crate::config::InterfaceName;
use crate::status::{Running, StatusReport};

/// A running interface, as its control socket shows it.
pub struct Managed {
    controller: Arc<Controller>,
    running: Mutex<Running>,
    stop: Box<dyn Fn() + Send + Sync>,
}

impl Managed {
    /// The interface of this controller. `stop` asks it to end, and returns at once.
    pub fn new(
        controller: Arc<Controller>,
        running: Running,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { controller, running: Mutex::new(running), stop: Box::new(stop) })
    }

    /// What the tunnel does not know of the interface, to be kept true.
    pub fn running(&self) -> MutexGuard<'_, Running> {
        // A thread that panics ends the process.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the control socket. Without one the interface works all the same, so that is only warned of.
    pub fn serve(self: &Arc<Self>, name: &InterfaceName) -> Option<Server> {
        let path = Client::path_of(name);
        match Server::start(&path, Arc::clone(self) as Arc<dyn Manage>) {
            Ok(server) => Some(server),
            Err(error) => {
                tracing::warn!("no control socket, so `weft status` cannot ask this interface: {error}");
                None
            }
        }
    }
}

impl Manage for Managed {
    fn status(&self) -> Result<StatusReport, ManageError> {
        let running = self.running().clone();
        self.controller.status(&running).map_err(|_| ManageError::Ended)
    }

    fn stop(&self) {
        (self.stop)();
    }
}
