//! Names, looked up at a server in the tunnel.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use simple_dns::rdata::{A, AAAA, CNAME, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use weft_proxy::Options;

use crate::support::*;

const PROXY: &str = "127.0.0.1:1080";

/// What the server answers over UDP: `None` is silence.
fn answer(bytes: &[u8], is_tcp: bool) -> Option<Vec<u8>> {
    let query = Packet::parse(bytes).unwrap();
    let question = query.questions[0].clone();
    let name = question.qname.to_string();
    let is_v4 = question.qtype == QTYPE::TYPE(TYPE::A);
    let mut reply = Packet::new_reply(query.id());
    reply.questions.push(question.clone());
    let mut push = |name: Name<'static>, data| {
        reply.answers.push(ResourceRecord::new(name, CLASS::IN, 60, data));
    };
    let far = match is_v4 {
        true => RData::A(A { address: u32::from(FAR_V4.parse::<Ipv4Addr>().unwrap()) }),
        false => RData::AAAA(AAAA { address: u128::from(FAR_V6.parse::<Ipv6Addr>().unwrap()) }),
    };
    let own = Name::new(&name).unwrap().into_owned();
    match name.as_str() {
        "both.example" | "again.example" | "short.search.example" => push(own, far),
        "alias.example" => {
            push(own, RData::CNAME(CNAME(Name::new_unchecked("both.example"))));
            push(Name::new_unchecked("both.example"), far);
        }
        "v4.example" if is_v4 => push(own, far),
        "silent-aaaa.example" if is_v4 => push(own, far),
        "silent-aaaa.example" | "silent.example" => return None,
        // An address that nothing answers at, before one that does.
        "dead-first.example" if is_v4 => {
            push(own.clone(), RData::A(A { address: u32::from(Ipv4Addr::new(10, 9, 0, 99)) }));
            push(own, far);
        }
        "mixed.example" if is_v4 => {
            push(own.clone(), RData::A(A { address: u32::from(Ipv4Addr::new(198, 51, 100, 1)) }));
            push(own, far);
        }
        "outside.example" if is_v4 => {
            push(own, RData::A(A { address: u32::from(Ipv4Addr::new(198, 51, 100, 1)) }));
        }
        "rebind.example" if is_v4 => push(own, RData::A(A { address: u32::from(Ipv4Addr::LOCALHOST) })),
        "long.example" if is_tcp => push(own, far),
        "long.example" => reply.set_flags(PacketFlag::TRUNCATION),
        "failing.example" => *reply.rcode_mut() = RCODE::ServerFailure,
        "v4.example" | "dead-first.example" | "mixed.example" | "outside.example" | "rebind.example" => {}
        _ => *reply.rcode_mut() = RCODE::NameError,
    }
    reply.build_bytes_vec().ok()
}

impl Lab {
    /// Serves names, and counts the queries.
    fn serve_names(&self) -> Arc<AtomicUsize> {
        let queries = Arc::<AtomicUsize>::default();
        let counter = Arc::clone(&queries);
        let (streams, datagrams) = self.far.run(|| {
            let at = "10.9.0.1:53";
            (std::net::TcpListener::bind(at).unwrap(), std::net::UdpSocket::bind(at).unwrap())
        });
        streams.set_nonblocking(true).unwrap();
        datagrams.set_nonblocking(true).unwrap();
        self.serve(&self.far, move || async move {
            let streams = TcpListener::from_std(streams).unwrap();
            let datagrams = UdpSocket::from_std(datagrams).unwrap();
            let by_udp = async {
                let mut buffer = [0; 512];
                loop {
                    let (len, from) = datagrams.recv_from(&mut buffer).await.unwrap();
                    counter.fetch_add(1, Relaxed);
                    if let Some(reply) = answer(&buffer[..len], false) {
                        // A forged answer comes first.
                        let mut forged = reply.clone();
                        forged[0] ^= 1;
                        datagrams.send_to(&forged, from).await.unwrap();
                        datagrams.send_to(&reply, from).await.unwrap();
                    }
                }
            };
            let by_tcp = async {
                loop {
                    let (mut stream, _) = streams.accept().await.unwrap();
                    let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
                    stream.read_exact(&mut query).await.unwrap();
                    let reply = answer(&query, true).unwrap();
                    stream.write_u16(reply.len() as u16).await.unwrap();
                    stream.write_all(&reply).await.unwrap();
                }
            };
            tokio::join!(by_udp, by_tcp);
        });
        queries
    }
}

fn setting() -> Setting {
    let options = Options { socks5: vec![PROXY.parse().unwrap()], ..Options::default() };
    Setting { options, has_dns: true, ..Setting::default() }
}

#[test]
fn names_are_looked_up_in_the_tunnel_and_kept() {
    let Some(lab) = Lab::new() else { return };
    let queries = lab.serve_names();
    let _running = lab.start(setting()).unwrap();
    lab.client(async || {
        for name in [
            "both.example",
            "BOTH.example.",
            "alias.example",
            "v4.example",
            "silent-aaaa.example",
            "long.example",
            "short",
            "mixed.example",
            "dead-first.example",
        ] {
            check_echo(socks5_connect(PROXY, name, ECHO).await.unwrap(), 1, 10_000).await;
        }
        // Asked once, for both families.
        let before = queries.load(Relaxed);
        for _ in 0..10 {
            socks5_connect(PROXY, "both.example", ECHO).await.unwrap();
        }
        assert_eq!(queries.load(Relaxed), before);
        // Also by many who ask at once.
        let mut asking = JoinSet::new();
        for _ in 0..50 {
            asking.spawn(socks5_connect(PROXY, "again.example", ECHO));
        }
        assert!(asking.join_all().await.iter().all(Result::is_ok));
        assert_eq!(queries.load(Relaxed), before + 2);
    });
}

#[test]
fn a_name_does_not_lead_to_an_address_of_this_machine_by_the_hosts_network() {
    let Some(lab) = Lab::new() else { return };
    lab.serve_names();
    let _running = lab.start(Setting { direct: Some(vec![]), ..setting() }).unwrap();
    lab.client(async || {
        for name in ["outside.example", "rebind.example"] {
            assert_eq!(socks5_connect(PROXY, name, ECHO).await.unwrap_err(), 2, "{name}");
        }
    });
}

#[test]
fn a_name_without_an_address_in_the_tunnel_is_refused() {
    let Some(lab) = Lab::new() else { return };
    lab.serve_names();
    let running = lab.start(setting()).unwrap();
    lab.client(async || {
        for (name, code) in [
            ("missing.example", 4),
            ("outside.example", 2),
            // A name that leads to this machine's own services.
            ("rebind.example", 2),
            ("failing.example", 4),
        ] {
            assert_eq!(socks5_connect(PROXY, name, ECHO).await.unwrap_err(), code, "{name}");
        }
    });
    assert_eq!((running.tunnel.stats().look_ups, running.tunnel.stats().connected), (4, 0));
}

#[test]
fn datagrams_go_to_names_too() {
    let Some(lab) = Lab::new() else { return };
    lab.serve_names();
    let _running = lab.start(setting()).unwrap();
    lab.client(async || {
        let mut control = tokio::net::TcpStream::connect(PROXY).await.unwrap();
        let (code, relay) = socks5_request(&mut control, 3, "0.0.0.0", 0).await;
        assert_eq!(code, 0);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sent = [&[0, 0, 0], &socks5_address("v4.example", ECHO)[..], b"hello"].concat();
        socket.send_to(&sent, relay).await.unwrap();
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).await.unwrap();
        let expected = [&[0, 0, 0], &socks5_address(FAR_V4, ECHO)[..], b"hello"].concat();
        assert_eq!(buffer[..len], expected);
    });
}
