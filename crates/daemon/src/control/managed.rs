//! The requests that a running interface serves on its control socket.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weft_config::InterfaceName;
use weft_control::Controller;
use weft_dataplane::capture::{CaptureFilter, Layer};
use weft_host::command_under_way;
use weft_report::control_socket::{self, CaptureRequest, Client, ManageError, Reload, ReloadReport};
use weft_report::finding::{Finding, Level};
use weft_report::{StatusReport, find_peer};
use weft_tunnel::PublicKey;
use weft_uapi::Control as _;

use super::socket::{Manage, Server};
use crate::recording::Recording;
use crate::status::Running;

/// A running interface, as seen through its control socket.
pub struct Managed {
    controller: Arc<Controller>,
    running: Mutex<Running>,
    stop: Box<dyn Fn(Phase) + Send + Sync>,
    reload: Option<Box<OnReload>>,
    /// Called when another program has removed the socket or a file beside it.
    on_removed: OnceLock<Box<dyn Fn() + Send + Sync>>,
    phase: Mutex<Phase>,
    /// Whether wg-quick has brought the interface up, and has set the host up for it.
    is_of_wg_quick: AtomicBool,
}

/// What the control thread of an interface is at. It runs the commands of the configuration at the start and
/// at the end, and handles no message meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Starting,
    Running,
    Ending,
}

impl Phase {
    /// Returns the name of the finding that tells of it.
    fn check(self) -> &'static str {
        match self {
            Self::Starting => weft_report::STARTING,
            Self::Running => "running",
            Self::Ending => "ending",
        }
    }
}

/// Loads a configuration and waits for the result.
type OnReload = dyn Fn(&Reload) -> Result<ReloadReport, ManageError> + Send + Sync;

impl Managed {
    /// Creates the view of an interface. `stop` must ask the interface to end, and return at once; it gets
    /// what the control thread is at. `reload`
    /// may wait; `None` if the interface has no file.
    pub fn new(
        controller: Arc<Controller>,
        running: Running,
        stop: impl Fn(Phase) + Send + Sync + 'static,
        reload: Option<Box<OnReload>>,
    ) -> Arc<Self> {
        let (running, phase) = (Mutex::new(running), Mutex::new(Phase::Running));
        let (is_of_wg_quick, on_removed) = (AtomicBool::new(false), OnceLock::new());
        Arc::new(Self {
            controller,
            running,
            stop: Box::new(stop),
            reload,
            on_removed,
            phase,
            is_of_wg_quick,
        })
    }

    /// Has this called, which must return at once, when another program has removed the socket or a file
    /// beside it. To be set before the socket is served.
    pub fn when_removed(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _once = self.on_removed.set(Box::new(tell));
    }

    /// Refuses to end the interface: wg-quick undoes its routes, rules and name servers, and nothing else
    /// does.
    pub fn leave_the_end_to_wg_quick(&self) {
        self.is_of_wg_quick.store(true, Ordering::Relaxed);
    }

    /// Notes what the control thread is at; at first [`Phase::Running`].
    pub fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> Phase {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state outside the tunnel, which the caller has to keep up to date.
    pub fn running(&self) -> MutexGuard<'_, Running> {
        // A thread that panics ends the process.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the control socket. A failure is only logged: the interface works without the socket.
    pub fn serve(self: &Arc<Self>, name: &InterfaceName) -> Option<Server> {
        self.serve_at(&Client::path_of(name))
    }

    /// Opens the control socket at this path, as [`Self::serve`] does.
    pub fn serve_at(self: &Arc<Self>, path: &Path) -> Option<Server> {
        match Server::start(path, Arc::clone(self) as Arc<dyn Manage>) {
            Ok(server) => Some(server),
            Err(error) => {
                tracing::warn!("`weft status` and the like cannot ask this interface: {error}");
                None
            }
        }
    }

    /// Opens a control socket again that another program has removed. Returns whether it is there.
    pub fn keep_served(self: &Arc<Self>, socket: &mut Option<Server>) -> bool {
        let path = socket.as_ref().map(|socket| socket.path().to_owned());
        let Some(path) = path.filter(|path| !path.exists()) else { return true };
        let Some(again) = self.serve_at(&path) else { return false };
        tracing::warn!("another program had removed {}, which was made again", path.display());
        *socket = Some(again);
        true
    }
}

/// Limits of the bytes to keep of a packet: fewer are of no use, and no packet has more.
const SNAP_BYTES: std::ops::RangeInclusive<u32> = 64..=65_535;

impl Managed {
    /// Returns the peer with this key or name.
    fn peer(&self, wanted: &str) -> Result<PublicKey, ManageError> {
        let peers = self.controller.get().map_err(|_| ManageError::Ended)?.peers;
        let running = self.running();
        let named: Vec<_> = peers
            .iter()
            .map(|peer| (peer.public_key.to_string(), running.friendly_name(&peer.public_key)))
            .collect();
        let found = find_peer(&running.interface, wanted, &named, "weft status");
        found.map(|index| peers[index].public_key).map_err(|error| ManageError::Failed(error.to_string()))
    }
}

/// Returns the finding that the interface is not up yet, or not any more, with the command that it waits for.
fn waiting(phase: Phase) -> Option<Finding> {
    let doing = match phase {
        Phase::Starting => "it is being brought up",
        Phase::Running => return None,
        Phase::Ending => "it is being taken down",
    };
    let Some(command) = command_under_way() else {
        return Some(Finding::new(phase.check(), Level::Note, doing));
    };
    let finding = Finding::new(phase.check(), Level::Warning, format!("{doing}: {command}"));
    Some(finding.advise("if the command hangs, end its process"))
}

impl Manage for Managed {
    fn status(&self) -> Result<StatusReport, ManageError> {
        let mut running = self.running().clone();
        let phase = self.phase();
        let interface = running.interface.clone();
        running.findings.extend(waiting(phase));
        self.controller.observe(|configured, snapshot| running.report(configured, snapshot)).map_err(|_| {
            // PostDown runs when nothing else is left.
            match command_under_way() {
                Some(command) if phase == Phase::Ending => {
                    ManageError::Failed(format!("{interface} is being taken down: {command}"))
                }
                _ => ManageError::Ended,
            }
        })
    }

    fn reload(&self, reload: &Reload) -> Result<ReloadReport, ManageError> {
        let load = self.reload.as_ref().ok_or_else(|| {
            ManageError::Failed(
                "this interface is not run from a configuration file: use `wg syncconf`".to_owned(),
            )
        })?;
        let interface = self.running().interface.clone();
        match self.phase() {
            // A command that waits for its answer would wait for ever. For others the answer comes when the
            // start has ended.
            Phase::Starting if reload.within_command => Err(ManageError::Failed(format!(
                "{interface} is not up yet: it can be reloaded when the commands of PreUp and PostUp have ended"
            ))),
            Phase::Ending => Err(ManageError::Failed(format!(
                "{interface} is being taken down, and cannot be reloaded any more"
            ))),
            Phase::Starting | Phase::Running => load(reload),
        }
    }

    fn capture(&self, request: &CaptureRequest) -> Result<Recording, ManageError> {
        let peer = request.peer.as_deref().map(|peer| self.peer(peer)).transpose()?;
        let layer = request.layer.map(|layer| match layer {
            control_socket::Layer::Inner => Layer::Inner,
            control_socket::Layer::Outer => Layer::Outer,
        });
        let snap_bytes = request.snap_bytes.unwrap_or(*SNAP_BYTES.end());
        let snap_bytes = snap_bytes.clamp(*SNAP_BYTES.start(), *SNAP_BYTES.end()) as usize;
        let capture = self.controller.capture(CaptureFilter { layer, peer, snap_bytes });
        let capture = capture.map_err(|_| ManageError::Ended)?.ok_or_else(|| {
            ManageError::Failed("too many captures are running already; end one of them".to_owned())
        })?;
        let running = self.running();
        let name = |key: &PublicKey| Some((*key, running.friendly_name(key)?.to_owned()));
        let names = running.file.keys().filter_map(name).collect();
        Ok(Recording::new(capture, &running.interface, layer, snap_bytes, names))
    }

    fn check_stop(&self, within_command: bool) -> Result<(), ManageError> {
        if self.is_of_wg_quick.load(Ordering::Relaxed) {
            return Err(ManageError::Failed(format!(
                "wg-quick has brought {0} up: `wg-quick down {0}` takes it down with its routes, rules and name servers",
                self.running().interface
            )));
        }
        if !within_command || self.phase() == Phase::Running {
            return Ok(());
        }
        Err(ManageError::Failed(format!(
            "a command of {0} cannot take {0} down, because the end waits for the command: a PreUp or PostUp that fails \
             ends the start, and PreDown and PostDown run at the end anyway",
            self.running().interface
        )))
    }

    fn tell_of_removed(&self) {
        if let Some(tell) = self.on_removed.get() {
            tell();
        }
    }

    fn stop(&self) {
        (self.stop)(self.phase());
    }
}
