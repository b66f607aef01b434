//! The namespaces of a tunnel, for a command that uses it: a child enters them, and is asked for what has to
//! be done inside.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::ask::{Keeper, RootlessError, unexpected};
use crate::channel::Request;
use crate::enter::Entrance;
use crate::keeper;
use crate::names::Names;
use crate::sockets::Sockets;

/// The user and the network namespace of a running tunnel. The child ends when this is dropped.
#[derive(Debug)]
pub struct Inside {
    keeper: Keeper,
    namespaces: Arc<[OwnedFd; 2]>,
}

impl Inside {
    /// Forks the child. Call it before the first thread is started.
    ///
    /// # Errors
    /// The kernel does not let this process in, as where it is in the namespaces already.
    pub(crate) fn enter(namespaces: [OwnedFd; 2]) -> Result<Self, RootlessError> {
        if is_own(&namespaces[0])? {
            return Err(RootlessError::InsideAlready);
        }
        let kept = namespaces.each_ref().map(|namespace| namespace.as_raw_fd());
        let enter = |channel: &_, parent| keeper::enter_and_serve(channel, parent, &namespaces);
        let (keeper, _) = Keeper::fork(&kept, enter)?;
        Ok(Self { keeper, namespaces: Arc::new(namespaces) })
    }

    /// Makes a mount namespace with these name servers, and returns the way into all three. For as long as
    /// this lives, the child follows changes of the host's files there.
    ///
    /// # Errors
    /// There can be no such namespace, or the files of the C library cannot be replaced.
    pub fn entrance(&self, names: &Names) -> Result<Entrance, RootlessError> {
        let has_servers = !names.servers.is_empty();
        let (warnings, mut made) = self
            .keeper
            .connection()
            .ask(&Request::Names { resolv_conf: names.resolv_conf(), has_servers }, 1)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let mounts = made.pop().ok_or_else(unexpected)?;
        Ok(Entrance::new(Arc::clone(&self.namespaces), mounts))
    }

    /// Makes this the congestion control of new sockets in the network namespace; unless it may be changed,
    /// it has to be so already.
    ///
    /// # Errors
    /// It is another one; the host does not allow it or does not have it.
    pub fn set_congestion(&self, name: &str, may_change: bool) -> Result<(), RootlessError> {
        let asked = Request::Congestion { name: name.to_owned(), may_change };
        let set = self.keeper.connection().ask(&asked, 1).map(drop);
        set.map_err(|error| match error {
            RootlessError::Inside { message, is_permission, errno } => RootlessError::Inside {
                message: format!(
                    "cannot make {name} the congestion control of the tunnel: {message}; {}",
                    allowed()
                ),
                is_permission,
                errno,
            },
            error => error,
        })
    }

    /// Returns what makes sockets in the network namespace.
    pub fn sockets(&self) -> Sockets {
        Sockets(Arc::clone(self.keeper.connection()))
    }
}

/// Says which congestion control a namespace may have.
fn allowed() -> String {
    const ALLOWED: &str = "net.ipv4.tcp_allowed_congestion_control";
    let allowed = std::fs::read_to_string(Path::new("/proc/sys").join(ALLOWED.replace('.', "/")));
    let allowed = allowed.unwrap_or_default();
    let allowed = allowed.trim();
    format!("this host allows {allowed} (as root, `sysctl -w {ALLOWED}=\"{allowed} NAME\"` allows more)")
}

/// Reports whether this is the user namespace of this process.
fn is_own(user: &OwnedFd) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |file: &std::fs::Metadata| (file.dev(), file.ino());
    let own = std::fs::metadata("/proc/self/ns/user")?;
    let file = std::fs::File::from(user.try_clone()?);
    Ok(identity(&own) == identity(&file.metadata()?))
}
