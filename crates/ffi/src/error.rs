//! Why a call failed, and its status in C.

use std::any::Any;

use weft_dataplane::DataplaneError;
use weft_uapi::ControlError;

use crate::text::MAX_TEXT_BYTES;

/// Why a call failed. Each is one line with the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An argument that must not be NULL is NULL.
    #[error("{0} is NULL: pass a valid pointer")]
    Null(&'static str),
    /// No interface has this number.
    #[error("there is no interface {0}: pass what weft_open() wrote, before weft_free()")]
    NoInterface(u64),
    /// No tunnel or listener has this number.
    #[error("there is no {0} {1}: pass what weft wrote, before it is closed")]
    NoNumber(&'static str, u64),
    /// The text is no address.
    #[error("{0} is no address: pass one of the tunnel, such as 10.0.0.2")]
    Address(String),
    /// The text is no configuration of a tunnel, or no name of a host.
    #[error("{0}")]
    Configuration(String),
    /// Connections would have too little memory.
    #[error("{0} bytes are too few for connections: pass 1048576 (1 MiB) or more, or 0 for 64 MiB")]
    Memory(u64),
    /// The tunnel has ended, or another process opened it.
    #[error(
        "the tunnel has ended, or the process that opened it is the parent of this one: open another one"
    )]
    TunnelEnded,
    /// A destination in a tunnel was not reached.
    #[error("{0}: {1}")]
    Network(String, String),
    /// The memory limit is lower than what an interface needs.
    #[error("a memory limit of {0} bytes is too low: an interface needs 16777216 (16 MiB); 0 means no limit")]
    MemoryLimit(u64),
    /// The level of the logger is not one of the five.
    #[error("the log level {0} is not one: pass 1 (error) to 5 (trace)")]
    Level(i32),
    /// The text is not UTF-8.
    #[error("the text is not UTF-8 (byte {0}): pass a request of the UAPI, which is ASCII")]
    NotUtf8(usize),
    /// The text is too long.
    #[error("the text has more than {MAX_TEXT_BYTES} bytes: add peers with several calls of weft_set()")]
    TooLong,
    /// The text is no request that changes an interface.
    #[error(
        "the text is refused: {0}; it is `set=1`, then lines of key=value, as in the cross-platform UAPI"
    )]
    Text(String),
    /// The descriptor is not open, or cannot be duplicated.
    #[error("descriptor {descriptor} cannot be duplicated ({reason}): pass an open TUN")]
    Closed {
        /// The descriptor, as the program gave it.
        descriptor: i32,
        /// The error of the system.
        reason: String,
    },
    /// The descriptor is not that of a TUN that weft reads.
    #[error(
        "descriptor {descriptor} is refused: {reason}; pass the TUN of VpnService.Builder.establish(), the utun of a \
         network extension, or a TUN of Linux with IFF_TUN and IFF_NO_PI"
    )]
    NoTun {
        /// The descriptor, as the program gave it.
        descriptor: i32,
        /// What it is instead.
        reason: String,
    },
    /// The interface does not run yet.
    #[error("the interface does not run yet: call this after weft_run() has begun on another thread")]
    NotRunning,
    /// The interface runs already.
    #[error("the interface runs on another thread already: call weft_run() once")]
    Running,
    /// The call comes from a callback, or from a thread of an asynchronous runtime.
    #[error(
        "weft was called from its own callback, or from an asynchronous task: call it from another thread"
    )]
    Callback,
    /// The interface has ended.
    #[error("the interface has ended: open another one with weft_open()")]
    Stopped,
    /// The system refused something.
    #[error("{0}")]
    System(String),
    /// A socket was not protected.
    #[error("the callback did not protect UDP socket {0}: has the app the consent of VpnService.prepare()?")]
    Unprotected(i32),
    /// A panic, which has ended the interface.
    #[error("weft has a defect, and the interface has ended: {0}; open another one, and report this line")]
    Panicked(String),
}

impl Error {
    /// Returns the status, as in `weft.h`.
    pub fn status(&self) -> i32 {
        match self {
            Self::Null(_)
            | Self::NoInterface(_)
            | Self::NoNumber(..)
            | Self::Address(_)
            | Self::MemoryLimit(_)
            | Self::Memory(_)
            | Self::Level(_) => -1,
            Self::NotUtf8(_) | Self::TooLong | Self::Text(_) | Self::Configuration(_) => -2,
            Self::Closed { .. } | Self::NoTun { .. } => -3,
            Self::NotRunning => -4,
            Self::Running | Self::Callback => -5,
            Self::Stopped | Self::TunnelEnded => -6,
            Self::System(_) | Self::Unprotected(_) => -7,
            Self::Panicked(_) => -8,
            Self::Network(..) => -9,
        }
    }

    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::Panicked(message.unwrap_or("a panic without a message").replace('\n', " "))
    }
}

impl From<ControlError> for Error {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Ended => Self::Stopped,
            ControlError::PortInUse(reason) | ControlError::Refused(reason) => Self::System(reason),
        }
    }
}

impl From<DataplaneError> for Error {
    fn from(error: DataplaneError) -> Self {
        match error {
            DataplaneError::Ended => Self::Stopped,
            error => Self::System(format!("{error}; open another interface, with a new TUN")),
        }
    }
}
