//! Forwards in both directions, and how a proxy is refused.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UdpSocket, UnixListener, UnixStream};
use tokio::time::timeout;
use weft_lab::link::{self, LinkOptions};
use weft_lab::traffic::{Amount, TcpReceiver, TcpSenders};
use weft_proxy::{Forward, LocalAddress, Options, Reverse};

use crate::support::*;

fn forwards(texts: &[&str]) -> Options {
    let forwards: Vec<Forward> = texts.iter().map(|text| text.parse().unwrap()).collect();
    Options { forwards, ..Options::default() }
}

fn reverses(texts: &[&str]) -> Options {
    let reverses: Vec<Reverse> = texts.iter().map(|text| text.parse().unwrap()).collect();
    Options { reverses, ..Options::default() }
}

#[test]
fn what_others_can_use_without_a_password_is_told() {
    let at = |text: &str| vec![text.parse::<LocalAddress>().unwrap()];
    let told = |options: Options| options.open_to_others().join("\n");
    let local = Options { socks5: at("1080"), http: at("[::1]:3128"), ..forwards(&["udp:53=10.9.0.1:53"]) };
    let text = told(local);
    assert!(
        text.starts_with(
            "SOCKS5 on 127.0.0.1:1080, HTTP on [::1]:3128, a forward on 127.0.0.1:53: every user of this machine"
        ),
        "{text}"
    );
    let text = told(Options { socks5: at("0.0.0.0:1080"), http: at("3128"), ..Options::default() });
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("HTTP on 127.0.0.1:3128: every user of this machine can"), "{text}");
    assert!(lines[1].starts_with("SOCKS5 on 0.0.0.0:1080: every machine that reaches them, and"), "{text}");
    // Sockets of this user alone, what asks for a password, and what peers of the tunnel reach.
    assert_eq!(told(Options { socks5: at("./socks"), ..reverses(&["80=3000"]) }), "");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("users"), "ann:secret\n").unwrap();
    let users = Some(weft_proxy::Users::read(&dir.path().join("users")).unwrap());
    assert_eq!(told(Options { socks5: at("0.0.0.0:1080"), users, ..Options::default() }), "");
}

#[test]
fn a_forward_carries_512_connections_at_once_and_loses_nothing() {
    let Some(lab) = Lab::new() else { return };
    let receiver = lab.far.run(|| TcpReceiver::listen("10.9.0.1:2000".parse().unwrap()).unwrap());
    let _running = lab.proxy(forwards(&["8000=10.9.0.1:2000"]));
    let to = "127.0.0.1:8000".parse().unwrap();
    let senders = TcpSenders::start(&lab.host, to, 512, Amount::Count(200_000), 1).unwrap();
    for flow in senders.finish() {
        assert!(flow.error.is_none() && flow.confirmed == 200_000, "{flow:?}");
    }
    let received = receiver.finish();
    assert_eq!(received.len(), 512);
    for flow in received {
        assert!(flow.error.is_none() && flow.first_mismatch.is_none() && flow.bytes == 200_000, "{flow:?}");
    }
}

#[test]
fn forwards_lead_into_the_tunnel_over_tcp_udp_and_unix_sockets() {
    let Some(lab) = Lab::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/echo.sock");
    let unix = format!("{}=[fd09::1]:7", path.display());
    let options = forwards(&["8000=10.9.0.1:7", "[::1]:8000=[fd09::1]:7", &unix, "udp:8000=[fd09::1]:7"]);
    let running = lab.proxy(options);
    assert_eq!(running.addresses[0], "127.0.0.1:8000");
    lab.client(async || {
        check_echo(TcpStream::connect("127.0.0.1:8000").await.unwrap(), 1, 1_000_000).await;
        check_echo(TcpStream::connect("[::1]:8000").await.unwrap(), 2, 1_000_000).await;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        check_echo(UnixStream::connect(&path).await.unwrap(), 3, 1_000_000).await;
        // Each source of datagrams gets its own answers. All of them fit into the buffer of a socket.
        let mut sources = Vec::new();
        for number in 0..30_u8 {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.connect("127.0.0.1:8000").await.unwrap();
            socket.send(&[number; 1200]).await.unwrap();
            sources.push(socket);
        }
        let mut buffer = [0; 2000];
        for (number, socket) in sources.iter().enumerate() {
            assert_eq!(socket.recv(&mut buffer).await.unwrap(), 1200);
            assert_eq!(buffer[0], number as u8);
        }
    });
    assert_eq!(running.tunnel.stats().udp_sockets, 30);
    drop(running);
    weft_lab::until("the file of the socket is gone", || !path.exists());
}

#[test]
fn the_mapping_that_was_used_longest_ago_gives_way_to_a_new_source() {
    let Some(lab) = Lab::new() else { return };
    let options = forwards(&["udp:8000=10.9.0.1:7"]);
    let running = lab.proxy(options);
    lab.client(async || {
        let mut sources = Vec::new();
        for _ in 0..1100 {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.connect("127.0.0.1:8000").await.unwrap();
            socket.send(b"x").await.unwrap();
            assert_eq!(socket.recv(&mut [0; 8]).await.unwrap(), 1);
            sources.push(socket);
        }
        // The first one has lost its mapping, and gets another one.
        sources[0].send(b"y").await.unwrap();
        assert_eq!(sources[0].recv(&mut [0; 8]).await.unwrap(), 1);
    });
    assert_eq!(running.tunnel.stats().udp_sockets, 1101);
    let open = lab.tunnel.run(|| std::fs::read_to_string("/proc/thread-self/net/udp").unwrap());
    assert_eq!(open.lines().count() - 1, 1024);
}

#[test]
fn reverse_forwards_lead_from_the_tunnel_to_the_host() {
    let Some(lab) = Lab::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let unix = format!("10.9.0.2:9001={}", path.display());
    let options = reverses(&["9000=127.0.0.1:7", &unix, "udp:9000=7"]);
    let running = lab.proxy(options);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    lab.serve(&lab.host, move || async move {
        let listener = UnixListener::from_std(listener).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
    });
    lab.far.run(|| {
        runtime().block_on(async {
            check_echo(TcpStream::connect("10.9.0.2:9000").await.unwrap(), 1, 1_000_000).await;
            check_echo(TcpStream::connect("[fd09::2]:9000").await.unwrap(), 2, 1_000_000).await;
            check_echo(TcpStream::connect("10.9.0.2:9001").await.unwrap(), 3, 1_000_000).await;
            for local in ["10.9.0.1:0", "[fd09::1]:0"] {
                let socket = UdpSocket::bind(local).await.unwrap();
                let to = if local.starts_with('[') { "[fd09::2]:9000" } else { "10.9.0.2:9000" };
                socket.connect(to).await.unwrap();
                socket.send(b"hello").await.unwrap();
                let mut buffer = [0; 16];
                assert_eq!(socket.recv(&mut buffer).await.unwrap(), 5);
                assert_eq!(&buffer[..5], b"hello");
            }
        });
    });
    assert_eq!(running.tunnel.stats().accepted, 3);
}

#[test]
fn a_peer_with_many_connections_that_move_a_little_shuts_no_other_peer_out() {
    let Some(lab) = Lab::new() else { return };
    link::add_address(&lab.far, &LinkOptions::default().name_b, "10.9.0.9/24".parse().unwrap()).unwrap();
    let _running = lab.proxy(Options { clients: 4, ..reverses(&["10.9.0.2:9000=127.0.0.1:7"]) });
    let connect = async |from: &str| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(from.parse().unwrap()).unwrap();
        socket.connect("10.9.0.2:9000".parse().unwrap()).await.unwrap()
    };
    lab.far.run(|| {
        runtime().block_on(async {
            let mut greedy = Vec::new();
            for _ in 0..6 {
                let mut stream = connect("10.9.0.9:0").await;
                stream.write_all(b"x").await.unwrap();
                stream.read_exact(&mut [0]).await.unwrap();
                greedy.push(stream);
            }
            check_echo(connect("10.9.0.1:0").await, 1, 10_000).await;
        });
    });
}

#[test]
fn sources_of_datagrams_leave_descriptors_to_clients_and_to_new_sources() {
    const NAME: &str = "forward::sources_of_datagrams_leave_descriptors_to_clients_and_to_new_sources";
    const DESCRIPTORS: usize = 512;
    /// How long an answer may take that does not come without descriptors.
    const PATIENCE: Duration = Duration::from_secs(20);
    if !is_alone(NAME) {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let limit = Some(DESCRIPTORS as u64);
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let options = Options {
        socks5: vec!["1080".parse().unwrap()],
        reverses: vec!["udp:9000=127.0.0.1:7".parse().unwrap()],
        ..forwards(&["udp:8000=10.9.0.1:7"])
    };
    let _running = lab.proxy(options.within_descriptors(DESCRIPTORS, 1));
    let ask = async |from: String, to: &str| {
        let socket = UdpSocket::bind(&from).await.unwrap();
        socket.send_to(b"hello", to).await.unwrap();
        let answered = timeout(PATIENCE, socket.recv(&mut [0; 16])).await;
        assert_eq!(answered.unwrap_or_else(|_| panic!("no answer for {from} at {to}")).unwrap(), 5);
    };
    // Of many addresses, and of one.
    let local = async || {
        for source in 0..600 {
            ask(format!("127.0.{}.{}:0", source / 200, source % 200 + 1), "127.0.0.1:8000").await;
        }
    };
    let peer = async || {
        for source in 0..600 {
            ask(format!("10.9.0.1:{}", 20_000 + source), "10.9.0.2:9000").await;
        }
    };
    let far = lab.far.clone();
    lab.client(local);
    far.run(|| runtime().block_on(peer()));
    lab.client(async || {
        let served = async {
            let stream = socks5_connect("127.0.0.1:1080", FAR_V4, ECHO).await.unwrap();
            check_echo(stream, 1, 100_000).await;
        };
        timeout(PATIENCE, served).await.expect("a client of SOCKS5 is served");
    });
}

#[test]
fn a_forward_to_what_is_not_there_is_reset() {
    let Some(lab) = Lab::new() else { return };
    let options = forwards(&["8000=10.9.0.1:9", "8001=198.51.100.1:7"]);
    let _running = lab.proxy(options);
    lab.client(async || {
        for proxy in ["127.0.0.1:8000", "127.0.0.1:8001"] {
            // The reset may come before the client has noticed that it is connected.
            let read = async { TcpStream::connect(proxy).await?.read(&mut [0]).await };
            assert_eq!(read.await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        }
    });
}

#[test]
fn a_proxy_that_cannot_start_says_why_and_leaves_nothing() {
    let Some(lab) = Lab::new() else { return };
    let refused =
        |options| lab.start(Setting { options, ..Setting::default() }).map(drop).unwrap_err().to_string();
    assert!(refused(Options::default()).starts_with("nothing to serve: give --socks5"));
    let at = |text: &str| -> Vec<LocalAddress> { vec![text.parse().unwrap()] };
    let open = refused(Options { socks5: at("0.0.0.0:1080"), ..Options::default() });
    assert!(open.starts_with("SOCKS5 on 0.0.0.0:1080 would let every machine"), "{open}");
    let open = refused(Options { http: at("[::]:3128"), ..Options::default() });
    assert!(open.starts_with("HTTP on [::]:3128 would let every machine"), "{open}");
    let open = refused(forwards(&["udp:198.51.100.1:53=10.9.0.1:53"]));
    assert!(open.starts_with("a forward on 198.51.100.1:53 would let every machine"), "{open}");
    let anyone = Options { http: at("198.51.100.1:3128"), allow_anyone: true, ..Options::default() };
    drop(lab.proxy(anyone));

    let busy = Options { http: at("3128"), ..forwards(&["7=10.9.0.1:7"]) };
    let busy = refused(busy);
    let by = format!("another program uses this address (process {}, ", std::process::id());
    assert!(busy.starts_with(&format!("cannot listen on 127.0.0.1:7 for a forward: {by}")), "{busy}");
    // The port of the proxy that was made before is free again.
    drop(lab.proxy(Options { http: at("3128"), ..Options::default() }));
    let missing = refused(Options { socks5: at("192.0.2.1:1080"), allow_anyone: true, ..Options::default() });
    assert_eq!(missing, "cannot listen on 192.0.2.1:1080 for SOCKS5: there is no such address");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let in_the_way = refused(Options { socks5: at(&file.display().to_string()), ..Options::default() });
    assert!(in_the_way.contains("is in the way: it is not a socket"), "{in_the_way}");
    let path = dir.path().join("sock");
    let served = || Options { socks5: at(&path.display().to_string()), ..Options::default() };
    let _running = lab.proxy(served());
    let twice = refused(served());
    assert!(twice.contains("for SOCKS5: another program uses this address (process "), "{twice}");
    let outside = refused(reverses(&["192.0.2.1:80=80"]));
    assert!(outside.contains("there is no such address"), "{outside}");
}

#[test]
fn bulk_in_both_directions_at_once_is_carried_unchanged() {
    let Some(lab) = Lab::new() else { return };
    let options = Options {
        reverses: vec!["9000=127.0.0.1:2001".parse().unwrap()],
        ..forwards(&["8000=10.9.0.1:2000"])
    };
    let out = lab.far.run(|| TcpReceiver::listen("10.9.0.1:2000".parse().unwrap()).unwrap());
    let back = lab.host.run(|| TcpReceiver::listen("127.0.0.1:2001".parse().unwrap()).unwrap());
    let _running = lab.proxy(options);
    let amount = Amount::Count(50_000_000);
    let outbound = TcpSenders::start(&lab.host, "127.0.0.1:8000".parse().unwrap(), 4, amount, 1).unwrap();
    let inbound = TcpSenders::start(&lab.far, "[fd09::2]:9000".parse().unwrap(), 4, amount, 2).unwrap();
    for (senders, receiver) in [(outbound, out), (inbound, back)] {
        for flow in senders.finish() {
            assert!(flow.error.is_none() && flow.confirmed == 50_000_000, "{flow:?}");
        }
        assert!(receiver.finish().iter().all(|flow| flow.first_mismatch.is_none()));
    }
}
