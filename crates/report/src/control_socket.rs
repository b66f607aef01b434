//! weft's own control socket: what `weft status`, `top`, `reload` and `down` ask of a running interface.
//!
//! It is `NAME/control.sock` in the [runtime directory](weft_ipc::runtime_dir), for its owner alone. A client
//! makes sure that root or the user that the interface belongs to listens there. It writes requests, each a
//! JSON object in a line, and gets a line for each, in order:
//!
//! ```json
//! {"version":1,"request":"status"}
//! {"version":1,"ok":{"interface":"wg0","peers":[]}}
//! {"version":1,"request":"reload","file":"/etc/wireguard/wg0.conf","config_base64":"W0ludGVy…","dry_run":true}
//! {"version":1,"error":{"kind":"configuration","message":"/etc/wireguard/wg0.conf:3: MTU: …"}}
//! {"version":1,"request":"capture","peer":"office","stage":"inner","snap_bytes":256}
//! {"version":1,"ok":{}}
//! {"version":1,"request":"stop"}
//! {"version":1,"ok":{}}
//! ```
//!
//! After the answer to `capture` come blocks of a pcapng file, until the client closes its direction of the connection.
//! After `stop` the connection ends when the interface is gone. Configurations have keys in them: in base64 they need
//! no escapes, so that no parser makes a copy that nobody wipes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weft_config::exit;
use weft_ipc::runtime_dir::{UntrustedError, Users};
use zeroize::Zeroizing;

#[cfg(unix)]
mod client;
#[cfg(not(unix))]
#[path = "control_socket/unsupported.rs"]
mod client;
pub mod line;

pub use client::{Client, PacketStream, Stopper, running, running_in};

/// The version of the requests and answers. Fields may come without a new one; a meaning may not change.
pub const VERSION: u32 = 1;

/// Where a packet is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Inside the tunnel: IP packets, as the device reads and writes them.
    Inner,
    /// Outside: WireGuard's datagrams.
    Outer,
}

/// A new configuration for a running interface.
pub struct Reload {
    /// The text of the file.
    pub text: Zeroizing<String>,
    /// The file that it was read from, for errors.
    pub file: PathBuf,
    /// Change nothing, only say what would be changed.
    pub dry_run: bool,
}

/// What to capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureRequest {
    /// Only packets of this peer: its public key, or what the configuration calls it.
    pub peer: Option<String>,
    /// Only packets of this layer.
    pub layer: Option<Layer>,
    /// Bytes to keep of each packet; `None`: all.
    pub snap_bytes: Option<u32>,
}

/// What reading from a [`PacketStream`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// More of it.
    Bytes,
    /// Nothing in the time that it was waited for.
    Nothing,
    /// The end.
    End,
}

/// What a reload did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadReport {
    /// The changes in their order, a sentence each; none if everything was so already.
    pub steps: Vec<String>,
    /// Changes that the daemon may not make itself, with what to do about each.
    pub refused: Vec<String>,
    /// What is odd in the file.
    pub warnings: Vec<String>,
}

/// Why a request failed. A change that failed changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManageError {
    /// The configuration is wrong.
    #[error("{0}")]
    Configuration(String),
    /// The daemon may not do it.
    #[error("{0}")]
    Permission(String),
    /// It cannot be done.
    #[error("{0}")]
    Failed(String),
    /// The interface is being taken down.
    #[error("the interface is being taken down")]
    Ended,
}

/// Why a client got no answer, or not the one it wanted.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("{name} is not running under weft: there is no {}; see `weft status` for what is", path.display())]
    NotRunning {
        /// The interface.
        name: String,
        /// Where its socket would be.
        path: PathBuf,
    },
    /// The socket belongs to somebody else.
    #[error("not allowed to talk to {name} over {}: run as root, or as the user who runs it", path.display())]
    Forbidden {
        /// The interface.
        name: String,
        /// Its socket.
        path: PathBuf,
    },
    /// Another user listens than one that may run the interface.
    #[error(
        "user {user} listens on {}, and not {expected}: nothing was sent; see which process it is (`ss -xlp`), end it, \
         and remove the socket",
        path.display()
    )]
    Stranger {
        /// The interface.
        name: String,
        /// Its socket.
        path: PathBuf,
        /// Who listens.
        user: u32,
        /// Who may.
        expected: Users,
    },
    /// Others may change what is in the runtime directory.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
    /// The daemon took too long.
    #[error("{name} does not answer within {seconds} s: its daemon hangs, or the machine is overloaded")]
    Timeout {
        /// The interface.
        name: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The daemon answered something else than what was asked for.
    #[error(
        "{name} answered in a way that this weft does not understand ({reason}): is it of another version?"
    )]
    Garbled {
        /// The interface.
        name: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] ManageError),
    /// Anything else.
    #[error("cannot talk to {name} over {}: {source}", path.display())]
    Io {
        /// The interface.
        name: String,
        /// Its socket.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// This platform has no such socket yet.
    #[error("weft has no control socket on {} yet", std::env::consts::OS)]
    Unsupported,
}

impl ClientError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Forbidden { .. } | Self::Stranger { .. } | Self::Refused(ManageError::Permission(_)) => {
                exit::Code::Permission
            }
            Self::Refused(ManageError::Configuration(_)) => exit::Code::Configuration,
            _ => exit::Code::Failure,
        }
    }
}

impl From<ClientError> for exit::Error {
    fn from(error: ClientError) -> Self {
        Self::new(error.exit_code(), error)
    }
}
