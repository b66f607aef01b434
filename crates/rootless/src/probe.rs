//! Why the namespaces cannot be made here, and the ways out. It is found out by making them: what the system
//! says of itself only explains a refusal.

use std::fmt;
use std::path::Path;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

/// A step of making the namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Making the user namespace.
    User,
    /// Mapping the user into it.
    Map,
    /// Making the network namespace.
    Network,
    /// Making the mount namespace.
    Mounts,
    /// Opening the namespaces.
    Open,
    /// Entering those of a running tunnel.
    Enter,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "make a user namespace",
            Self::Map => "map this user into its user namespace",
            Self::Network => "make a network namespace",
            Self::Mounts => "make a mount namespace",
            Self::Open => "open the namespaces",
            Self::Enter => "enter the namespaces of the tunnel",
        })
    }
}

/// The setting that most likely is the cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The sysctl kernel.unprivileged_userns_clone is 0.
    UsernsClone,
    /// The number of user or network namespaces is limited, perhaps to none.
    Limit,
    /// AppArmor lets only programs with a profile use user namespaces.
    AppArmor,
    /// A seccomp filter, as container engines install.
    Seccomp,
    /// The root directory of this process is not that of its mount namespace.
    Chroot,
    /// The kernel has no such namespaces.
    Kernel,
    /// Nothing that can be seen.
    Unknown,
}

impl Cause {
    /// Returns what to change.
    fn advice(self) -> &'static str {
        match self {
            Self::UsernsClone => {
                "the sysctl kernel.unprivileged_userns_clone is 0: as root, `sysctl -w \
                 kernel.unprivileged_userns_clone=1` allows it"
            }
            Self::Limit => {
                "the number of namespaces is limited: as root, `sysctl -w user.max_user_namespaces=10000 \
                 user.max_net_namespaces=10000 user.max_mnt_namespaces=10000` allows more"
            }
            Self::AppArmor => {
                "AppArmor lets only programs with a profile do so (Ubuntu since 23.10): install \
                 packaging/apparmor.d/weft as /etc/apparmor.d/weft for the path of this program and reload it, or as \
                 root `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
            }
            Self::Seccomp => {
                "a seccomp filter forbids it, as that of a container: start it with `--security-opt seccomp=FILE` where \
                 FILE allows unshare, setns and mount (Docker), or with a seccompProfile of type Localhost or Unconfined \
                 (Kubernetes); Podman's filter allows it"
            }
            Self::Chroot => "this process runs in a chroot, which may have none",
            Self::Kernel => "the kernel has no such namespaces: it needs CONFIG_USER_NS and CONFIG_NET_NS",
            Self::Unknown => {
                "a security module, a sandbox or the file system of the container may be what forbids it"
            }
        }
    }
}

/// A refusal of the system, with its likely cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The step that was refused.
    pub step: Step,
    /// The error of the kernel.
    pub errno: Errno,
    /// Its likely cause.
    pub cause: Cause,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, errno, cause } = self;
        write!(
            f,
            "cannot {step} ({}), which a tunnel without root needs: {}; `weft exec --with-proxy` and `weft proxy --stack own` \
             need no namespace; or run the tunnel as root (`sudo weft up`)",
            errno.desc(),
            cause.advice()
        )
    }
}

impl Refused {
    pub(crate) fn explain(step: Step, errno: Errno) -> Self {
        Self { step, errno, cause: Signs::read().cause(step, errno) }
    }
}

/// What the system says of itself.
#[derive(Clone, Debug, Default)]
struct Signs {
    userns_clone: Option<String>,
    most_user_namespaces: Option<String>,
    apparmor: Option<String>,
    /// Whether a seccomp filter is in force for this process.
    is_filtered: bool,
    is_in_chroot: bool,
}

impl Signs {
    fn read() -> Self {
        let sysctl = |name: &str| {
            let text = std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        // Field value 2: a filter is in force (proc_pid_status(5)).
        let is_filtered =
            status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|rest| rest.trim() == "2"));
        // The root of the mount namespace is a mount point; a directory below it usually is none.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo");
        let is_root_mounted = |text: &str| text.lines().any(|line| line.split(' ').nth(4) == Some("/"));
        Self {
            userns_clone: sysctl("kernel/unprivileged_userns_clone"),
            most_user_namespaces: sysctl("user/max_user_namespaces"),
            apparmor: sysctl("kernel/apparmor_restrict_unprivileged_userns"),
            is_filtered,
            is_in_chroot: mounts.is_ok_and(|text| !is_root_mounted(&text)),
        }
    }

    fn cause(&self, step: Step, errno: Errno) -> Cause {
        let is = |sysctl: &Option<String>, value: &str| sysctl.as_deref() == Some(value);
        match errno {
            Errno::ENOSPC | Errno::EUSERS => Cause::Limit,
            _ if is(&self.userns_clone, "0") && step == Step::User => Cause::UsernsClone,
            _ if is(&self.most_user_namespaces, "0") && step == Step::User => Cause::Limit,
            Errno::ENOSYS | Errno::EINVAL if !self.is_filtered => Cause::Kernel,
            _ if self.is_in_chroot && step == Step::User => Cause::Chroot,
            // A filter refuses the first system call; AppArmor also what the namespace would give the right
            // to.
            _ if self.is_filtered && step == Step::User => Cause::Seccomp,
            _ if self.apparmor.as_deref().is_some_and(|value| value != "0") => Cause::AppArmor,
            // The mapping is written to files, which a filter does not see; `weft exec` has one itself.
            _ if self.is_filtered && step != Step::Map => Cause::Seccomp,
            _ => Cause::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_cause_and_the_way_out() {
        let value = |text: &str| Some(text.to_owned());
        let none = Signs { most_user_namespaces: value("9000"), ..Signs::default() };
        let filtered = Signs { is_filtered: true, ..none.clone() };
        let apparmor = Signs { apparmor: value("1"), ..none.clone() };
        for (signs, step, errno, cause, words) in [
            (
                Signs { userns_clone: value("0"), ..none.clone() },
                Step::User,
                Errno::EPERM,
                Cause::UsernsClone,
                "unprivileged_userns_clone=1",
            ),
            (
                Signs { most_user_namespaces: value("0"), ..none.clone() },
                Step::User,
                Errno::EPERM,
                Cause::Limit,
                "max_user_namespaces",
            ),
            (none.clone(), Step::Network, Errno::ENOSPC, Cause::Limit, "max_net_namespaces"),
            (none.clone(), Step::User, Errno::EINVAL, Cause::Kernel, "CONFIG_USER_NS"),
            (filtered.clone(), Step::User, Errno::EPERM, Cause::Seccomp, "seccompProfile"),
            (filtered.clone(), Step::User, Errno::ENOSYS, Cause::Seccomp, "--security-opt"),
            (filtered, Step::Map, Errno::EPERM, Cause::Unknown, "security module"),
            (apparmor.clone(), Step::User, Errno::EACCES, Cause::AppArmor, "apparmor.d"),
            (apparmor, Step::Network, Errno::EPERM, Cause::AppArmor, "apparmor_restrict"),
            (Signs { is_in_chroot: true, ..none.clone() }, Step::User, Errno::EPERM, Cause::Chroot, "chroot"),
            (none, Step::Network, Errno::EPERM, Cause::Unknown, "security module"),
        ] {
            assert_eq!(signs.cause(step, errno), cause, "{signs:?} {step:?} {errno:?}");
            let told = Refused { step, errno, cause }.to_string();
            assert!(
                told.contains(words) && told.contains("weft exec --with-proxy") && !told.contains('\n'),
                "{told}"
            );
        }
    }
}
