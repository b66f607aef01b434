//! Two stacks, each the other's peer: what one gives to its tunnel is what the other gets out of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tracing::field::Field;
use tracing::{Metadata, Subscriber, span};
use weft_embed::{Config, EndpointTun, Stack, TcpStream};
use weft_network::{Connection as _, Datagrams as _, Later};
use weft_tun::Tun as _;
use weft_tunnel::{MAX_PACKET, each_segment};

const FAMILIES: [[&str; 2]; 2] = [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]];
const MTU: u16 = 1420;

fn open(place: usize) -> (EndpointTun, Stack) {
    open_with(place, 64 << 20)
}

fn open_with(place: usize, memory: u64) -> (EndpointTun, Stack) {
    let addresses = FAMILIES.map(|family| family[place].parse().unwrap()).to_vec();
    let (tun, stack) = weft_embed::open(Config { addresses, mtu: MTU, memory });
    stack.set_routes(&[vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]]);
    (tun, stack)
}

/// Carries what one stack sends to the other. Returns whether there was something.
fn carry(cx: &mut Context<'_>, from: &mut EndpointTun, to: &mut EndpointTun) -> bool {
    let mut batches = VecDeque::new();
    let Poll::Ready(Ok(_)) = from.poll_recv_many(cx, &mut batches, 128 << 10) else { return false };
    let mut scratch = Vec::new();
    for mut batch in batches {
        while let Some(packet) = batch.next_packet() {
            each_segment(&packet, &mut scratch, |segment| {
                assert!(segment.len() <= usize::from(MTU), "longer than the MTU: {}", segment.len());
                if to.plain_slab().room() < MAX_PACKET {
                    to.flush().unwrap();
                }
                let staged = to.plain_slab().push(segment).unwrap();
                to.send(staged).unwrap();
            });
        }
    }
    to.flush().unwrap();
    true
}

/// Runs `work` with two stacks, and a tunnel between them.
fn between<T>(work: impl AsyncFnOnce(Stack, Stack) -> T) -> T {
    run(open(0), open(1), work)
}

fn run<T>(
    (mut near_tun, near): (EndpointTun, Stack),
    (mut far_tun, far): (EndpointTun, Stack),
    work: impl AsyncFnOnce(Stack, Stack) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tunnel = poll_fn(|cx| {
            let there = carry(cx, &mut near_tun, &mut far_tun);
            let back = carry(cx, &mut far_tun, &mut near_tun);
            if there || back {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        tokio::select! {
            () = tunnel => unreachable!("it goes on"),
            result = work(near, far) => result,
        }
    })
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Connects over a family.
async fn connect(near: &Stack, far: &Stack, family: usize) -> (TcpStream, TcpStream) {
    let to = at(FAMILIES[family][1], 80);
    let listener = far.listen(to).unwrap();
    let (client, server) = tokio::join!(near.connect(to), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!((client.peer_addr(), server.local_addr()), (Some(to), Some(to)));
    assert_eq!(client.local_addr(), server.peer_addr());
    (client, server)
}

/// Bytes that differ at each place.
fn content(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn what_is_written_is_read_at_the_other_end_in_both_directions_and_families() {
    let content = content(5_000_003);
    for family in [0, 1] {
        between(async |near, far| {
            let (client, server) = connect(&near, &far, family).await;
            let move_all = async |stream: TcpStream| {
                let (mut reader, mut writer) = tokio::io::split(stream);
                let write = async {
                    writer.write_all(&content).await.unwrap();
                    writer.shutdown().await.unwrap();
                };
                let mut read = Vec::new();
                let (_, ended) = tokio::join!(write, reader.read_to_end(&mut read));
                ended.unwrap();
                assert!(read == content, "{} bytes differ", read.len());
            };
            tokio::join!(move_all(client), move_all(server));
        });
    }
}

#[test]
fn the_end_of_one_direction_leaves_the_other() {
    between(async |near, far| {
        let (mut client, mut server) = connect(&near, &far, 0).await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut read = String::new();
        server.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "question");
        assert_eq!(client.write(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        server.write_all(b"answer").await.unwrap();
        // What was written before the close is still sent.
        drop(server);
        read.clear();
        client.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "answer");
    });
}

#[test]
fn a_reset_is_no_end() {
    between(async |near, far| {
        for is_aborted in [true, false] {
            let (mut client, server) = connect(&near, &far, 1).await;
            if is_aborted {
                server.abort();
            } else {
                // Bytes that are never read.
                client.write_all(b"question").await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(server);
            let read = client.read(&mut [0; 8]).await;
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "{is_aborted}");
        }
    });
}

#[test]
fn where_no_program_listens_and_where_no_route_leads_connections_fail_at_once() {
    between(async |near, _far| {
        for (to, kind) in [
            (at(FAMILIES[0][1], 81), io::ErrorKind::ConnectionRefused),
            (at(FAMILIES[1][1], 81), io::ErrorKind::ConnectionRefused),
            (at("192.0.2.1", 80), io::ErrorKind::NetworkUnreachable),
        ] {
            let refused = near.connect(to).await.map(drop);
            assert_eq!(refused.unwrap_err().kind(), kind, "{to}");
        }
    });
}

async fn is_ready(later: &mut Later<'_, ()>) -> bool {
    poll_fn(|cx| Poll::Ready(later.as_mut().poll(cx).is_ready())).await
}

#[test]
fn the_end_is_seen_before_what_was_sent_is_read_and_a_failure_is_another() {
    between(async |near, far| {
        let (mut client, mut server) = connect(&near, &far, 0).await;
        let (mut ended, mut failed) = (server.ended(), server.failed());
        client.write_all(&[7; 1 << 16]).await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
        assert!(!is_ready(&mut ended).await && !is_ready(&mut failed).await);
        client.shutdown().await.unwrap();
        ended.await;
        server.ended().await;
        assert!(!is_ready(&mut failed).await, "it reads on");
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), (1 << 16) - 1);
        client.abort();
        drop(client);
        failed.await;
        // Nothing waits for one that is no more.
        let (client, _server) = connect(&near, &far, 1).await;
        let mut ended = client.ended();
        assert!(!is_ready(&mut ended).await);
        drop(client);
        ended.await;
    });
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_when_that_is_wanted() {
    between(async |near, far| {
        let (mut client, _server) = connect(&near, &far, 0).await;
        let failed = client.failed();
        client.give_up_after(Duration::from_millis(1));
        let write = async { while client.write(&[7; 65_536]).await.is_ok() {} };
        tokio::join!(failed, write);
        assert_eq!(client.write(&[7]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    });
}

#[test]
fn a_writer_waits_for_the_reader() {
    between(async |near, far| {
        let (mut client, mut server) = connect(&near, &far, 0).await;
        let (mut written, mut idle) = (0, 0);
        // As much as both ends keep. The tunnel has a turn between two attempts.
        while idle < 1000 {
            let pause = async {
                tokio::task::yield_now().await;
                None
            };
            let write = async { Some(client.write(&[7; 65_536]).await.unwrap()) };
            let count = tokio::select! { biased; count = write => count, count = pause => count };
            written += count.unwrap_or(0);
            idle = if count.is_some() { 0 } else { idle + 1 };
            assert!(written < 64 << 20, "nothing holds the writer");
        }
        drop(client);
        let mut read = Vec::new();
        server.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), written);
    });
}

#[test]
fn datagrams_of_all_sizes_arrive_whole_with_their_source() {
    between(async |near, far| {
        for family in FAMILIES {
            let (client, server) = (near.udp(at(family[0], 0)).unwrap(), far.udp(at(family[1], 53)).unwrap());
            let from = client.local_addr().unwrap();
            for len in [0, 1, 1200, 1500, 9000, 60_000] {
                let datagram = content(len);
                poll_fn(|cx| client.poll_send(cx, &datagram, at(family[1], 53))).await.unwrap();
                let mut buffer = vec![0; 65_535];
                let mut into = ReadBuf::new(&mut buffer);
                let source = poll_fn(|cx| server.poll_recv(cx, &mut into)).await.unwrap();
                assert!((source, into.filled()) == (from, &datagram), "{len} bytes");
            }
        }
    });
}

#[test]
fn a_flood_of_datagrams_leaves_the_thread_to_other_tasks() {
    between(async |near, far| {
        let to = at(FAMILIES[0][1], 53);
        let (client, server) = (near.udp(at(FAMILIES[0][0], 0)).unwrap(), far.udp(to).unwrap());
        for _ in 0..1000 {
            poll_fn(|cx| client.poll_send(cx, &[7; 10], to)).await.unwrap();
        }
        let receive = |cx: &mut Context<'_>| {
            let mut buffer = [0; 10];
            server.poll_recv(cx, &mut ReadBuf::new(&mut buffer)).is_ready()
        };
        let mut turns = Vec::new();
        while turns.iter().sum::<usize>() < 1000 {
            let turn = |cx: &mut Context<'_>| Poll::Ready((0..1000).take_while(|_| receive(cx)).count());
            turns.push(poll_fn(turn).await);
            tokio::task::yield_now().await;
        }
        assert!(turns.iter().all(|received| *received < 200), "{turns:?}");
    });
}

/// Keeps the messages of what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| write!(fields, "{field}={value:?} ").unwrap());
        self.0.lock().unwrap().push(fields);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn connections_that_give_way_are_told_of_once_a_minute() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let near = open_with(0, 4 << 20);
    near.1.set_routes(&[vec!["10.0.0.2/32".parse().unwrap()], vec!["10.0.0.3/32".parse().unwrap()]]);
    run(near, open(1), async |near, far| {
        let to = at(FAMILIES[0][1], 80);
        let _listener = far.listen(to).unwrap();
        let mut open = Vec::new();
        while let Ok(stream) = near.connect(to).await {
            open.push(stream);
        }
        assert!(open.len() > 100 && log.0.lock().unwrap().is_empty(), "{}", open.len());
        // Another peer, which does not answer.
        let mut attempts: Vec<_> =
            (1..=200).map(|port| Box::pin(near.connect(at("10.0.0.3", port)))).collect();
        poll_fn(|cx| {
            attempts.iter_mut().for_each(|attempt| assert!(attempt.as_mut().poll(cx).is_pending()));
            Poll::Ready(())
        })
        .await;
        let told = log.0.lock().unwrap().clone();
        let [line] = &told[..] else { panic!("{told:?}") };
        assert!(
            line.contains("gave way to others, the last one of 10.0.0.2") && line.contains("count="),
            "{line}"
        );
    });
}

#[test]
fn without_its_packet_thread_a_stack_ends_all_that_wait() {
    let (tun, stack) = open(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connect = stack.connect(at(FAMILIES[0][1], 80));
        let end = async move {
            tokio::task::yield_now().await;
            drop(tun);
        };
        let (connected, ()) = tokio::join!(connect, end);
        assert_eq!(connected.map(drop).unwrap_err().kind(), io::ErrorKind::NotConnected);
    });
}
