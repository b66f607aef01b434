//! An interface over a TUN that the program owns, driven by a thread of the program.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Runtime;
use weft_config::settings::InterfaceSettingsChange;
use weft_control::{Controller, Handle};
use weft_dataplane::DataplaneError;
use weft_tun::TunConfig;
use weft_tunnel::{PrivateKey, REJECT_AFTER_TIME, Tunnel, TunnelConfig};
use weft_uapi::Control as _;
use weft_udp::{Udp as _, UdpConfig, UdpSockets};
use zeroize::Zeroizing;

use crate::{Error, text};

/// The lowest memory limit, in bytes. Buffers of received datagrams take 6 MiB at least, those of the TUN and
/// of sending 2 MiB, packets without a session another 2 MiB.
pub const MIN_MEMORY_LIMIT: u64 = 16 << 20;
/// WireGuard's usual MTU: 1500 bytes less its overhead over IPv6.
const DEFAULT_MTU: u16 = 1420;

/// Keeps a UDP socket out of the tunnel, as Android's `VpnService.protect` does. Returns whether that was
/// done. It is called before anything is sent through the socket; while the interface runs, on its thread.
pub type Protect = Box<dyn Fn(BorrowedFd<'_>) -> bool + Send + Sync>;

/// How to open an interface.
#[derive(Default)]
pub struct Options {
    /// The MTU of the TUN; 1420 if it is 0.
    pub mtu: u16,
    /// Bytes that the process may use: the buffers take a share of it.
    pub memory_limit: Option<u64>,
    /// Receives each UDP socket.
    pub protect: Option<Protect>,
}

/// An interface, for any number of threads. Dropping it closes everything.
pub struct Interface {
    state: Mutex<State>,
    handle: Handle,
    controller: Controller,
    /// Duplicates of the sockets, to be protected.
    sockets: Arc<Mutex<Vec<OwnedFd>>>,
    /// The port that the program asked for; 0 for any.
    port: Mutex<u16>,
}

enum State {
    Open(Box<Ready>),
    Running,
    Ended,
}

/// What runs, and its runtime.
struct Ready {
    event_loop: Pin<Box<dyn Future<Output = Result<(), DataplaneError>> + Send>>,
    runtime: Runtime,
}

impl Interface {
    /// Opens an interface from a request of the UAPI over a duplicate of `tun`. Nothing is sent before
    /// [`Self::run`].
    ///
    /// # Errors
    /// The text, the descriptor or an option is not valid, or the system refuses the sockets.
    pub fn open(text: &str, tun: RawFd, options: Options) -> Result<Self, Error> {
        let change = text::parse(text)?;
        if let Some(limit) = options.memory_limit.filter(|limit| *limit < MIN_MEMORY_LIMIT) {
            return Err(Error::MemoryLimit(limit));
        }
        let mtu = if options.mtu == 0 { DEFAULT_MTU } else { options.mtu };
        let system = |error: &dyn std::fmt::Display| Error::System(error.to_string());
        let tun = open_tun(tun)?;
        let runtime = weft_dataplane::runtime().map_err(|error| system(&error))?;
        let udp = UdpConfig {
            port: change.settings.listen_port.unwrap_or_default(),
            fwmark: change.settings.fw_mark.unwrap_or_default(),
            receive_buffer_bytes: weft_udp::receive_buffer_bytes(options.memory_limit, 1),
            ..UdpConfig::default()
        };
        let inside = runtime.enter();
        let udp = UdpSockets::bind(&udp).map_err(|error| system(&error))?;
        let own = udp.descriptors().map_err(|error| system(&error))?;
        if let Some(protect) = &options.protect
            && let Some(refused) = own.iter().find(|socket| !protect(socket.as_fd()))
        {
            return Err(Error::Unprotected(refused.as_raw_fd()));
        }
        let (handle, commands) = Handle::new();
        let stats = Arc::clone(tun.stats());
        let controller =
            Controller::new(handle.clone(), udp.port(), change.settings.fw_mark.unwrap_or_default());
        let sockets = Arc::new(Mutex::new(own));
        let config = TunnelConfig { mtu, staging_bytes: weft_dataplane::staging_bytes(options.memory_limit) };
        // No peer knows this random key: it is that of an interface without a key.
        let key = PrivateKey::generate().map_err(|error| system(&error))?;
        let mut event_loop = weft_dataplane::event_loop(Tunnel::new(key, config), tun, stats, udp, commands);
        event_loop.configure(controller.configure(&change));
        let (shared, protect) = (Arc::clone(&sockets), options.protect);
        event_loop.report_sockets(Box::new(move |opened| {
            let opened = opened.unwrap_or_else(|error| {
                tracing::error!("new UDP sockets are not protected: {error}");
                Vec::new()
            });
            for socket in &opened {
                if protect.as_ref().is_some_and(|protect| !protect(socket.as_fd())) {
                    tracing::error!("{}", Error::Unprotected(socket.as_raw_fd()));
                }
            }
            *lock(&shared) = opened;
        }));
        drop(inside);
        Ok(Self {
            state: Mutex::new(State::Open(Box::new(Ready {
                event_loop: Box::pin(event_loop.run()),
                runtime,
            }))),
            handle,
            controller,
            sockets,
            port: Mutex::new(change.settings.listen_port.unwrap_or_default()),
        })
    }

    /// Calls `with` with the descriptors of the UDP sockets, which stay open for the call.
    ///
    /// # Errors
    /// The interface has ended.
    pub fn sockets<T>(&self, with: impl FnOnce(&[OwnedFd]) -> T) -> Result<T, Error> {
        match *lock(&self.state) {
            State::Ended => Err(Error::Stopped),
            State::Open(_) | State::Running => Ok(with(&lock(&self.sockets))),
        }
    }

    /// Moves packets on this thread until [`Self::stop`].
    ///
    /// # Errors
    /// The interface runs or has run already, its TUN or its sockets fail, or there is a panic.
    pub fn run(&self) -> Result<(), Error> {
        refuse_callbacks()?;
        let ready = {
            let mut state = lock(&self.state);
            match std::mem::replace(&mut *state, State::Running) {
                State::Open(ready) => ready,
                State::Running => return Err(Error::Running),
                State::Ended => {
                    *state = State::Ended;
                    return Err(Error::Stopped);
                }
            }
        };
        let result = catch_unwind(AssertUnwindSafe(move || {
            let Ready { event_loop, runtime } = *ready;
            runtime.block_on(event_loop)
        }));
        self.close();
        match result {
            Ok(ended) => ended.map_err(Error::from),
            Err(panic) => Err(Error::of_panic(&*panic)),
        }
    }

    /// Changes the interface by a request of the UAPI.
    ///
    /// # Errors
    /// The text is not valid, the system refuses the change, or the interface does not run.
    pub fn set(&self, text: &str) -> Result<(), Error> {
        let change = text::parse(text)?;
        self.expect_running()?;
        let port = change.settings.listen_port;
        self.controller.set(change)?;
        if let Some(port) = port {
            *lock(&self.port) = port;
        }
        Ok(())
    }

    /// Returns the state as the lines of a UAPI answer, with its keys.
    ///
    /// # Errors
    /// The interface does not run.
    pub fn get(&self) -> Result<Zeroizing<Vec<u8>>, Error> {
        self.expect_running()?;
        text::format(self.controller.get()?)
    }

    /// Opens new sockets, and sends each peer with a session a keepalive and a handshake.
    ///
    /// # Errors
    /// The system refuses new sockets, or the interface does not run.
    pub fn network_changed(&self) -> Result<(), Error> {
        self.expect_running()?;
        // Held until the end, so that calls at once do not take each other's port.
        let port = lock(&self.port);
        let rebind = |port| {
            let change = InterfaceSettingsChange { listen_port: Some(port), ..Default::default() };
            self.controller.set(change.into())
        };
        // The sockets are new only on another port; then the one that was asked for is free.
        rebind(0)?;
        if *port != 0 {
            rebind(*port)?;
        }
        let peers: Vec<_> = self.controller.get()?.peers.iter().map(|peer| peer.public_key).collect();
        self.controller.paths_changed(peers.clone())?;
        // After a sleep as long as a session, peers are asked whether they are there still.
        Ok(self.controller.resumed(peers, REJECT_AFTER_TIME)?)
    }

    /// Ends the interface. [`Self::run`] returns soon.
    ///
    /// # Errors
    /// The call comes from a callback.
    pub fn stop(&self) -> Result<(), Error> {
        refuse_callbacks()?;
        self.close();
        Ok(())
    }

    /// Ends the interface, on any thread.
    fn close(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Ended);
        lock(&self.sockets).clear();
        match before {
            State::Open(ready) => drop(ready),
            // The queue of commands is closed if the loop has ended.
            State::Running => self.handle.stop(),
            State::Ended => {}
        }
    }

    fn expect_running(&self) -> Result<(), Error> {
        refuse_callbacks()?;
        match *lock(&self.state) {
            State::Open(_) => Err(Error::NotRunning),
            State::Running => Ok(()),
            State::Ended => Err(Error::Stopped),
        }
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.close();
    }
}

/// A thread inside a runtime must not wait for the event loop, which may be its own.
pub(crate) fn refuse_callbacks() -> Result<(), Error> {
    if tokio::runtime::Handle::try_current().is_ok() { Err(Error::Callback) } else { Ok(()) }
}

fn open_tun(descriptor: RawFd) -> Result<weft_tun::Device, Error> {
    let closed = |error: std::io::Error| Error::Closed { descriptor, reason: error.to_string() };
    if descriptor < 0 {
        return Err(closed(std::io::Error::from_raw_os_error(libc::EBADF)));
    }
    // SAFETY: the call takes a number, and fails if it is not that of an open descriptor.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(closed(std::io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just created this descriptor for this call, and nothing else owns it.
    let copy = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(copy) };
    let refused = |reason: String| Error::NoTun { descriptor, reason };
    let name = weft_tun::name_of_queue(&copy).map_err(|error| refused(error.to_string()))?;
    let config = TunConfig { descriptors: vec![copy], ..TunConfig::new(name) };
    weft_tun::open(config).map_err(|error| match error {
        weft_tun::OpenError::Descriptor { reason, .. } => refused(format!("it {reason}")),
        error => Error::System(error.to_string()),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the interface, and leaves nothing half changed that is used afterwards.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
