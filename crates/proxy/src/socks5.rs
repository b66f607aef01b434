//! SOCKS5 (RFC 1928) with passwords (RFC 1929): CONNECT and UDP ASSOCIATE.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;
use weft_ipc::Place;

use crate::destination::Destination;
use crate::gone::unless_gone;
use crate::moves::Moves;
use crate::proxy::Proxy;
use crate::reach::ReachError;
use crate::relay::relay;
use message::{Command, HandshakeError, Reply};
use weft_network::{Connection, LookUpError};

mod associate;
mod message;

/// Serves a client until its connection or its association ends.
pub(crate) async fn serve(mut client: Box<dyn Connection>, place: &Arc<Place>, proxy: &Proxy) {
    let request = message::handshake(&mut *client, proxy, place);
    let handshake = timeout(proxy.request_timeout, request).await.unwrap_or(Err(HandshakeError::Late));
    if handshake.is_ok() {
        place.begin_serving();
    }
    let served = match handshake {
        Ok((Command::Connect, host, port)) => match Destination::with_host(host, port) {
            Ok(destination) => connect(client, place, proxy, &destination).await,
            Err(_) => refuse(client, Reply::GeneralFailure).await,
        },
        Ok((Command::Associate, host, port)) => associate::serve(client, place, proxy, &host, port).await,
        Err(error) => {
            match error {
                HandshakeError::Late | HandshakeError::Io(_) => {
                    tracing::debug!(peer = ?client.peer_addr(), "a SOCKS5 client is turned away: {error}");
                }
                _ => proxy.refusals.report("a client of the SOCKS5 port", &error),
            }
            match error.reply() {
                Some(reply) => refuse(client, reply).await,
                None => client.shutdown().await,
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!("a SOCKS5 client has gone: {error}");
    }
}

async fn connect(
    mut client: Box<dyn Connection>,
    place: &Arc<Place>,
    proxy: &Proxy,
    to: &Destination,
) -> io::Result<()> {
    let Some(opened) = unless_gone(client.ended(), proxy.reach.connect(to)).await else { return Ok(()) };
    match opened {
        Ok(remote) => {
            client.write_all(&Reply::Succeeded.with(remote.local_addr())).await?;
            let remote = Moves::of_remote(remote, place);
            relay(client, remote, Vec::new(), &proxy.relayed).await.1
        }
        Err(error) => {
            proxy.refusals.report("a SOCKS5 client", &error);
            refuse(client, Reply::from(&error)).await
        }
    }
}

async fn refuse(mut client: Box<dyn Connection>, reply: Reply) -> io::Result<()> {
    client.write_all(&reply.with(None)).await?;
    client.shutdown().await
}

impl From<&ReachError> for Reply {
    fn from(error: &ReachError) -> Self {
        match error {
            ReachError::Outside(_) | ReachError::Own(_) | ReachError::Near(..) => Self::NotAllowed,
            ReachError::Name(LookUpError::NoServers { .. }) => Self::GeneralFailure,
            ReachError::Name(_) => Self::HostUnreachable,
            // "TTL expired" is what the field answers for a destination that is silent.
            ReachError::Silent(_) => Self::TtlExpired,
            ReachError::Connect(_, error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
                io::ErrorKind::NetworkUnreachable => Self::NetworkUnreachable,
                io::ErrorKind::HostUnreachable => Self::HostUnreachable,
                io::ErrorKind::TimedOut => Self::TtlExpired,
                _ => Self::GeneralFailure,
            },
        }
    }
}
