//! Finds the route to an address with a socket that is connected to it and never sends, on systems
//! that do not route by marks.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use super::Way;

/// Returns the route that the routing table chooses to an address. The mark does not matter here, and the MTU
/// of the route is not known.
///
/// # Errors
/// There is no route.
pub fn way_to(destination: SocketAddr, _: u32) -> io::Result<Way> {
    let unspecified: SocketAddr =
        if destination.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(unspecified)?;
    socket.connect(destination)?;
    Ok(Way { source: socket.local_addr()?.ip(), mtu: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_this_machine_is_from_this_machine() {
        let way = way_to("127.0.0.1:9".parse().unwrap(), 0).unwrap();
        assert_eq!(way, Way { source: "127.0.0.1".parse().unwrap(), mtu: None });
    }
}
