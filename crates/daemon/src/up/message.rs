//! Messages to the control thread of an interface.

use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;

use weft_commands::signals::Signal;
use weft_host::network::NetworkChange;
use weft_report::control_socket::{ManageError, Reload, ReloadReport};
use weft_tunnel::{Event, PublicKey};

/// Capacity of the inbox of the control thread. Events of peers that do not fit are dropped: a later event
/// says more.
pub(super) const MESSAGES: usize = 1024;

/// A message to the control thread.
pub(super) enum Message {
    /// A signal ends the interface.
    Signal(Signal),
    /// A client of the control socket asked for the end.
    Stop,
    /// The file of the UAPI socket was removed, which is how scripts end an interface.
    SocketRemoved,
    /// Another program has removed the control socket, the record, or the lock.
    Removed,
    /// Packets have stopped.
    Ended,
    /// The network changed.
    Network(NetworkChange),
    /// Something happened to a peer.
    Peer(Event),
    /// The name of a peer's endpoint has a new address.
    Resolved(PublicKey, SocketAddr),
    /// The interface was changed over UAPI. A flag says the same, in case that there is no room for the
    /// message.
    Configured,
    /// A new configuration.
    Reload(Reload, SyncSender<Result<ReloadReport, ManageError>>),
}

/// Sends messages to the control thread. Sending does not wait for the message to be handled.
pub(super) type Inbox = SyncSender<Message>;
