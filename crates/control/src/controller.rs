//! The configuration of a running interface, and its state.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use weft_config::device::{DeviceChange, DeviceState, PeerState};
use weft_config::settings::{InterfaceSettings, InterfaceSettingsChange};
use weft_dataplane::Snapshot;
use weft_dataplane::capture::{Capture, CaptureFilter};
use weft_tunnel::{Change, PeerConfig, PeerSnapshot, PublicKey, Remembered};
use weft_uapi::{Control, ControlError};
use weft_udp::{self as udp, BindError};

use crate::{Ended, Handle, Model};

/// Changes a running interface and reports its state. Changes are applied one at a time; packets continue
/// meanwhile.
pub struct Controller {
    dataplane: Handle,
    model: Mutex<Model>,
    after_rebind: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The configuration of an interface, which may change at run time.
#[derive(Clone, Debug)]
pub struct Configured<'a> {
    pub settings: &'a InterfaceSettings,
    /// The peers, in the order in which they are shown.
    pub peers: Vec<&'a PeerConfig>,
}

impl Controller {
    /// Creates a controller for a packet thread that runs without peers, with this port and mark.
    pub fn new(dataplane: Handle, listen_port: u16, fw_mark: u32) -> Self {
        let model = Mutex::new(Model::new(listen_port, fw_mark));
        Self { dataplane, model, after_rebind: OnceLock::new() }
    }

    /// Configures a tunnel that does not run yet. Returns the changes for it; port and mark are not among
    /// them.
    pub fn configure(&self, change: &DeviceChange) -> Vec<Change> {
        self.lock().change(change)
    }

    /// Has `call` run after each change of the port, before the change returns: copies of the old sockets
    /// must be closed, or they keep the old port. Only the first call of this function counts.
    pub fn after_rebind(&self, call: impl Fn() + Send + Sync + 'static) {
        let _is_set = self.after_rebind.set(Box::new(call));
    }

    pub fn listen_port(&self) -> u16 {
        self.lock().settings().listen_port
    }

    /// Returns every counter, and every peer of the tunnel.
    pub fn snapshot(&self) -> Result<Snapshot, Ended> {
        let peers = self.lock().peer_count();
        self.dataplane.snapshot(peers)
    }

    /// Returns the mark of outgoing packets; 0 means none.
    pub fn fw_mark(&self) -> u32 {
        self.lock().settings().fw_mark
    }

    /// Changes the MTU in bytes, beyond which inner packets are not padded.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), ControlError> {
        Ok(self.dataplane.change(vec![Change::Mtu(mtu)])?)
    }

    /// Reports to the tunnel that the paths to these peers changed.
    pub fn paths_changed(&self, peers: Vec<PublicKey>) -> Result<(), ControlError> {
        Ok(self.dataplane.change(peers.into_iter().map(Change::PathChanged).collect())?)
    }

    /// Configures tunnels that do not run yet, with what a previous process knew of the peers, and the
    /// endpoints that clients of UAPI set. Returns the changes for each event loop; port and mark are not
    /// among them.
    pub fn resume(
        &self,
        change: &DeviceChange,
        remembered: Vec<(PublicKey, Remembered)>,
        set_endpoints: &[(PublicKey, SocketAddr)],
    ) -> Vec<Vec<Change>> {
        let restore = |(peer, remembered)| Change::Restore { peer, remembered };
        let mut changes = self.configure(change);
        for (peer, endpoint) in set_endpoints {
            self.lock().record_set_endpoint(*peer, *endpoint);
        }
        changes.extend(remembered.into_iter().map(restore));
        self.dataplane.configure(changes)
    }

    /// Returns duplicates of the descriptors of the UDP sockets, to be kept open after this process ends.
    pub fn sockets(&self) -> Result<Vec<udp::Descriptor>, ControlError> {
        self.dataplane.sockets()?.map_err(|error| ControlError::Refused(error.to_string()))
    }

    /// Reports to the tunnel that this machine slept, and that these peers may not know that it is back.
    pub fn resumed(&self, peers: Vec<PublicKey>, slept: Duration) -> Result<(), ControlError> {
        let change = |peer| Change::Resumed { peer, slept };
        Ok(self.dataplane.change(peers.into_iter().map(change).collect())?)
    }

    /// Renews all sessions after the wall clock was set forward, so that handshakes are stamped with its
    /// present time.
    pub fn clock_set_forward(&self) -> Result<(), ControlError> {
        let model = self.lock();
        let changes = model.renew_sessions();
        Ok(self.dataplane.change(changes)?)
    }

    /// Moves a peer to a packet thread now, as [`Handle::move_peer`].
    pub fn move_peer(&self, peer: PublicKey, packet_thread: u16) -> Result<bool, Ended> {
        self.dataplane.move_peer(peer, packet_thread)
    }

    /// Begins a capture. Returns `None` if too many captures are running.
    pub fn capture(&self, filter: CaptureFilter) -> Result<Option<Capture>, Ended> {
        self.dataplane.capture(filter)
    }

    /// Returns what `report` makes of the configuration and of the state of the tunnel.
    pub fn observe<T>(
        &self,
        report: impl FnOnce(&Configured<'_>, &Snapshot) -> T,
    ) -> Result<T, ControlError> {
        let model = self.lock();
        let snapshot = self.dataplane.snapshot(model.peer_count())?;
        let configured = Configured { settings: model.settings(), peers: model.peers().collect() };
        Ok(report(&configured, &snapshot))
    }

    /// Applies a change of the configuration, or of the address of a name.
    pub fn apply(&self, change: &DeviceChange) -> Result<(), ControlError> {
        self.change(change, false)
    }

    fn change(&self, change: &DeviceChange, is_of_client: bool) -> Result<(), ControlError> {
        let mut model = self.lock();
        let present = model.settings();
        let InterfaceSettingsChange { listen_port, fw_mark, .. } = change.settings.clone().without(present);
        // Only this part can be refused. It comes first, so that a refusal leaves everything as it was.
        if listen_port.is_some() || fw_mark.is_some() {
            let mark = fw_mark.unwrap_or(present.fw_mark);
            let port = self.dataplane.rebind(listen_port, fw_mark)?.map_err(|error| refused(&error))?;
            model.rebound(port, mark);
        }
        let changes = model.change(change);
        for peer in change.peers.iter().filter(|_| is_of_client) {
            if let Some(endpoint) = peer.endpoint {
                model.record_set_endpoint(peer.public_key, endpoint);
            }
        }
        self.dataplane.change(changes)?;
        // The call asks this controller for its state.
        drop(model);
        if let Some(call) = self.after_rebind.get().filter(|_| listen_port.is_some()) {
            call();
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        // A thread that panics ends the process.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control for Controller {
    fn get(&self) -> Result<DeviceState, ControlError> {
        let model = self.lock();
        let snapshot = self.dataplane.snapshot(model.peer_count())?;
        let (now, wall_clock) = (Instant::now(), SystemTime::now());
        let live: HashMap<PublicKey, PeerSnapshot> =
            snapshot.peers.into_iter().map(|peer| (peer.public_key, peer)).collect();
        let peers = model.peers().map(|peer| {
            let live = live.get(&peer.public_key);
            let last_handshake = live
                .and_then(|live| live.last_handshake)
                .and_then(|at| wall_clock.checked_sub(now.saturating_duration_since(at)));
            let endpoint = live.map_or(peer.endpoint, |live| live.endpoint);
            PeerState {
                public_key: peer.public_key,
                endpoint,
                is_endpoint_set: endpoint.is_some() && endpoint == model.set_endpoint(&peer.public_key),
                allowed_ips: peer.allowed_ips.clone(),
                settings: peer.settings.clone(),
                last_handshake,
                tx_bytes: live.map_or(0, |live| live.sent_bytes),
                rx_bytes: live.map_or(0, |live| live.received_bytes),
            }
        });
        Ok(DeviceState { settings: model.settings().clone(), peers: peers.collect() })
    }

    /// Applies a change by a client of UAPI.
    fn set(&self, change: DeviceChange) -> Result<(), ControlError> {
        self.change(&change, true)
    }
}

impl From<Ended> for ControlError {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}

fn refused(error: &BindError) -> ControlError {
    match error {
        BindError::PortInUse { .. } => ControlError::PortInUse(error.to_string()),
        _ => ControlError::Refused(error.to_string()),
    }
}
