//! The namespaces of a tunnel: a child makes them, and is asked for what has to be done inside.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use nix::unistd::getegid;
use weft_config::exit::Code;
use weft_host::memory;
use weft_host::routes::Netlink;
use weft_tun::DeviceNamespace;

use crate::ask::{Keeper, RootlessError, unexpected};
use crate::channel::Request;
use crate::keeper;
use crate::sysctl;
use crate::veth::FarNamespace;

/// What the device of a tunnel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A TUN.
    Tun,
    /// A veth pair and a packet socket.
    Veth,
}

impl Backing {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Veth => "veth",
        }
    }
}

/// The device of a tunnel in the namespace.
#[derive(Debug)]
pub struct Device {
    /// What it is.
    pub backing: Backing,
    /// Its queues.
    pub queues: Vec<OwnedFd>,
    /// Of a veth pair: what the kernel counts for the far end, [`crate::FAR_END`]; `dev` of proc_pid_net(5),
    /// which is read from the start each time.
    pub far_counters: Option<File>,
}

/// The user and the network namespace of this process. They end with the last process in them; the child ends
/// when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    keeper: Keeper,
    descriptors: Arc<[OwnedFd; 2]>,
}

impl Namespace {
    /// Makes a user and a network namespace. Call it before the first thread is started, and before a key is
    /// read: the child has a copy of this process's memory.
    ///
    /// # Errors
    /// Those of [`RootlessError`]; nothing is left behind.
    pub fn make() -> Result<Self, RootlessError> {
        let (keeper, made) = Keeper::fork(&[], keeper::make_and_serve)?;
        let descriptors = <[OwnedFd; 2]>::try_from(made).map_err(|_| unexpected())?;
        Ok(Self { keeper, descriptors: Arc::new(descriptors) })
    }

    /// Makes a TUN with queues in the namespace. Where there is no TUN driver, or this user may not open it,
    /// a veth pair takes its place, which has one queue. `wanted` allows one kind alone.
    ///
    /// # Errors
    /// Neither is possible.
    pub fn device(
        &self,
        name: &str,
        queues: usize,
        offload: bool,
        wanted: Option<Backing>,
    ) -> Result<Device, RootlessError> {
        if wanted == Some(Backing::Veth) {
            return self.veth(name, offload);
        }
        let tun = match self.keeper.connection().ask(&Request::Tun { name: name.to_owned(), queues }, queues)
        {
            Ok((_, queues)) => return Ok(Device { backing: Backing::Tun, queues, far_counters: None }),
            Err(error @ RootlessError::Inside { errno: libc::ENODEV, .. }) if wanted.is_none() => error,
            Err(error) => return Err(error),
        };
        tracing::info!("a veth pair takes the place of a TUN: {tun}");
        self.veth(name, offload).map_err(|veth| RootlessError::NoDevice {
            is_permission: [&tun, &veth].iter().any(|error| error.exit_code() == Code::Permission),
            tun: tun.to_string(),
            veth: Box::new(veth),
        })
    }

    fn veth(&self, name: &str, offload: bool) -> Result<Device, RootlessError> {
        let far = FarNamespace::new(self.keeper.connection().ask(&Request::FarNamespace, 1)?.1)?;
        let socket = self.keeper.connection().socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        let (queue, counters) =
            far.connect(name, &self.descriptors[1], &self.netlink()?, &socket, offload)?;
        Ok(Device { backing: Backing::Veth, queues: vec![queue], far_counters: Some(counters) })
    }

    /// Returns where the kernel answers questions about the devices of the namespace.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn device_namespace(&self) -> Result<DeviceNamespace, RootlessError> {
        let socket = self.keeper.connection().socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        Ok(DeviceNamespace { socket, proc_net: self.proc_net() })
    }

    /// Returns the directory in which the kernel counts packets of the namespace (proc_pid_net(5)).
    pub fn proc_net(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/net", self.keeper.pid))
    }

    /// Sets up what does not depend on a configuration: the loopback device, and limits of the kernel.
    /// Returns warnings.
    ///
    /// # Errors
    /// The kernel refuses the loopback device.
    pub fn set_up(&self) -> Result<Vec<String>, RootlessError> {
        let netlink = self.netlink()?;
        let loopback = "lo".parse().map_err(|_| unexpected())?;
        netlink.set_up(&netlink.link(&loopback)?)?;
        let tcp_buffer_bytes = sysctl::tcp_buffer_bytes(memory::total_bytes());
        let group = getegid().as_raw();
        Ok(self.keeper.connection().ask(&Request::Sysctls { group, tcp_buffer_bytes }, 1)?.0)
    }

    /// Opens the network of the namespace, to configure it.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket.
    pub fn netlink(&self) -> Result<Netlink, RootlessError> {
        let socket =
            self.keeper.connection().socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        Ok(Netlink::adopt(socket)?)
    }

    /// Returns descriptors of the user and the network namespace, for [`Inside`](crate::Inside).
    pub(crate) fn descriptors(&self) -> &Arc<[OwnedFd; 2]> {
        &self.descriptors
    }
}
