//! What clients of all listening sockets share.

use std::sync::Arc;
use std::time::Duration;

use weft_ipc::Refusals;
use weft_network::Network;

use crate::access::Users;
use crate::budget::{Account, Budget};
use crate::guesses::Guesses;
use crate::owner::Senders;
use crate::reach::Reach;

/// Where clients may go, and who they have to be.
pub(crate) struct Proxy {
    pub(crate) reach: Reach,
    pub(crate) host: Arc<dyn Network>,
    pub(crate) users: Option<Users>,
    pub(crate) guesses: Guesses,
    pub(crate) request_timeout: Duration,
    pub(crate) refusals: Refusals,
    pub(crate) budget: Arc<Budget>,
    /// What relays hold for their receivers.
    pub(crate) relayed: Arc<Account>,
    /// Heads of HTTP under way, and buffers of connections.
    pub(crate) heads: Arc<Account>,
    /// Requests of HTTP that wait for a name or a connection.
    pub(crate) requests: Arc<Account>,
    /// The same of clients that were not admitted yet, where they have to be: they take nothing from others.
    strangers: Arc<Account>,
    /// UDP sockets of sources of forwards and of associations.
    pub(crate) udp_sockets: Arc<Budget>,
    /// Those of all associations.
    pub(crate) associations: Arc<Account>,
    pub(crate) senders: Arc<Senders>,
}

impl Proxy {
    pub(crate) fn new(
        reach: Reach,
        host: Arc<dyn Network>,
        users: Option<Users>,
        request_timeout: Duration,
        waiting_bytes: usize,
        udp_sockets: usize,
    ) -> Self {
        let (budget, udp_sockets) = (Budget::new(waiting_bytes), Budget::new(udp_sockets));
        Self {
            senders: Arc::default(),
            reach,
            host,
            users,
            guesses: Guesses::default(),
            request_timeout,
            refusals: Refusals::default(),
            relayed: budget.account(),
            heads: budget.account(),
            requests: budget.account(),
            strangers: budget.account(),
            budget,
            associations: udp_sockets.account(),
            udp_sockets,
        }
    }

    /// Returns the account of clients that have sent no password yet.
    pub(crate) fn unadmitted(&self) -> &Arc<Account> {
        if self.users.is_some() { &self.strangers } else { &self.heads }
    }
}
