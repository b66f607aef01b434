//! TCP (RFC 9293). A segment goes through `input`, the application's calls through `application`, and
//! everything that is sent through `output`.

mod application;
pub(crate) mod connection;
mod ecn;
pub(crate) mod handshake;
mod input;
mod output;
mod rack;
mod receive_queue;
mod recovery;
mod reduction;
mod rtt;
mod scoreboard;
mod send_queue;
pub(crate) mod sequence;
mod timeout;

pub(crate) use connection::Connection;
pub(crate) use handshake::Handshake;
pub(crate) use output::Transmitted;
