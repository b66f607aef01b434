//! A WireGuard tunnel for a program that has a TUN: a thin C API (`include/weft.h`) over [`Interface`].
//!
//! The program hands in the TUN, protects the sockets and gives a thread; weft starts none but, on Apple's
//! systems, one that waits for a full utun. Android, with the descriptor of `VpnService.Builder.establish()`
//! and a JNI function for each of C:
//!
//! ```c
//! static int protect(void *service, int fd) { return call_protect(service, fd) ? 0 : -1; }
//! weft_options options = { .mtu = 1280, .protect = protect, .context = service };
//! weft_interface wg;
//! if (weft_open(uapi, tun_fd, &options, &wg) != WEFT_OK) return fail(weft_last_error());
//! pthread_create(&thread, NULL, run, &wg);          // run: weft_run(wg)
//! // ConnectivityManager.NetworkCallback: weft_network_changed(wg);
//! // onRevoke, onDestroy:
//! weft_stop(wg);
//! pthread_join(thread, NULL);
//! weft_free(wg);
//! ```
//!
//! iOS, in a `NEPacketTunnelProvider`, with the descriptor of its utun and `weft.h` in the bridging header:
//!
//! ```swift
//! var options = weft_options(memory_limit: 50 << 20, mtu: 1280, protect: nil, context: nil)
//! var wg: weft_interface = 0
//! guard weft_open(uapi, tunFd, &options, &wg) == WEFT_OK.rawValue else {
//!     return completion(failure(String(cString: weft_last_error())))
//! }
//! Thread.detachNewThread { weft_run(wg); weft_free(wg) }
//! monitor.pathUpdateHandler = { _ in weft_network_changed(wg) }   // NWPathMonitor
//! // stopTunnel, and sleep if the tunnel is to end then:
//! weft_stop(wg)
//! ```
//!
//! A program without a TUN uses an [`EmbeddedTunnel`], which has sockets for connections:
//!
//! ```c
//! weft_tunnel tunnel;
//! int socket;
//! if (weft_tunnel_open(text, NULL, &tunnel) != WEFT_OK) return fail(weft_last_error());
//! if (weft_connect(tunnel, "build.internal", 443, 0, &socket) != WEFT_OK) return fail(weft_last_error());
//! ```
//!
//! Panics are caught: build the library with `panic = "unwind"`, the default.

#![cfg(unix)]
#![warn(missing_docs)]

mod c_api;
mod c_tunnel;
mod error;
mod interface;
mod log;
mod text;
mod tunnel;

pub use error::Error;
pub use interface::{Interface, MIN_MEMORY_LIMIT, Options, Protect};
pub use log::{Logger, set_logger};
pub use text::MAX_TEXT_BYTES;
pub use tunnel::{EmbeddedListener, EmbeddedTunnel};

// The mock clock of the tests stands still: with it a session would never expire.
const _: () = assert!(!weft_tunnel::MOCK_CLOCK, "weft-ffi is built with the feature `mock-instant`");
