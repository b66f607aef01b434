//! What clients of all listening sockets share.

use std::sync::Arc;
use std::time::Duration;

use weft_ipc::Refusals;

use crate::access::Users;
use crate::budget::{Account, Budget};
use crate::network::Network;
use crate::owner::Senders;
use crate::reach::Reach;

/// Where clients may go, and who they have to be.
pub(crate) struct Proxy {
    pub(crate) reach: Reach,
    pub(crate) host: Arc<dyn Network>,
    pub(crate) users: Option<Users>,
    pub(crate) request_timeout: Duration,
    pub(crate) refusals: Refusals,
    pub(crate) budget: Arc<Budget>,
    /// What relays hold for their receivers.
    pub(crate) relayed: Arc<Account>,
    /// UDP sockets of sources of forwards and of associations.
    pub(crate) udp_sockets: Arc<Budget>,
    /// Those of all associations.
    pub(crate) associations: Arc<Account>,
    pub(crate) senders: Arc<Senders>,
}
