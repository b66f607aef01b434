//! Lets a socket take only what comes out of the tunnel.
//!
//! SO_BINDTODEVICE alone lets in what this machine sends to itself: a local user may bind a socket to the
//! same device, and the kernel then takes its packets for those of the device although they go through `lo`.

use std::io;

use nix::net::if_::if_nametoindex;
use socket2::{SockFilter, Socket};

/// Where a classic filter finds the index of the device that handed the packet in (`linux/filter.h`).
const DEVICE_INDEX: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Binds the socket to a device, and drops every packet that another one hands in. Call it before the socket
/// is bound to an address. Connections that it accepts do the same.
pub(crate) fn only(socket: &Socket, device: &str) -> io::Result<()> {
    let index = if_nametoindex(device)?;
    socket.attach_filter(&[
        SockFilter::new(LOAD, 0, 0, DEVICE_INDEX),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, index),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ])?;
    socket.bind_device(Some(device.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use socket2::{Domain, Type};
    use weft_lab::link::{self, LinkOptions};
    use weft_lab::{Namespace, here};

    use super::*;

    /// How long a connection may take that is let in, and one that is not is waited for.
    const A_WHILE: Duration = Duration::from_secs(1);

    /// `near` 10.9.0.1 and fd09::1, `far` 10.9.0.2 and fd09::2, joined by a veth. `far` is also the machine
    /// of the local user, who binds to the device or not.
    #[test]
    fn local_users_are_not_let_in_whatever_they_bind_to() {
        if !here::namespaces_permitted() {
            return;
        }
        let [near, far] = ["near", "far"].map(|name| Namespace::new(name).unwrap());
        let options = LinkOptions {
            addresses_a: vec!["10.9.0.1/24".parse().unwrap(), "fd09::1/64".parse().unwrap()],
            addresses_b: vec!["10.9.0.2/24".parse().unwrap(), "fd09::2/64".parse().unwrap()],
            ..LinkOptions::default()
        };
        link::join(&near, &far, &options).unwrap();
        link::set_up(&far, "lo").unwrap();
        for address in ["10.9.0.2:7", "[fd09::2]:7"] {
            let address: SocketAddr = address.parse().unwrap();
            let open = |kind: Type| {
                let socket = Socket::new(Domain::for_address(address), kind, None).unwrap();
                only(&socket, "eth0").unwrap();
                socket.bind(&address.into()).unwrap();
                socket
            };
            let (listener, receiver) = far.run(|| (open(Type::STREAM), open(Type::DGRAM)));
            listener.listen(8).unwrap();
            let connect = |device: Option<&str>, kind: Type| {
                let socket = Socket::new(Domain::for_address(address), kind, None).unwrap();
                socket.bind_device(device.map(str::as_bytes)).unwrap();
                socket.connect_timeout(&address.into(), A_WHILE).map(|()| socket)
            };
            for device in [None, Some("eth0"), Some("lo")] {
                let connected = far.run(|| connect(device, Type::STREAM));
                assert!(connected.is_err(), "{address} by {device:?}: {connected:?}");
                // To send succeeds; what is sent is dropped, or refused.
                let _ = far.run(|| connect(device, Type::DGRAM).and_then(|socket| socket.send(b"local")));
            }
            let connected = near.run(|| connect(None, Type::STREAM)).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            connected.send(b"from the device").unwrap();
            let mut received = [std::mem::MaybeUninit::uninit(); 32];
            assert_eq!(accepted.recv(&mut received).unwrap(), 15);
            near.run(|| connect(None, Type::DGRAM)).unwrap().send(b"from the device").unwrap();
            let receiver = UdpSocket::from(receiver);
            let mut received = [0; 32];
            assert_eq!(receiver.recv(&mut received).unwrap(), 15, "{received:?}");
        }
    }
}
