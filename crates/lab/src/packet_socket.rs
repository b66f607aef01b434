//! Packet sockets (packet(7)), for whole Ethernet frames on one link.

use std::io;

use nix::net::if_::if_nametoindex;
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};

/// Opens a packet socket on a link of the calling thread's namespace. It receives frames of this EtherType,
/// all with `ETH_P_ALL`, none with 0.
pub fn open(link: &str, ethertype: u16) -> io::Result<Socket> {
    let protocol = ethertype.to_be();
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(protocol))))?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: sockaddr_ll is the address of a packet socket.
    let address: &mut libc::sockaddr_ll = unsafe { storage.view_as() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = if_nametoindex(link)?.cast_signed();
    let len = size_of_val(address) as libc::socklen_t;
    // SAFETY: the address is complete, of its family, and as long as is said.
    socket.bind(&unsafe { SockAddr::new(storage, len) })?;
    Ok(socket)
}
