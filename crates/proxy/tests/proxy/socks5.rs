//! SOCKS5, with clients of the tests.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use weft_proxy::{LocalAddress, Options};

use crate::support::*;

fn options() -> Options {
    Options { socks5: vec!["127.0.0.1:1080".parse().unwrap()], ..Options::default() }
}

const PROXY: &str = "127.0.0.1:1080";

#[test]
fn a_client_reaches_both_families_and_nothing_is_changed() {
    let Some(lab) = Lab::new() else { return };
    let running = lab.proxy(options());
    lab.client(async || {
        for (seed, host) in [(1, FAR_V4), (2, FAR_V6)] {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            let (code, bound) = socks5_request(&mut stream, 1, host, ECHO).await;
            assert_eq!((code, bound.is_ipv6()), (0, host == FAR_V6));
            assert!(["10.9.0.2", "fd09::2"].contains(&bound.ip().to_string().as_str()), "{bound}");
            check_echo(stream, seed, 10_000_000).await;
        }
    });
    let stats = running.tunnel.stats();
    assert_eq!((stats.connected, stats.failed), (2, 0));
}

#[test]
fn five_hundred_and_twelve_connections_at_once_get_their_own_content() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    lab.client(async || {
        let mut clients = JoinSet::new();
        for seed in 0..512 {
            clients.spawn(async move {
                let host = if seed % 2 == 0 { FAR_V4 } else { FAR_V6 };
                let stream = socks5_connect(PROXY, host, ECHO).await.unwrap();
                check_echo(stream, seed, 100_000).await;
            });
        }
        clients.join_all().await;
    });
}

#[test]
fn each_refusal_has_its_code() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    lab.client(async || {
        for (host, port, code) in [
            (FAR_V4, 9, 5),
            (ELSEWHERE, ECHO, 2),
            ("127.0.0.1", ECHO, 2),
            ("localhost", ECHO, 2),
            ("::ffff:127.0.0.1", ECHO, 2),
            ("0.0.0.0", ECHO, 2),
            ("www.example", 80, 1),
            ("no/name", 80, 4),
            (FAR_V4, 0, 1),
        ] {
            assert_eq!(socks5_connect(PROXY, host, port).await.unwrap_err(), code, "{host}:{port}");
        }
        // BIND, which this proxy does not have.
        let mut stream = TcpStream::connect(PROXY).await.unwrap();
        assert_eq!(socks5_request(&mut stream, 2, FAR_V4, ECHO).await.0, 7);
        // The connection ends after a refusal.
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        // An address type that there is not.
        let mut stream = TcpStream::connect(PROXY).await.unwrap();
        stream.write_all(&[5, 1, 0, 5, 1, 0, 9]).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        assert_eq!(reply, [5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0]);
        // Another protocol, and another version: no answer.
        for request in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[4, 1, 0, 80, 10, 9, 0, 1, 0]] {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(request).await.unwrap();
            let mut reply = Vec::new();
            // A reset: the proxy has not read all that was sent.
            let _ = stream.read_to_end(&mut reply).await;
            assert_eq!(reply, []);
        }
    });
}

#[test]
fn what_is_not_in_the_tunnel_goes_direct_only_if_allowed_and_not_to_this_machine() {
    let Some(lab) = Lab::new() else { return };
    let direct = Some(vec![format!("{ELSEWHERE}/32").parse().unwrap()]);
    let setting = Setting { options: options(), direct, ..Setting::default() };
    let running = lab.start(setting).unwrap();
    let socks5 = vec!["127.0.0.1:1081".parse().unwrap()];
    let options = Options { socks5, ..Options::default() };
    // ELSEWHERE is an address of this machine, that was not allowed by name.
    let _other = lab.start(Setting { options, direct: Some(vec![]), ..Setting::default() }).unwrap();
    lab.client(async || {
        for own in
            [ELSEWHERE, "::ffff:198.51.100.1", "64:ff9b::c633:6401", "169.254.169.254", "fe80::1", "::1"]
        {
            let refused = socks5_connect("127.0.0.1:1081", own, ECHO).await;
            assert_eq!(refused.unwrap_err(), 2, "{own}");
        }
        let mut control = TcpStream::connect("127.0.0.1:1081").await.unwrap();
        let (_, relay) = socks5_request(&mut control, 3, "0.0.0.0", 0).await;
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&datagram(ELSEWHERE, ECHO, b"own"), relay).await.unwrap();
        let far = datagram(FAR_V4, ECHO, b"far");
        socket.send_to(&far, relay).await.unwrap();
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).await.unwrap();
        assert_eq!(buffer[..len], far, "an address of this machine answered");
        check_echo(socks5_connect(PROXY, ELSEWHERE, ECHO).await.unwrap(), 1, 100_000).await;
        assert_eq!(socks5_connect(PROXY, "127.0.0.1", ECHO).await.unwrap_err(), 2);
        assert_eq!(running.tunnel.stats().connected, 0);
        check_echo(socks5_connect(PROXY, FAR_V4, ECHO).await.unwrap(), 1, 100_000).await;
        assert_eq!(running.tunnel.stats().connected, 1);
    });
}

fn with_password() -> (tempfile::TempDir, Options) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    std::fs::write(&path, "ann:secret\n").unwrap();
    let users = Some(weft_proxy::Users::read(&path).unwrap());
    (dir, Options { users, ..options() })
}

#[test]
fn only_a_user_with_the_right_password_comes_in() {
    let Some(lab) = Lab::new() else { return };
    let (_dir, options) = with_password();
    let _running = lab.proxy(options);
    lab.client(async || {
        for (sent, expected) in [
            (&b"\x05\x01\x00"[..], &b"\x05\xff"[..]),
            (b"\x05\x00", b"\x05\xff"),
            (b"\x05\x02\x00\x02\x01\x03ann\x05wrong", b"\x05\x02\x01\x01"),
            (b"\x05\x01\x02\x01\x00\x00", b"\x05\x02\x01\x01"),
            (b"\x05\x01\x02\x01\x0aann:secret\x00", b"\x05\x02\x01\x01"),
        ] {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(sent).await.unwrap();
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply).await.unwrap();
            assert_eq!(reply, expected, "{sent:?}");
        }
        let mut stream = TcpStream::connect(PROXY).await.unwrap();
        stream.write_all(b"\x05\x02\x00\x02\x01\x03ann\x06secret").await.unwrap();
        stream.write_all(&[&[5, 1, 0], &socks5_address(FAR_V4, ECHO)[..]].concat()).await.unwrap();
        let mut reply = [0; 2 + 2 + 10];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply[..5], [5, 2, 1, 0, 5]);
        check_echo(stream, 1, 100_000).await;
    });
}

#[test]
fn half_a_request_ends_after_its_time_and_idle_clients_give_way() {
    let Some(lab) = Lab::new() else { return };
    let half = Options { request_timeout: Duration::from_millis(200), ..options() };
    let running = lab.proxy(half);
    lab.client(async || {
        for half in [&b""[..], b"\x05", b"\x05\x01\x00", b"\x05\x01\x00\x05\x01\x00\x03\xffabc"] {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(half).await.unwrap();
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply).await.unwrap();
            assert!(reply.is_empty() || reply == [5, 0], "{reply:?}");
        }
    });
    drop(running);
    let few = Options {
        clients: 64,
        request_timeout: Duration::from_secs(3600),
        socks5: vec!["127.0.0.1:1081".parse().unwrap()],
        ..Options::default()
    };
    let _running = lab.proxy(few);
    lab.client(async || {
        let busy = socks5_connect("127.0.0.1:1081", FAR_V4, ECHO).await.unwrap();
        let mut idle = Vec::new();
        for _ in 0..1000 {
            idle.push(TcpStream::connect("127.0.0.1:1081").await.unwrap());
        }
        check_echo(socks5_connect("127.0.0.1:1081", FAR_V4, ECHO).await.unwrap(), 1, 100_000).await;
        // The first ones were disconnected, a client with a connection was not.
        assert_eq!(idle[0].read(&mut [0]).await.unwrap_or(0), 0);
        check_echo(busy, 2, 100_000).await;
    });
}

#[test]
fn ten_thousand_idle_clients_take_little_and_keep_no_client_out() {
    const IDLE: usize = 10_000;
    const NAME: &str = "socks5::ten_thousand_idle_clients_take_little_and_keep_no_client_out";
    if !is_alone(NAME) {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < 2 * IDLE as u64) {
        return weft_lab::here::not_run("a process may open too few descriptors");
    }
    let more = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, more).unwrap();
    let options = Options { clients: 1024, request_timeout: Duration::from_secs(3600), ..options() };
    let _running = lab.proxy(options);
    lab.client(async || {
        let busy = socks5_connect(PROXY, FAR_V4, ECHO).await.unwrap();
        let before = resident_bytes();
        let mut idle = Vec::new();
        for _ in 0..IDLE {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(&[5]).await.unwrap();
            idle.push(stream);
        }
        check_echo(socks5_connect(PROXY, FAR_V4, ECHO).await.unwrap(), 1, 100_000).await;
        let taken = resident_bytes().saturating_sub(before);
        assert!(taken < 64 << 20, "{taken} bytes");
        check_echo(busy, 2, 100_000).await;
    });
}

#[test]
fn associations_have_a_part_of_the_sockets_and_clients_without_one_are_served() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(Options { udp_sockets: 3, ..options() });
    lab.client(async || {
        let (first, relay) = associate(0).await;
        let _second = associate(0).await;
        let ask = async || {
            let mut control = TcpStream::connect(PROXY).await.unwrap();
            (socks5_request(&mut control, 3, "0.0.0.0", 0).await.0, control)
        };
        assert_eq!(ask().await.0, 1, "a third one leaves nothing for forwards");
        check_echo(socks5_connect(PROXY, FAR_V4, ECHO).await.unwrap(), 1, 100_000).await;
        // The first one has a socket for one family.
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for host in [FAR_V4, FAR_V6, FAR_V4] {
            socket.send_to(&datagram(host, ECHO, b"hello"), relay).await.unwrap();
        }
        let mut buffer = [0; 64];
        for _ in 0..2 {
            let len = socket.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[..len], datagram(FAR_V4, ECHO, b"hello"));
        }
        drop(first);
        // Its place is free once the proxy has seen that it ended.
        while ask().await.0 != 0 {}
    });
}

/// Returns the memory that this process has (proc_pid_statm(5)).
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn the_end_of_one_direction_is_passed_on_and_the_other_continues() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    let listener = lab.far.run(|| std::net::TcpListener::bind("10.9.0.1:2000").unwrap());
    lab.client(async || {
        let mut client = socks5_connect(PROXY, FAR_V4, 2000).await.unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut server = TcpStream::from_std(server).unwrap();
        let mut buffer = [0; 16];
        // The server ends first, and still receives.
        server.write_all(b"hello").await.unwrap();
        server.shutdown().await.unwrap();
        assert_eq!(client.read(&mut buffer).await.unwrap(), 5);
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
        client.write_all(b"answer").await.unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 6);
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
    });
}

#[test]
fn a_reset_is_passed_on_as_a_reset_in_both_directions() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    let listener = lab.far.run(|| std::net::TcpListener::bind("10.9.0.1:2000").unwrap());
    let reset = |stream: TcpStream| {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    };
    lab.client(async || {
        for client_resets in [false, true] {
            let mut client = socks5_connect(PROXY, FAR_V4, 2000).await.unwrap();
            let (server, _) = listener.accept().unwrap();
            server.set_nonblocking(true).unwrap();
            let mut server = TcpStream::from_std(server).unwrap();
            client.write_all(b"x").await.unwrap();
            server.read_exact(&mut [0]).await.unwrap();
            let mut other = if client_resets {
                reset(client);
                server
            } else {
                reset(server);
                client
            };
            let error = other.read(&mut [0]).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "client: {client_resets}");
        }
    });
}

/// Asks for an association. Returns the connection that it lives by, and the address for datagrams.
async fn associate(port: u16) -> (TcpStream, SocketAddr) {
    let mut control = TcpStream::connect(PROXY).await.unwrap();
    let (code, relay) = socks5_request(&mut control, 3, "0.0.0.0", port).await;
    assert_eq!((code, relay.ip().to_string().as_str()), (0, "127.0.0.1"));
    (control, relay)
}

fn datagram(host: &str, port: u16, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, 0], &socks5_address(host, port)[..], payload].concat()
}

#[test]
fn datagrams_go_to_any_destination_and_back() {
    let Some(lab) = Lab::new() else { return };
    let running = lab.proxy(options());
    lab.client(async || {
        let (control, relay) = associate(0).await;
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut buffer = vec![0; 65_536];
        for host in [FAR_V4, FAR_V6] {
            for len in [0, 1, 1472, 9000, 65_000] {
                let sent = datagram(host, ECHO, &vec![len as u8; len]);
                socket.send_to(&sent, relay).await.unwrap();
                let (got, from) = socket.recv_from(&mut buffer).await.unwrap();
                assert_eq!((from, buffer[..got] == sent), (relay, true), "{host} {len}");
            }
        }
        // One socket for each family.
        assert_eq!(running.tunnel.stats().udp_sockets, 2);
        // What is malformed, a fragment, or not for the tunnel is dropped; the next datagram goes on.
        let mut fragment = datagram(FAR_V4, ECHO, b"x");
        fragment[2] = 1;
        for dropped in [&b""[..], b"\0\0\0\x01", &fragment, &datagram(ELSEWHERE, ECHO, b"x")] {
            socket.send_to(dropped, relay).await.unwrap();
        }
        let good = datagram(FAR_V4, ECHO, b"good");
        // Another process on the host does not use the association.
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        stranger.send_to(&datagram(FAR_V4, ECHO, b"stranger"), relay).await.unwrap();
        socket.send_to(&good, relay).await.unwrap();
        let (got, _) = socket.recv_from(&mut buffer).await.unwrap();
        assert_eq!(buffer[..got], good);
        // It ends with its connection: the port answers no more.
        drop(control);
        socket.connect(relay).await.unwrap();
        loop {
            let sent = socket.send(&good).await;
            let closed = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
            if sent.is_err_and(closed) {
                break;
            }
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn another_user_of_the_machine_does_not_take_an_association() {
    const OTHER: u32 = 65_534;
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    lab.client(async || {
        for is_announced in [false, true] {
            for is_closed in [false, true] {
                let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                let port = if is_announced { socket.local_addr().unwrap().port() } else { 0 };
                let (_control, relay) = associate(port).await;
                let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                if std::os::unix::fs::fchown(&other, Some(OTHER), None).is_err() {
                    return weft_lab::here::not_run("a socket cannot be given to another user");
                }
                other.send_to(&datagram(FAR_V4, ECHO, b"other"), relay).await.unwrap();
                if is_closed {
                    drop(other);
                }
                let sent = datagram(FAR_V4, ECHO, b"own");
                socket.send_to(&sent, relay).await.unwrap();
                let mut buffer = [0; 64];
                let len = socket.recv(&mut buffer).await.unwrap();
                assert_eq!(buffer[..len], sent);
                // As if the client had closed its socket, and another user had the port now.
                std::os::unix::fs::fchown(&socket, Some(OTHER), None).unwrap();
                let mut is_answered = true;
                for _ in 0..60 {
                    socket.send_to(&sent, relay).await.unwrap();
                    let answer = timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await;
                    is_answered = answer.is_ok();
                    if !is_answered {
                        break;
                    }
                    sleep(Duration::from_millis(100)).await;
                }
                assert!(!is_answered, "another user has the association");
            }
        }
    });
}

#[test]
fn another_address_or_port_than_the_client_has_named_does_not_take_an_association() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    lab.client(async || {
        for (is_announced, stranger) in [(false, "127.0.0.2:0"), (true, "127.0.0.1:0")] {
            let [socket, stranger] = ["127.0.0.1:0", stranger].map(UdpSocket::bind);
            let (socket, stranger) = (socket.await.unwrap(), stranger.await.unwrap());
            let port = if is_announced { socket.local_addr().unwrap().port() } else { 0 };
            let (_control, relay) = associate(port).await;
            // The first datagram that is let in settles who uses it.
            stranger.send_to(&datagram(FAR_V4, ECHO, b"stranger"), relay).await.unwrap();
            let own = datagram(FAR_V4, ECHO, b"own");
            let mut buffer = [0; 64];
            socket.send_to(&own, relay).await.unwrap();
            let answer = timeout(Duration::from_secs(60), socket.recv(&mut buffer)).await;
            let len = answer.expect("an answer for the client").unwrap();
            assert_eq!(buffer[..len], own, "announced: {is_announced}");
        }
    });
}

#[test]
fn datagrams_of_a_client_on_a_link_keep_their_zone() {
    let Some(lab) = Lab::new() else { return };
    weft_lab::link::add_address(&lab.host, "lo", "fe80::9/64".parse().unwrap()).unwrap();
    // The loopback device has the index 1.
    let proxy: SocketAddr = "[fe80::9%1]:1080".parse().unwrap();
    let socks5 = vec![LocalAddress::Ip(proxy)];
    let _running = lab.proxy(Options { socks5, allow_anyone: true, ..Options::default() });
    lab.client(async || {
        for is_announced in [false, true] {
            let socket = UdpSocket::bind("[fe80::9%1]:0").await.unwrap();
            // The kernel makes the route of a new address a moment later.
            let mut control = loop {
                match TcpStream::connect(proxy).await {
                    Err(error) if error.kind() == std::io::ErrorKind::NetworkUnreachable => {
                        sleep(Duration::from_millis(10)).await;
                    }
                    connected => break connected.unwrap(),
                }
            };
            let port = if is_announced { socket.local_addr().unwrap().port() } else { 0 };
            let (code, mut relay) = socks5_request(&mut control, 3, "::", port).await;
            assert_eq!((code, relay.ip()), (0, proxy.ip()));
            // SOCKS5 has no zones: the client knows its own.
            if let SocketAddr::V6(relay) = &mut relay {
                relay.set_scope_id(1);
            }
            let sent = datagram(FAR_V4, ECHO, b"of a link");
            socket.send_to(&sent, relay).await.unwrap();
            let mut buffer = [0; 64];
            let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..len], from), (&sent[..], relay));
        }
    });
}

#[test]
fn only_a_destination_that_was_sent_to_may_answer() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    let (known, stranger) = lab.far.run(|| {
        let bind = |at| std::net::UdpSocket::bind(at).unwrap();
        (bind("10.9.0.1:3000"), bind("10.9.0.1:3001"))
    });
    lab.client(async || {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (_control, relay) = associate(socket.local_addr().unwrap().port()).await;
        socket.send_to(&datagram(FAR_V4, 3000, b"ask"), relay).await.unwrap();
        let mut buffer = [0; 64];
        let (_, mapped) = known.recv_from(&mut buffer).unwrap();
        stranger.send_to(b"stranger", mapped).unwrap();
        known.send_to(b"answer", mapped).unwrap();
        let len = socket.recv(&mut buffer).await.unwrap();
        assert_eq!(buffer[..len], datagram(FAR_V4, 3000, b"answer"));
    });
}
