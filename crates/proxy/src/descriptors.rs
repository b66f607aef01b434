//! How the descriptors of a process are shared out: one third is for UDP, so that its sources keep no client
//! out, and clients no source.

use crate::server::{CLIENTS, Options, UDP_SOCKETS};

/// The connection of a client, and the one to its destination or the UDP socket for its datagrams.
const OF_CLIENT: usize = 2;
/// Those of the tunnel, of listening sockets and of queries for names. A small limit has a quarter for them.
const OTHERS: usize = 512;

/// Descriptors that a process needs for as much as a proxy serves.
pub const DESCRIPTORS: usize = CLIENTS * OF_CLIENT + UDP_SOCKETS + OTHERS;

impl Options {
    /// Bounds clients and UDP sockets by the descriptors that this process may have, of which this server has
    /// an equal part with the others, `servers` in all.
    #[must_use]
    pub fn within_descriptors(self, limit: usize, servers: usize) -> Self {
        let free = limit - OTHERS.min(limit / 4);
        let places = (free / (OF_CLIENT + 1) / servers.max(1)).max(1);
        Self { clients: self.clients.min(places), udp_sockets: self.udp_sockets.min(places), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_udp_together_stay_within_the_limit() {
        for (limit, places) in
            [(64, 16), (256, 64), (1024, 256), (4096, 1194), (DESCRIPTORS, 8192), (1 << 20, 8192)]
        {
            let options = Options::default().within_descriptors(limit, 1);
            assert_eq!((options.clients, options.udp_sockets), (places, places), "{limit}");
            let third = Options::default().within_descriptors(limit, 3);
            assert!(third.clients * 3 <= limit / 3 && third.udp_sockets * 3 <= limit / 3, "{limit}");
        }
        assert_eq!(Options::default().within_descriptors(0, 1).clients, 1);
    }
}
