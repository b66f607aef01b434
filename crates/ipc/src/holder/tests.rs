use std::net::{TcpListener, UdpSocket};

use super::*;

#[test]
fn a_port_and_a_socket_are_those_of_the_process_that_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    let udp = UdpSocket::bind("[::]:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = crate::listener::listen(&path, 0o700).unwrap();
    let (port, address) = (udp.local_addr().unwrap().port(), tcp.local_addr().unwrap());
    let any = SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), address.port());
    let of_another_address = SocketAddr::new([127, 0, 0, 2].into(), address.port());
    let held = [Held::Udp(port), Held::Tcp(address), Held::Tcp(any), Held::Socket(&path)];
    for held in held {
        let holder = Holder::of(held);
        assert!(
            matches!(holder, Holder::Process { id, .. } if id == std::process::id()),
            "{held:?}: {holder:?}"
        );
        assert!(holder.to_string().starts_with(&format!(" (process {}, ", std::process::id())), "{holder}");
    }
    assert_eq!(Holder::of(Held::Tcp(of_another_address)), Holder::Unknown);
    assert_eq!(Holder::of(Held::Udp(0)), Holder::Unknown);
    assert_eq!(Holder::of(Held::Device("weft-none")), Holder::Unknown);
    // A client keeps no address.
    let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    drop((udp, tcp, unix));
    for held in held {
        // A child that another test has just forked may still hold it.
        while Holder::of(held) != Holder::Unknown {
            std::thread::yield_now();
        }
    }
    drop(client);
}
