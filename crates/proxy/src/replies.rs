//! The socket by which clients get the replies to their datagrams.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use weft_network::{Datagrams, datagram};

use crate::budget::Account;

/// What a datagram that waits takes beside its bytes.
pub(crate) const OVERHEAD: usize = 128;

/// A socket that many tasks send replies by. Those that wait for room in it are charged to an account.
pub(crate) struct Replies {
    pub(crate) socket: Arc<dyn Datagrams>,
    account: Arc<Account>,
    /// Orders the tasks: a socket wakes only one that waits for room.
    sending: tokio::sync::Mutex<()>,
}

impl Replies {
    pub(crate) fn new(socket: Arc<dyn Datagrams>, account: Arc<Account>) -> Self {
        Self { socket, account, sending: tokio::sync::Mutex::default() }
    }

    /// Sends what follows the first `start` bytes. It is dropped if the account has no room for it.
    pub(crate) async fn send(&self, datagram: &[u8], start: usize, to: SocketAddr) -> io::Result<()> {
        let Some(_charge) = self.account.charge(datagram.len() + OVERHEAD) else { return Ok(()) };
        let _turn = self.sending.lock().await;
        datagram::send(&*self.socket, &datagram[start..], to).await
    }
}
