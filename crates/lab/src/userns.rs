//! The user namespace that lets an unprivileged user create network namespaces, and hints where it is
//! refused.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

const TUN_DEVICE: &str = "/dev/net/tun";

/// Why the test network cannot be set up, with a hint.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The kernel or a security module does not let this user create user namespaces.
    #[error("this user may not make user namespaces ({source}): {hint}")]
    UserNamespaceRefused {
        /// How to resolve it.
        hint: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A user namespace was created, but has no rights over network namespaces.
    #[error("the user namespace has no rights over its network ({source}): {hint}")]
    UserNamespacePowerless {
        /// How to resolve it.
        hint: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Only a process with a single thread can enter a user namespace.
    #[error("a user namespace has to be entered before the first thread is started")]
    Multithreaded,
    /// The TUN device cannot be opened.
    #[error("{TUN_DEVICE} cannot be opened ({source}): {hint}")]
    TunDevice {
        /// How to resolve it.
        hint: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// What lets the process create network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// The process was root already.
    Root,
    /// The process entered a user namespace in which it is root.
    UserNamespace,
}

/// Makes an unprivileged user root in a new user namespace, so that it may create network namespaces. Does
/// nothing for root.
///
/// Call it while the process has one thread; it cannot be undone.
pub fn enter_user_namespace() -> Result<Privilege, LabError> {
    if geteuid().is_root() {
        return Ok(Privilege::Root);
    }
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| match errno {
        Errno::EINVAL => LabError::Multithreaded,
        _ => LabError::UserNamespaceRefused { hint: refusal_hint(errno), source: errno.into() },
    })?;
    let map = |file: &str, text: &str| {
        std::fs::write(Path::new("/proc/self").join(file), text)
            .map_err(|source| LabError::UserNamespacePowerless { hint: powerless_hint(), source })
    };
    // The kernel accepts a gid map from an unprivileged user only after setgroups was denied
    // (user_namespaces(7)).
    map("setgroups", "deny")?;
    map("uid_map", &format!("0 {uid} 1"))?;
    map("gid_map", &format!("0 {gid} 1"))?;
    Ok(Privilege::UserNamespace)
}

/// Checks that TUN devices can be created, by opening and closing the device.
pub fn check_tun_device() -> Result<(), LabError> {
    match OpenOptions::new().read(true).write(true).open(TUN_DEVICE) {
        Ok(_) => Ok(()),
        Err(source) => Err(LabError::TunDevice { hint: tun_hint(&source), source }),
    }
}

fn tun_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES) => "run as root, or open it to all with `chmod 0666 /dev/net/tun`",
        Some(Errno::ENOENT) => {
            "load the module with `modprobe tun`, or in a container make the device with \
             `mkdir -p /dev/net && mknod /dev/net/tun c 10 200`"
        }
        Some(Errno::EPERM) => {
            "the container's device list forbids it; start the container with `--device /dev/net/tun`"
        }
        Some(Errno::ENODEV | Errno::ENXIO) => "the kernel has no TUN driver; load it with `modprobe tun`",
        _ => "see that the TUN driver is loaded and the device may be read and written",
    }
}

fn sysctl(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    Some(text.trim().to_owned())
}

fn refusal_hint(errno: Errno) -> String {
    refusal_hint_from(
        errno,
        sysctl("kernel/unprivileged_userns_clone").as_deref(),
        sysctl("user/max_user_namespaces").as_deref(),
        sysctl("kernel/apparmor_restrict_unprivileged_userns").as_deref(),
    )
}

fn refusal_hint_from(
    errno: Errno,
    userns_clone: Option<&str>,
    max_namespaces: Option<&str>,
    apparmor: Option<&str>,
) -> String {
    if userns_clone == Some("0") {
        "run as root, or allow it with `sysctl -w kernel.unprivileged_userns_clone=1`".to_owned()
    } else if max_namespaces == Some("0") || errno == Errno::ENOSPC {
        "run as root, or raise `sysctl -w user.max_user_namespaces=10000`".to_owned()
    } else if apparmor.is_some_and(|value| value != "0") {
        powerless_hint()
    } else {
        "run as root; a container's seccomp filter or a chroot may be what forbids it".to_owned()
    }
}

fn powerless_hint() -> String {
    "run as root; where AppArmor is what restricts it, `sysctl -w \
     kernel.apparmor_restrict_unprivileged_userns=0` lifts that"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_setting_that_caused_it() {
        let hint = |errno, clone, max, apparmor| refusal_hint_from(errno, clone, max, apparmor);
        assert!(hint(Errno::EPERM, Some("0"), None, None).contains("unprivileged_userns_clone"));
        assert!(hint(Errno::EPERM, Some("1"), Some("0"), None).contains("max_user_namespaces"));
        assert!(hint(Errno::ENOSPC, None, Some("5"), None).contains("max_user_namespaces"));
        assert!(hint(Errno::EPERM, Some("1"), Some("9"), Some("1")).contains("apparmor"));
        assert!(hint(Errno::EPERM, None, None, Some("0")).contains("seccomp"));
    }

    #[test]
    fn a_tun_device_that_is_closed_to_users_asks_for_chmod() {
        assert!(tun_hint(&io::Error::from_raw_os_error(libc::EACCES)).contains("chmod"));
        assert!(tun_hint(&io::Error::from_raw_os_error(libc::ENOENT)).contains("modprobe"));
    }
}
