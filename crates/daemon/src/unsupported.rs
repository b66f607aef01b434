//! The parts of other modules that need Linux or Unix, for systems without them. What can fail says so; what
//! only observes finds nothing.

use std::convert::Infallible;
use std::env::consts::OS;
use std::io;

use weft_tun::Descriptor as Queue;

/// The kernel's counters of a device are not read.
pub(crate) fn queue_overflows(_: &std::path::Path, _: &str) -> u64 {
    0
}

/// There is no veth pair.
pub(crate) fn far_end_drops(_: &std::fs::File) -> u64 {
    0
}

/// An adapter of Windows has no descriptor that another process could hand in.
#[cfg(not(unix))]
pub(crate) fn take_queue(_: i32) -> Result<(Queue, weft_config::InterfaceName), String> {
    Err(format!("a TUN device of {OS} has no descriptor to hand in: remove this variable"))
}

/// The UAPI of Windows is a named pipe, which has no descriptor.
#[cfg(not(unix))]
pub(crate) fn take_socket(_: i32) -> Result<weft_uapi::Descriptor, String> {
    Err(format!("the UAPI of {OS} is a pipe and has no descriptor to hand in: remove this variable"))
}

/// Without systemd no socket is passed.
pub(crate) fn inherited_metrics() -> Option<weft_metrics::Listener> {
    None
}

/// There is one packet thread, which has no need for more.
#[cfg(not(unix))]
pub(crate) mod descriptors {
    pub(crate) fn make_room(_: usize) -> std::io::Result<Result<(), String>> {
        Ok(Ok(()))
    }
}

/// Speed tests read the TCP_INFO of Linux.
pub(crate) mod speedtest {
    use std::sync::Arc;

    use weft_config::InterfaceName;

    use super::OS;
    use crate::control::Managed;

    pub(crate) enum SpeedTests {}

    impl SpeedTests {
        pub(crate) fn answer(interface: &InterfaceName, _: &Arc<Managed>) -> Result<Self, String> {
            Err(format!(
                "{interface} refuses speed tests: they need Linux, not {OS}; take `SpeedTest` out of the file"
            ))
        }
    }
}

pub(crate) mod scheduling {
    use super::{OS, io};

    pub(crate) fn take_short_slices() {}

    pub(crate) fn pin(_: usize) -> io::Result<()> {
        let message = format!("weft pins no threads on {OS}");
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    pub(crate) fn take_precedence() -> io::Result<()> {
        let message = format!("weft sets no real-time priority on {OS}");
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }
}

pub(crate) mod journal {
    use tracing_subscriber::layer::Identity;

    pub(crate) fn connect(_interface: Option<&str>) -> Option<Identity> {
        None
    }
}

pub(crate) mod demo {
    use weft_config::exit::{Code, Error};

    use crate::cli::DemoArgs;

    /// Reports that the demo needs Linux.
    ///
    /// # Errors
    /// Always.
    pub fn run(_: &DemoArgs) -> Result<(), Error> {
        Err(Error::new(Code::Failure, "`weft demo` needs the network namespaces of Linux"))
    }
}

/// Commands that use a tunnel without root.
pub mod exec {
    use std::process::ExitCode;

    use weft_commands::output;
    use weft_config::exit::Code;

    use crate::cli::ExecArgs;

    /// Reports that there are no namespaces.
    pub fn run(_: &ExecArgs) -> ExitCode {
        output::error(&"`weft exec` needs the namespaces of Linux");
        Code::Failure.into()
    }
}

/// Proxies into a tunnel without root.
pub mod proxy {
    use weft_config::exit::{Code, Error};

    use crate::cli::ProxyArgs;

    /// Reports that there are no namespaces.
    ///
    /// # Errors
    /// Always.
    pub fn run(_: &ProxyArgs) -> Result<(), Error> {
        Err(Error::new(Code::Failure, "`weft proxy` needs the namespaces of Linux"))
    }
}

/// Services, where no service manager is known yet.
#[cfg(not(any(target_os = "macos", target_os = "freebsd", windows)))]
pub(crate) mod service {
    use weft_config::exit::{Code, Error};

    use super::OS;
    use crate::cli::ServiceArgs;

    /// Reports that there are no services yet.
    ///
    /// # Errors
    /// Always.
    pub fn run(_: &ServiceArgs) -> Result<(), Error> {
        Err(Error::new(
            Code::Failure,
            format!("weft is no service on {OS} yet; `weft run NAME` runs an interface"),
        ))
    }
}

/// systemd: it never started this process.
pub(crate) mod systemd {
    pub(crate) mod fd_store {
        use zeroize::Zeroizing;

        use super::super::{Infallible, io};

        /// The store, which cannot exist on this system.
        #[derive(Debug)]
        pub struct FdStore(Infallible);

        impl FdStore {
            /// Always returns `None`.
            pub fn of_this_process() -> Option<Self> {
                None
            }

            pub fn keep<D>(&self, _: &str, _: &D) -> io::Result<()> {
                match self.0 {}
            }

            pub fn keep_sealed(&self, _: &str, _: &[u8]) -> io::Result<()> {
                match self.0 {}
            }

            pub fn forget(&self, _: &str) -> io::Result<()> {
                match self.0 {}
            }

            pub fn settle(&self) -> io::Result<()> {
                match self.0 {}
            }
        }

        pub fn read_sealed(descriptor: &Infallible) -> io::Result<Zeroizing<Vec<u8>>> {
            match *descriptor {}
        }

        /// Fails: there is no store to put the clone into.
        pub fn try_clone<D>(_: &D) -> io::Result<D> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    pub(crate) mod inherited {
        use super::super::{Infallible, Queue};

        /// A descriptor, which cannot exist on this system.
        pub type Descriptor = Infallible;

        /// A descriptor and its name, which cannot exist on this system.
        #[derive(Debug)]
        pub struct Inherited {
            pub name: String,
            pub descriptor: Descriptor,
        }

        pub fn into_queue(descriptor: Descriptor) -> Queue {
            match descriptor {}
        }

        pub fn into_socket(descriptor: Descriptor) -> weft_udp::Descriptor {
            match descriptor {}
        }

        /// Always returns an empty list.
        pub fn take(_: impl Fn(&str) -> bool) -> Vec<Inherited> {
            Vec::new()
        }
    }

    pub(crate) mod job {
        use super::super::OS;

        /// The pending job of a service manager for the service of this process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Job {
            /// Whether the service is started again right after the stop.
            pub is_restart: bool,
            /// Number of descriptors in the service's store.
            pub kept: u32,
        }

        /// Always returns `None`.
        pub fn invocation() -> Option<String> {
            None
        }

        /// Always returns an error.
        pub fn job() -> Result<Job, String> {
            Err(format!("there is no systemd on {OS}"))
        }
    }

    #[cfg(not(windows))]
    pub(crate) mod notify {
        use std::time::Duration;

        pub fn is_present() -> bool {
            false
        }

        pub(crate) fn shows_status() -> bool {
            false
        }

        pub(crate) fn ready(_: &str) {}

        pub fn reloading() {}

        pub fn stopping() {}

        pub(crate) fn status(_: &str) {}

        pub(crate) fn extend_timeout(_: Duration) {}

        pub(crate) fn alive() {}

        pub(crate) fn watchdog_timeout() -> Option<Duration> {
            None
        }
    }
}

/// fork(2).
#[cfg(not(unix))]
pub(crate) mod background {
    use super::Infallible;
    use crate::background::{BackgroundError, Output};

    /// Cannot be created.
    #[derive(Debug)]
    pub struct Notifier(Infallible);

    /// Always returns an error.
    pub fn begin() -> Result<Notifier, BackgroundError> {
        Err(BackgroundError::Unsupported)
    }

    impl Notifier {
        /// Never called.
        pub fn ready(self, _: Output) -> Result<(), BackgroundError> {
            match self.0 {}
        }
    }
}

/// Instructions are tried in this process.
#[cfg(not(unix))]
pub(crate) mod trial {
    pub(crate) fn run(test: fn() -> bool) -> Result<(), String> {
        if test() { Ok(()) } else { Err("the self-test gave wrong results".to_owned()) }
    }

    pub(crate) fn explain_illegal_instructions() {}
}

/// Interfaces that another program runs are not known.
pub(crate) mod foreign {
    use weft_config::InterfaceName;

    pub(crate) fn runs(_: &InterfaceName) -> Option<String> {
        None
    }

    pub(crate) fn interface_of_wg_quick() -> Option<String> {
        None
    }
}

/// Threads can be started.
pub mod threads {
    use weft_config::exit::Error;

    /// Never returns an error.
    pub fn check() -> Result<(), Error> {
        Ok(())
    }
}
