//! A wintun.dll for tests under Wine, with the functions of the real one (wintun.h of Wintun 0.14). On any
//! other system this crate is empty.
//!
//! ```text
//!   weft.exe ── rings of `Session` ── UDP on loopback ── kernel.py ── TUN of Linux, with the addresses
//! ```
//!
//! Variables of the environment:
//! - `WEFT_FAKE_WINTUN_KERNEL`: address and port of `kernel.py`. A datagram is a packet.
//! - `WEFT_FAKE_WINTUN_INDEX`: index of the interface that the adapter pretends to be.
//! - `WEFT_FAKE_WINTUN_PAUSE_US`: how long the driver takes for each packet that weft writes.
//! - `WEFT_FAKE_WINTUN_RING`: bytes of a ring, instead of what weft asks for.

#[cfg(windows)]
mod exports;
#[cfg(windows)]
mod session;
