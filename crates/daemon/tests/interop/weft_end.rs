//! weft inside this process.

use std::path::Path;

use weft::up::{Daemon, Options};
use weft_config as config;
use weft_config::TunThreads;
use weft_dataplane::Snapshot;
use weft_lab::{Namespace, wait_until_ok};
use weft_tunnel::{PeerSnapshot, PublicKey};

use crate::end::End;

/// A running interface `weft0`. It goes down when it is dropped.
pub(crate) struct Weft {
    daemon: Daemon,
}

impl Weft {
    /// Comes up in a namespace, driven by the runtime alone.
    pub(crate) fn start(namespace: &Namespace, end: &End) -> Self {
        Self::start_with_threads(namespace, end, 0)
    }

    pub(crate) fn start_with_threads(namespace: &Namespace, end: &End, tun_threads: u16) -> Self {
        let name = "weft0".parse().unwrap();
        let config = config::parse(&end.wg_quick_text(), Path::new("weft0.conf"), name).unwrap().config;
        let endpoints = config.endpoint_addresses();
        let options = Options { tun_threads: TunThreads::Fixed(tun_threads), ..Options::default() };
        // The device and the port of one that was stopped may stay a moment: a child that another test has
        // just forked has them until it has executed its program.
        let daemon = wait_until_ok(|| {
            namespace
                .run(|| Daemon::start(&config, &endpoints, &options, || ()))
                .map_err(|error| error.to_string())
        });
        Self { daemon }
    }

    pub(crate) fn stop(self) {
        self.daemon.stop().unwrap();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.daemon.snapshot().unwrap()
    }

    pub(crate) fn peer(&self, key: &PublicKey) -> PeerSnapshot {
        self.snapshot().peers.into_iter().find(|peer| peer.public_key == *key).unwrap()
    }
}
