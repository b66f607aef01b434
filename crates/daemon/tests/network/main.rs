//! weft on a network that changes under it, and that is not all of one size.
//!
//! Two interfaces inside this process, client and server, with routers between them; each module draws its
//! own. The names inside the tunnel are the same everywhere:
//!
//! ```text
//!   client  weft0  10.77.0.1  fd77::1 ═══════ tunnel ═══════ weft0  10.77.0.2  fd77::2  server
//! ```
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

#[path = "../interop/conversation.rs"]
mod conversation;
mod weft;

mod addresses;
mod device_mtu;
mod forged_mtu;
mod path_mtu;
mod sleep;
mod unreachable;
mod uplinks;
