//! Peers that end at their time: `# weft: Expires`.

use std::time::{Duration, Instant, SystemTime};

use weft_config::device::{DeviceChange, PeerChange};
use weft_config::{Config, Expiry};
use weft_host::network::NetworkChange;
use weft_tunnel::PublicKey;
use weft_uapi::Control as _;

use super::Supervisor;
use crate::up::daemon::known;
use crate::up::reload::current;

/// The longest wait for a moment: where no change of the clock is reported, it is looked at as often.
const LONGEST: Duration = Duration::from_secs(3600);

impl Supervisor {
    /// Ends the peers that have reached their time by the wall clock. Returns when to look again; `None` if
    /// no peer has such a time.
    pub(super) fn look_after_expiry(&mut self) -> Option<Instant> {
        self.config.peers.iter().find(|peer| peer.report.expires.is_some())?;
        let now = SystemTime::now();
        let ended = self.config.end_peers(now);
        if !ended.is_empty() {
            self.end_peers(&ended);
        }
        let next = next_expiry(&self.config)?.until(now);
        // The wall clock may be slower than the other one by then: a look too early is followed by another.
        Some(Instant::now() + next.clamp(Duration::from_millis(100), LONGEST))
    }

    /// Takes peers out of the tunnel that the configuration does not have any more, and the system around it.
    /// What was set at run time stays.
    fn end_peers(&mut self, ended: &[PublicKey]) {
        for peer in ended {
            let file = &self.config.expired;
            let name = file.iter().find(|file| file.public_key == *peer);
            let name = name.and_then(|peer| peer.report.friendly_name.as_deref()).unwrap_or_default();
            tracing::warn!(%peer, name, "the peer has ended, as the file says, and is not let in any more");
        }
        let removal = |peer: &PublicKey| PeerChange { remove: true, ..PeerChange::new(*peer) };
        let peers = ended.iter().map(removal).collect();
        // Before the routes: no packet of the peer gets in from here on.
        if let Err(error) = self.controller.apply(&DeviceChange { peers, ..DeviceChange::default() }) {
            // Packets have stopped: the message that ends the daemon follows.
            tracing::debug!(%error, "cannot end a peer");
            return;
        }
        let Ok(state) = self.controller.get() else { return };
        let endpoints = known(&current(&self.config, &state));
        if let Some(Err(error)) = self.daemon.host_mut().map(|host| host.reload(&self.config, &endpoints)) {
            tracing::warn!(
                "what the system has for a peer that has ended stays until the next reload: {error}"
            );
        }
        if let Err(error) = self.daemon.keep_in_step(&self.config) {
            tracing::debug!(%error, "cannot follow the network");
        }
        self.remember();
        self.show();
        let endpoints = self.endpoints().unwrap_or_default();
        self.watch_names(&[], |_, key| endpoints.get(key).copied());
        if let Some(leaving) = &self.leaving {
            leaving.loaded(self.base());
        }
        self.react(&NetworkChange { device_changed: true, ..NetworkChange::default() });
    }
}

fn next_expiry(config: &Config) -> Option<Expiry> {
    config.peers.iter().filter_map(|peer| peer.report.expires).min()
}
