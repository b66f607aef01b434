//! ICMP errors on their way back to the TUN, in answer to packets that came from there and found no way.
//!
//! Before: `weft_tunnel` refused a packet in `outbound.rs`. After: `weft_tun`'s writers.

use std::task::{Context, Poll};

use weft_tun::Tun;
use weft_tunnel::Tunnel;

use super::DataplaneError;
use super::capture::Captures;

/// Writes what waits, as far as the TUN takes it; otherwise its waker is registered.
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
    // A slab that is free takes them all.
    while let Some(answer) = tunnel.pop_answer() {
        let Some(packet) = tun.plain_slab().push(&answer) else { break };
        if captures.is_on() {
            captures.written(tunnel, &answer, true);
        }
        tun.send(packet).map_err(DataplaneError::Tun)?;
    }
    tun.flush().map_err(DataplaneError::Tun)
}
