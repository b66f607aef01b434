//! The sockets of one port: for each address family those of the platform.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use socket2::Socket;
use weft_tunnel::Transmit;

use crate::bind::{failed, local_port};
use crate::platform::{self, BoundFamily, Family, MAX_SHARDS, Sender};
use crate::{
    BindError, Descriptor, Half, RecvBuffers, SEND_BUFFER_BYTES, SendError, Sent, Udp, UdpConfig,
    UdpFeatures, UdpStats, adopt, bind, codes,
};

/// Opens the sockets of one port for a number of packet threads (*shards*), at most [`MAX_SHARDS`]: one item
/// for each, in order. Adopts sockets that passed [`crate::check_socket`] and have the port of `config`, if
/// there are any: a complete set is [`Udp::descriptors`] of each shard, in order.
///
/// The kernel gives messages with a receiver index to the shard that is the remainder of the index, in the
/// byte order in which it arrives (big endian), modulo the number of shards, if [`UdpFeatures::steered`].
/// Initiations arrive at the first shard.
///
/// The sockets are not registered with a runtime yet, so that any thread may do that.
///
/// # Errors
/// Those of [`BindError`]. If only one address family is missing, that is logged and is not an error.
pub fn open_shards(
    descriptors: Vec<Descriptor>,
    config: &UdpConfig,
    shards: usize,
) -> Result<Vec<ShardSockets>, BindError> {
    if !(1..=MAX_SHARDS).contains(&shards) {
        let limit = format!("this system allows 1 to {MAX_SHARDS}");
        let source = io::Error::new(io::ErrorKind::Unsupported, limit);
        return Err(failed(&format!("divide the UDP port among {shards} packet threads"), source));
    }
    if descriptors.is_empty() {
        let (v4, v6) = bind::bind_both(config)?;
        let port = [&v4, &v6].into_iter().flatten().find_map(|socket| local_port(socket).ok());
        let config = UdpConfig { port: port.unwrap_or_default(), ..*config };
        let (v4, v6) = (v4.into_iter().collect(), v6.into_iter().collect());
        ShardSockets::all(v4, v6, true, &config, shards)
    } else {
        let (v4, v6) = adopt::sort(descriptors, config)?;
        ShardSockets::all(v4, v6, false, config, shards)
    }
}

/// The sockets of one shard before they are registered with a runtime.
#[derive(Debug)]
pub struct ShardSockets {
    v4: Option<BoundFamily>,
    v6: Option<BoundFamily>,
    /// The requested configuration, with the port in use.
    config: UdpConfig,
    /// Number of shards that share the port.
    shards: usize,
}

impl ShardSockets {
    /// `are_own` means that this process bound the sockets, and that no other socket has the port.
    pub(crate) fn all(
        v4: Vec<Socket>,
        v6: Vec<Socket>,
        are_own: bool,
        config: &UdpConfig,
        shards: usize,
    ) -> Result<Vec<Self>, BindError> {
        let mut v4 = BoundFamily::all(v4, false, are_own, shards, config)?.into_iter();
        let mut v6 = BoundFamily::all(v6, true, are_own, shards, config)?.into_iter();
        let each = (0..shards).map(|_| Self { v4: v4.next(), v6: v6.next(), config: *config, shards });
        Ok(each.collect())
    }

    /// Registers the sockets. Must be called within a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Those of [`BindError`].
    pub fn register(self) -> Result<UdpSockets, BindError> {
        let Self { v4, v6, config, shards } = self;
        let v4 = v4.map(Family::register).transpose()?;
        let v6 = v6.map(Family::register).transpose()?;
        let gso = config.gso && [&v4, &v6].into_iter().flatten().all(|family| family.first().knows_gso());
        let sender = platform::sender(gso, config.path_mtu);
        Ok(UdpSockets { v4, v6, config, shards, v6_first: false, sender, stats: UdpStats::default() })
    }

    /// Returns the port in use.
    pub fn port(&self) -> u16 {
        self.config.port
    }
}

/// Sockets for IPv4 and for IPv6 on one port, or for one family if the machine lacks the other. If several
/// packet threads share the port, these are the sockets of one of them.
#[derive(Debug)]
pub struct UdpSockets {
    pub(crate) v4: Option<Family>,
    pub(crate) v6: Option<Family>,
    /// The requested configuration, with the port in use.
    config: UdpConfig,
    /// Number of shards that share the port.
    shards: usize,
    /// Whether the next receive call polls IPv6 first. The families alternate, so that neither starves.
    v6_first: bool,
    pub(crate) sender: Sender,
    stats: UdpStats,
}

impl UdpSockets {
    /// Opens the sockets on all addresses. Must be called within a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Those of [`BindError`]. If only one address family is missing, that is logged and is not an error.
    pub fn bind(config: &UdpConfig) -> Result<Self, BindError> {
        Self::adopt(Vec::new(), config)
    }

    /// Adopts sockets that passed [`super::check_socket`] and have the port of `config`. Opens new sockets if
    /// `descriptors` is empty. Must be called within a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Those of [`BindError`].
    pub fn adopt(descriptors: Vec<Descriptor>, config: &UdpConfig) -> Result<Self, BindError> {
        open_shards(descriptors, config, 1)?.remove(0).register()
    }

    fn set_mark(&mut self, fwmark: u32) -> Result<(), BindError> {
        if let Err(error) = self.families().try_for_each(|family| family.set_mark(fwmark)) {
            // The previous mark could be set before, so it can be set again.
            let _ = self.families().try_for_each(|family| family.set_mark(self.config.fwmark));
            return Err(error);
        }
        self.config.fwmark = fwmark;
        Ok(())
    }

    fn families(&self) -> impl Iterator<Item = &Family> {
        [&self.v4, &self.v6].into_iter().flatten()
    }

    fn families_mut(&mut self) -> impl Iterator<Item = &mut Family> {
        [&mut self.v4, &mut self.v6].into_iter().flatten()
    }

    /// Receives from both families with `poll`. The families alternate in being first, so that neither
    /// starves.
    fn poll_families(
        &mut self,
        buffers: &mut RecvBuffers,
        mut poll: impl FnMut(&Family, &mut RecvBuffers, &mut UdpStats) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if buffers.room() == 0 {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        }
        let mut filled = 0;
        for is_v6 in [self.v6_first, !self.v6_first] {
            let family = if is_v6 { &self.v6 } else { &self.v4 };
            let Some(family) = family.as_ref().filter(|_| buffers.room() > 0) else { continue };
            match poll(family, buffers, &mut self.stats) {
                Poll::Ready(Ok(more)) => filled += more,
                Poll::Ready(Err(error)) if filled == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => tracing::debug!(%error, "cannot receive"),
                Poll::Pending => {}
            }
        }
        if filled == 0 {
            return Poll::Pending;
        }
        self.v6_first = !self.v6_first;
        Poll::Ready(Ok(filled))
    }
}

impl Udp for UdpSockets {
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        let family = match transmit.destination {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(_) => &self.v6,
        };
        let Some(family) = family else {
            let error = io::Error::from_raw_os_error(codes::EAFNOSUPPORT);
            return Poll::Ready(Err(SendError::Failed(error)));
        };
        self.sender.poll_send(cx, family.first(), transmit, &mut self.stats)
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        self.poll_families(buffers, |family, buffers, stats| family.poll_recv(cx, buffers, stats))
    }

    fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
    ) -> Poll<io::Result<usize>> {
        self.poll_families(buffers, |family, buffers, stats| family.poll_recv_handshakes(cx, buffers, stats))
    }

    fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        self.families_mut().fold(false, |is_filtering, family| family.let_pass(receivers) | is_filtering)
    }

    fn let_half_ask(&mut self, half: Option<Half>) {
        self.families_mut().for_each(|family| family.let_half_ask(half));
    }

    fn rebind(&mut self, port: Option<u16>, fwmark: Option<u32>) -> Result<u16, BindError> {
        let config = UdpConfig {
            port: port.unwrap_or(self.config.port),
            fwmark: fwmark.unwrap_or(self.config.fwmark),
            ..self.config
        };
        if port.is_some_and(|port| port != self.config.port) {
            if self.shards > 1 {
                let source = io::Error::new(io::ErrorKind::Unsupported, "other packet threads share it");
                return Err(failed("change the UDP port of one packet thread", source));
            }
            self.replace(open_shards(Vec::new(), &config, 1)?.remove(0))?;
        } else if config.fwmark != self.config.fwmark {
            self.set_mark(config.fwmark)?;
        }
        Ok(self.config.port)
    }

    fn replace(&mut self, sockets: ShardSockets) -> Result<(), BindError> {
        // Unread datagrams of the old sockets are lost, like those that arrive there a moment later.
        let mut sockets = sockets.register()?;
        sockets.stats = self.stats();
        *self = sockets;
        Ok(())
    }

    fn descriptors(&self) -> io::Result<Vec<Descriptor>> {
        let each = self.families().map(Family::descriptors);
        Ok(each.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn features(&self) -> UdpFeatures {
        let smallest = |bytes: fn(&_) -> u64| self.families().map(bytes).min().unwrap_or_default();
        UdpFeatures {
            gso: self.sender.uses_gso(),
            gro: self.families().all(Family::joins_datagrams),
            steered: self.shards == 1 || self.families().all(Family::is_steered),
            receive_buffer_bytes: smallest(Family::receive_buffer_bytes),
            send_buffer_bytes: smallest(Family::send_buffer_bytes),
            wanted_receive_buffer_bytes: self.config.receive_buffer_bytes as u64,
            wanted_send_buffer_bytes: SEND_BUFFER_BYTES,
        }
    }

    fn port(&self) -> u16 {
        self.config.port
    }

    fn junk_of_all(&self) -> u64 {
        self.families().map(Family::junk_of_all).sum()
    }

    fn stats(&self) -> UdpStats {
        let overflows: u64 = self.families().map(Family::overflows).sum();
        let junk: u64 = self.families().map(Family::junk_dropped).sum();
        UdpStats {
            receive_overflows: self.stats.receive_overflows + overflows,
            junk_dropped: self.stats.junk_dropped + junk,
            ..self.stats
        }
    }
}
