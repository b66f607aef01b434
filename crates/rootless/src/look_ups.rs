//! Names are looked up at the tunnel's name servers and nowhere else, in the mount namespace of this process.
//!
//! Programs look names up by their C library, which reads resolv.conf(5) and nsswitch.conf(5), or asks nscd,
//! systemd-resolved or avahi over a socket file. The two files are of a [`View`] of /etc, so that the host
//! cannot bring its own back. The sockets would lead past the tunnel, so that their directories are hidden,
//! and hidden again when a service makes its directory: it is removed with the mount when the service stops.
//! Sockets without a file are of a network namespace.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use weft_config::read_regular_text;

use crate::names::nsswitch_conf;
use crate::view::{View, hide};

const ETC: &str = "/etc";
const RESOLV_CONF: &str = "resolv.conf";
const NSSWITCH_CONF: &str = "nsswitch.conf";
/// Directories with the sockets of services that look names up on the host.
const SERVICES: [&str; 4] = ["/run/nscd", "/var/run/nscd", "/run/systemd/resolve", "/run/avahi-daemon"];

/// What keeps names in the tunnel, while the host changes its files.
#[derive(Debug)]
pub(crate) struct LookUps {
    etc: View,
    /// Tells of changes in the host's directories.
    changes: Result<Inotify, Errno>,
    /// The file systems that hide a directory.
    hiding: Vec<u64>,
}

impl LookUps {
    /// Sets the name servers of the mount namespace of this process.
    pub(crate) fn set(resolv_conf: &str, has_servers: bool) -> Result<Self, String> {
        let failed = |error: io::Error| {
            format!("cannot look names up through the tunnel, because {ETC} cannot be covered: {error}")
        };
        let etc = fs::canonicalize(ETC).map_err(failed)?;
        let nsswitch = read_regular_text(&etc.join(NSSWITCH_CONF)).unwrap_or_default();
        let nsswitch = nsswitch_conf(&nsswitch, has_servers);
        let files = [(RESOLV_CONF, resolv_conf.to_owned()), (NSSWITCH_CONF, nsswitch)];
        let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        // Before the directories are read: what changes meanwhile is followed later.
        if let Ok(changes) = &changes {
            watch(changes, &etc);
        }
        let etc = View::cover(&etc, &files).map_err(failed)?;
        let mut look_ups = Self { etc, changes, hiding: Vec::new() };
        look_ups.hide_services()?;
        Ok(look_ups)
    }

    /// Returns why changes of the host's files cannot be followed.
    pub(crate) fn warning(&self) -> Option<String> {
        let errno = self.changes.as_ref().err()?;
        Some(format!(
            "cannot watch the host's files (inotify: {}): the command does not see files that are new in {ETC}, \
             and may ask an nscd that starts later; raise the sysctl fs.inotify.max_user_instances",
            errno.desc()
        ))
    }

    /// Returns what is readable when the host's files have changed.
    pub(crate) fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().ok().map(|changes| changes.as_fd())
    }

    /// Follows what has changed.
    pub(crate) fn follow(&mut self) {
        let Ok(events) = self.changes.as_ref().map_or(Ok(Vec::new()), Inotify::read_events) else { return };
        // First what could lead past the tunnel. This process has no terminal and no log: an error leaves
        // things as they were, until the next change.
        let _ = self.hide_services();
        for event in events {
            let _ = match event.name {
                // Of any of the directories: where there is no such entry, nothing is done.
                Some(name) => self.etc.follow(&name),
                // Some are lost.
                None => self.etc.follow_all(),
            };
        }
    }

    fn hide_services(&mut self) -> Result<(), String> {
        for directory in SERVICES.map(Path::new) {
            if let Ok(changes) = &self.changes {
                // Also where a directory above it is made later.
                directory.ancestors().skip(1).for_each(|above| watch(changes, above));
            }
            let device = || fs::metadata(directory).map(|directory| directory.dev());
            if device().map_or(true, |device| self.hiding.contains(&device)) {
                continue;
            }
            hide(directory)
                .and_then(|()| device())
                .map(|device| self.hiding.push(device))
                .map_err(|error| format!("cannot hide {}: {error}", directory.display()))?;
        }
        Ok(())
    }
}

/// Reports new and removed entries of a directory.
fn watch(changes: &Inotify, directory: &Path) {
    let what = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_ONLYDIR;
    // One that is missing appears in that above it.
    let _ = changes.add_watch(directory, what);
}
