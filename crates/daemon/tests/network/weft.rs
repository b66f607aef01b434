//! Two interfaces that know each other, and a control thread for each that follows the network.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use weft::up::{Daemon, Options};
use weft_config as config;
use weft_config::TunThreads;
use weft_dataplane::Snapshot;
use weft_host::network::{NetworkChange, Watch};
use weft_lab::routed::Routed;
use weft_lab::{Namespace, here, wait_until_ok};
use weft_tunnel::{PeerSnapshot, PrivateKey};

use crate::conversation::{Conversation, MIB};

pub(crate) const PORT: u16 = 51820;
pub(crate) const CLIENT: u8 = 1;
pub(crate) const SERVER: u8 = 2;

/// The inner IPv4 address of an end, or of no peer.
pub(crate) fn inner_v4(number: u8) -> IpAddr {
    IpAddr::from([10, 77, 0, number])
}

/// The inner IPv6 address of an end, or of no peer.
pub(crate) fn inner_v6(number: u8) -> IpAddr {
    IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, number.into()])
}

/// Both ends up. Only the client knows where the other one is.
pub(crate) struct Pair {
    pub(crate) client: Weft,
    pub(crate) server: Weft,
}

impl Pair {
    /// In these namespaces, the server at this outer address, with this MTU inside or one that weft chooses.
    pub(crate) fn start(
        client: &Namespace,
        server: &Namespace,
        server_at: IpAddr,
        mtu: Option<u16>,
        options: &Options,
    ) -> Self {
        let keys = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let text = |own: u8, other: u8, endpoint: Option<SocketAddr>| {
            let [own_key, other_key] = [own, other].map(|end| &keys[usize::from(end) - 1]);
            let mut text = format!(
                "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\nAddress = {}/24, {}/64\n",
                *own_key.to_base64(),
                inner_v4(own),
                inner_v6(own)
            );
            if let Some(mtu) = mtu {
                writeln!(text, "MTU = {mtu}").unwrap();
            }
            writeln!(text, "[Peer]\nPublicKey = {}", other_key.public_key()).unwrap();
            writeln!(text, "AllowedIPs = {}, {}", inner_v4(other), inner_v6(other)).unwrap();
            if let Some(endpoint) = endpoint {
                writeln!(text, "Endpoint = {endpoint}").unwrap();
            }
            text
        };
        let server_text = text(SERVER, CLIENT, None);
        let client_text = text(CLIENT, SERVER, Some(SocketAddr::new(server_at, PORT)));
        Self {
            server: Weft::start(server, &server_text, options),
            client: Weft::start(client, &client_text, options),
        }
    }
}

/// Client and server with a router between them; `None` where that is not permitted, which is said.
pub(crate) fn routed() -> Option<Routed> {
    here::tun_permitted().then(|| Routed::new(1500).unwrap())
}

/// TCP over IPv4 through the tunnel, which has begun in both directions.
pub(crate) fn talk(client: &Namespace, server: &Namespace) -> Conversation {
    let conversation = Conversation::start((client, inner_v4(CLIENT)), (server, inner_v4(SERVER)));
    conversation.wait_for_more(MIB);
    conversation
}

/// Driven by the packet thread alone: the tests are not about TUN threads.
pub(crate) fn options() -> Options {
    Options { tun_threads: TunThreads::Fixed(0), ..Options::default() }
}

/// A running interface `weft0` with one peer. It goes down when it is dropped.
pub(crate) struct Weft {
    daemon: Arc<Mutex<Daemon>>,
    // It ends the control thread, which is why it goes first.
    watch: Option<Watch>,
    end: Sender<Option<NetworkChange>>,
    control: Option<JoinHandle<std::io::Result<()>>>,
}

impl Weft {
    fn start(namespace: &Namespace, text: &str, options: &Options) -> Self {
        let config = config::parse(text, Path::new("weft0.conf"), "weft0".parse().unwrap()).unwrap().config;
        let endpoints = config.endpoint_addresses();
        let (end, changes) = channel();
        let changed = end.clone();
        let (daemon, watch) = namespace.run(|| {
            // The device of one before is gone once no child of another test has its descriptors any more.
            let daemon = wait_until_ok(|| {
                Daemon::start(&config, &endpoints, options, || ()).map_err(|error| error.to_string())
            });
            let watch = daemon.watch_network(move |change| {
                let _ = changed.send(Some(change));
            });
            (Arc::new(Mutex::new(daemon)), watch.unwrap())
        });
        let controlled = Arc::clone(&daemon);
        let control = namespace.spawn("control", move || {
            while let Ok(Some(change)) = changes.recv() {
                let mut daemon = controlled.lock().unwrap_or_else(PoisonError::into_inner);
                daemon.network_changed(&change).unwrap();
            }
        });
        Self { daemon, watch: Some(watch), end, control: Some(control.unwrap()) }
    }

    /// Tells its control thread of a change that cannot be made here.
    pub(crate) fn tell(&self, change: NetworkChange) {
        self.end.send(Some(change)).unwrap();
    }

    /// Reacts to a change of the network. Call it in its namespace.
    pub(crate) fn react(&self, change: &NetworkChange) {
        self.daemon().network_changed(change).unwrap();
    }

    fn daemon(&self) -> MutexGuard<'_, Daemon> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.daemon().snapshot().unwrap()
    }

    /// What it knows of the other end.
    pub(crate) fn peer(&self) -> PeerSnapshot {
        self.snapshot().peers.remove(0)
    }

    pub(crate) fn handshakes(&self) -> u64 {
        self.snapshot().tunnel.handshakes
    }
}

impl Drop for Weft {
    fn drop(&mut self) {
        drop(self.watch.take());
        let _ = self.end.send(None);
        if let Some(Ok(Err(error))) = self.control.take().map(JoinHandle::join) {
            eprintln!("the control thread: {error}");
        }
    }
}
