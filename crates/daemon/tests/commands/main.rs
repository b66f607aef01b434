//! The commands that do what wg(8) does, run as programs beside wg(8) itself: against wireguard-go, weft, and
//! daemons of the tests, which write down what they are told.
//!
//! Daemons meet their clients in /var/run/wireguard. Each test has a private /var/run, in a mount namespace
//! that its thread enters, so that neither names nor sockets meet those of others.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod daemon;
mod fake_daemon;
mod programs;
mod sandbox;

mod assets;
mod conf;
mod refusals;
mod running;
mod set;
mod show;
mod strip;
