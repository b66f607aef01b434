//! Writes ICMP errors to the TUN: they answer packets from the TUN that could not be forwarded.
//!
//! Before: `weft_tunnel` refused a packet in `outbound.rs`. After: `weft_tun`'s writers.

use std::task::{Context, Poll};

use weft_tun::Tun;
use weft_tunnel::Tunnel;

use crate::DataplaneError;
use crate::capture::Captures;

/// Writes the waiting ICMP errors as far as the TUN accepts them; otherwise registers the waker with the TUN.
pub(super) fn write(
    cx: &mut Context<'_>,
    tunnel: &mut Tunnel,
    tun: &mut impl Tun,
    captures: &mut Captures,
) -> Result<(), DataplaneError> {
    if !tunnel.has_answers() {
        return Ok(());
    }
    match tun.poll_send_ready(cx) {
        Poll::Ready(Ok(())) => {}
        Poll::Ready(Err(error)) => return Err(DataplaneError::Tun(error)),
        Poll::Pending => return Ok(()),
    }
    // A free slab holds all of them.
    while let Some(answer) = tunnel.pop_answer() {
        let Some(packet) = tun.plain_slab().push(&answer) else { break };
        if captures.is_on() {
            captures.written(tunnel, &answer, true);
        }
        tun.send(packet).map_err(DataplaneError::Tun)?;
    }
    tun.flush().map_err(DataplaneError::Tun)
}
