//! Content-checked TCP in both directions at once.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use weft_lab::traffic::Amount;
use weft_lab::{Namespace, Transfer, until, wait_until_ok};

pub(crate) const MIB: u64 = 1 << 20;
/// Time after which a conversation ends by itself.
const LONGEST: Duration = Duration::from_secs(180);

/// Where one side of a conversation is.
pub(crate) type Place<'a> = (&'a Namespace, IpAddr);

/// A flow from each of two places to the other, as fast as they go. It stops when it is dropped.
pub(crate) struct Conversation {
    transfers: Vec<Transfer>,
}

impl Conversation {
    /// The first place begins; the second one falls in once something has arrived there.
    pub(crate) fn start(first: Place<'_>, second: Place<'_>) -> Self {
        let mut this = Self { transfers: Vec::new() };
        for ((from, _), (to, address)) in [(first, second), (second, first)] {
            let amount = Amount::Until(Instant::now() + LONGEST);
            let transfer = Transfer::start(from, to, address, 1, amount).unwrap();
            until("the first bytes arrive", || {
                assert!(!transfer.is_finished(), "the sender gave up");
                transfer.bytes() > 0
            });
            this.transfers.push(transfer);
        }
        this
    }

    /// Waits until this number of further bytes has arrived on both sides.
    #[track_caller]
    pub(crate) fn wait_for_more(&self, bytes: u64) {
        let before: Vec<_> = self.transfers.iter().map(Transfer::bytes).collect();
        wait_until_ok(|| {
            let arrived =
                self.transfers.iter().zip(&before).map(|(transfer, before)| transfer.bytes() - before);
            let arrived: Vec<_> = arrived.collect();
            let ended = self.transfers.iter().map(Transfer::is_finished).collect::<Vec<_>>();
            if arrived.iter().all(|&arrived| arrived >= bytes) {
                return Ok(());
            }
            Err(format!(
                "traffic goes on in both directions: {arrived:?} bytes arrived, {ended:?} have ended"
            ))
        });
    }

    /// Ends both flows and checks that every byte that was sent has arrived as it was sent.
    #[track_caller]
    pub(crate) fn finish(mut self) {
        self.transfers.iter().for_each(Transfer::stop);
        for transfer in self.transfers.drain(..) {
            transfer.finish();
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.transfers.iter().for_each(Transfer::stop);
    }
}
