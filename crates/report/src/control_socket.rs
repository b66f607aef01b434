//! weft's control socket, through which `weft status`, `top`, `capture`, `reload` and `down` talk to a
//! running interface.
//!
//! It is `NAME/control.sock` in the [runtime directory](weft_ipc::runtime_dir), accessible to its owner only.
//! A client verifies that the process that listens belongs to root, to the client's user or to the owner of
//! the interface. On Windows it is the named pipe `\\.\pipe\ProtectedPrefix\Administrators\weft\NAME`,
//! accessible to SYSTEM and administrators on this machine, and a client verifies that one of these owns it.
//!
//! A client writes requests, each a JSON object on one line, and receives one line for each, in order:
//!
//! ```json
//! {"version":1,"request":"status"}
//! {"version":1,"ok":{"interface":"wg0","peers":[]}}
//! {"version":1,"request":"reload","file":"/etc/wireguard/wg0.conf","config_base64":"W0ludGVy…","dry_run":true}
//! {"version":1,"error":{"kind":"configuration","message":"/etc/wireguard/wg0.conf:3: MTU: …"}}
//! {"version":1,"request":"capture","peer":"office","stage":"inner","snap_bytes":256} {"version":1,"ok":{}}
//! {"version":1,"request":"stop"} {"version":1,"ok":{}}
//! {"version":1,"ok":{"failures":["/etc/wireguard/wg0.conf:7: PreDown: the command `…` failed with …"]}}
//! ```
//!
//! After the answer to `capture` the daemon sends blocks of a pcapng file, until the client sends another
//! byte, such as a line break. The end of the client's side of the connection ends the capture too. Packets
//! captured before still arrive. After `stop` the connection ends when the interface is gone, and before that
//! a second line says what failed, if something did. A configuration contains keys. It is sent in base64,
//! which needs no JSON escapes, so that the parser does not make a copy that is never wiped.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weft_config::exit;
use weft_ipc::MAY_CONNECT;
use weft_ipc::holder::{Held, Holder};
use weft_ipc::runtime_dir::{UntrustedError, Users};
use zeroize::Zeroizing;

mod client;
pub mod line;

pub use client::{Client, PacketStream, Stopper, place, running, running_in};

/// The version of the requests and answers. New fields do not change it; a change in the meaning of a field
/// does.
pub const VERSION: u32 = 1;

/// The layer at which packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Inside the tunnel: IP packets, as they are read from and written to the TUN.
    Inner,
    /// Outside the tunnel: WireGuard's datagrams.
    Outer,
}

/// A new configuration for a running interface.
pub struct Reload {
    /// The text of the configuration file.
    pub text: Zeroizing<String>,
    /// The file that the text was read from, for error messages.
    pub file: PathBuf,
    /// Report the changes without making them.
    pub dry_run: bool,
    /// Whether a command of the interface's configuration wants this.
    pub within_command: bool,
    /// Whether a command has just written the text into the file: it counts as loaded, also in a dry run.
    pub is_saved: bool,
}

/// Which packets to capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureRequest {
    /// Only packets of this peer, given by its public key or its friendly name; `None`: all peers.
    pub peer: Option<String>,
    /// Only packets of this layer; `None`: both layers.
    pub layer: Option<Layer>,
    /// The number of bytes to keep of each packet; `None`: all.
    pub snap_bytes: Option<u32>,
}

/// The result of reading from a [`PacketStream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes were appended.
    Bytes,
    /// Nothing arrived in time.
    Nothing,
    /// The capture has ended.
    End,
}

/// The changes of a reload, made or, for a dry run, planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadReport {
    /// The changes in order, one sentence each; empty if nothing differs.
    pub steps: Vec<String>,
    /// How many of them, the first ones, change what the interface is now: its key, port, mark and peers.
    pub tunnel_steps: usize,
    /// Why changes could not be made, or for a dry run could not be now, each with advice.
    pub refused: Vec<String>,
    /// Warnings about the file.
    pub warnings: Vec<String>,
}

/// Why a request failed. A failed change has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManageError {
    /// The configuration is invalid.
    #[error("{0}")]
    Configuration(String),
    /// The daemon lacks a permission.
    #[error("{0}")]
    Permission(String),
    /// The request failed for another reason.
    #[error("{0}")]
    Failed(String),
    /// The interface is being taken down.
    #[error("the interface is being taken down")]
    Ended,
}

/// Why a client got no answer, or an error.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    #[error("{name} is not running under weft: there is no {}; `weft status` lists the interfaces that are", path.display())]
    NotRunning {
        name: String,
        /// The path at which the socket would be.
        path: PathBuf,
    },
    /// The user may not connect to the socket.
    #[error("not allowed to talk to {name} over {}: run as {MAY_CONNECT}", path.display())]
    Forbidden {
        name: String,
        /// The path of the socket.
        path: PathBuf,
    },
    /// The process that listens belongs to a user that may not run the interface.
    #[error(
        "user {user} listens on {}, and not {expected}: nothing was sent; see which process it is (`ss -xlp`), end it, \
         and remove the socket",
        path.display()
    )]
    Stranger {
        name: String,
        path: PathBuf,
        /// The user that listens.
        user: u32,
        /// The users that may run the interface.
        expected: Users,
    },
    /// The daemon names a file as its own that this process has no reason to read.
    #[error(
        "{name} was brought up from {} by user {user}, who does not decide what this command reads: give the path of the \
         file instead of the name",
        file.display()
    )]
    OthersFile {
        name: String,
        /// The user that runs the daemon.
        user: u32,
        /// The file that the daemon names.
        file: PathBuf,
    },
    /// Other users may change the contents of the runtime directory.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
    /// The daemon did not answer in time.
    #[error(
        "{name} does not answer within {seconds} s: its daemon{process} hangs, or the machine is overloaded"
    )]
    Timeout {
        name: String,
        /// The time limit, in seconds.
        seconds: u64,
        /// The process that listens and its state, in parentheses; empty if the system does not tell.
        process: String,
    },
    /// The daemon has ended the connection of a client that wants the end of the interface, and nothing else.
    #[error("process {process} says that {name} is down, and still serves it: end that process")]
    StillServed { name: String, process: u32 },
    /// The answer is invalid, or of another version.
    #[error(
        "{name} answered in a way that this weft does not understand ({reason}): is it of another version?"
    )]
    Garbled {
        name: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The daemon answered with an error.
    #[error(transparent)]
    Refused(#[from] ManageError),
    /// Another error of the socket.
    #[error("cannot talk to {name} over {}: {source}", path.display())]
    Io {
        name: String,
        /// The path of the socket.
        path: PathBuf,
        source: std::io::Error,
    },
}

impl ClientError {
    /// Reports whether the daemon has answered, or was not asked. Without an answer, what it did is not
    /// known.
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::Timeout { .. } | Self::Garbled { .. })
    }

    /// Returns the exit code of a command that fails with this error.
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
        if let ClientError::NotRunning { name, path } = &error
            && let Holder::Process { id, program } = Holder::of(Held::Device(name))
            && program == "weft"
        {
            let path = path.display();
            return Self::new(
                error.exit_code(),
                format!(
                    "weft (process {id}) runs {name}, and its socket {path} is not there: if another program has removed \
                     it and weft does not make it again, `kill {id}` takes the interface down"
                ),
            );
        }
        Self::new(error.exit_code(), error)
    }
}
