use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use weft_ipc::{Places, Source};
use weft_network::{Kernel, Network, Stream};

use super::buffers::FIELD;
use super::*;
use crate::pipe::{Seen, end};
use crate::reach::Reach;
use crate::udp_forward::tests::Slow;

fn proxy() -> Arc<Proxy> {
    proxy_with(Arc::new(Kernel::of_this_thread()), None)
}

/// All that waits has this many bytes.
const ALL: usize = 4 << 20;

fn proxy_with(network: Arc<dyn Network>, users: Option<Users>) -> Arc<Proxy> {
    let reach = Reach::new(Arc::clone(&network), vec![vec!["192.0.2.0/24".parse().unwrap()]], None);
    Arc::new(Proxy::new(reach, network, users, Duration::from_secs(3600), ALL, 1))
}

/// A client that has sent these bytes, what the proxy has read of them, and its end of the connection.
async fn begin(proxy: &Arc<Proxy>, sent: &[u8]) -> (JoinHandle<()>, Arc<Seen>, DuplexStream) {
    let (client, seen, mut other) = end(1 << 16);
    other.write_all(sent).await.unwrap();
    let place = Arc::new(Places::new(1).take(Source::Unknown).await);
    (tokio::spawn(serve(client, place, Arc::clone(proxy))), seen, other)
}

/// Reads the first line of an answer.
async fn status(client: &mut DuplexStream) -> String {
    let mut line = vec![0; "HTTP/1.1 200".len()];
    client.read_exact(&mut line).await.unwrap();
    String::from_utf8(line).unwrap()
}

fn fields(count: usize, len: usize) -> String {
    (0..count).map(|number| format!("X{number:05}: {}\r\n", "a".repeat(len))).collect()
}

#[tokio::test(start_paused = true)]
async fn heads_without_an_end_take_no_more_than_the_budget_and_keep_no_short_one_out() {
    const CLIENTS: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    std::fs::write(&path, "bob:b\n").unwrap();
    for (users, refused, answered) in [
        // Without the password nothing longer is read.
        (Some(Users::read(&path).unwrap()), CLIENTS, "HTTP/1.1 407"),
        // Those that have no room.
        (None, CLIENTS - ALL / 2 / MAX_HEAD, "HTTP/1.1 400"),
    ] {
        let is_asked = users.is_some();
        let proxy = proxy_with(Arc::new(Kernel::of_this_thread()), users);
        let long = format!("GET / HTTP/1.1\r\n{}", fields(58, 520));
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(begin(&proxy, long.as_bytes()).await);
        }
        // Paused time goes on when every task waits.
        sleep(Duration::from_secs(1)).await;
        let read: usize = clients.iter().map(|(_, seen, _)| seen.read.load(Relaxed)).sum();
        let most = if is_asked { 0 } else { ALL / 2 } + CLIENTS * SMALL;
        assert!(read <= most, "{read} bytes of heads, of {most}");
        let (over, waiting): (Vec<_>, Vec<_>) =
            clients.into_iter().partition(|(served, ..)| served.is_finished());
        assert!(over.len() >= refused, "{} are turned away, {refused} have no room", over.len());
        for (_, _, mut client) in over {
            assert_eq!(status(&mut client).await, "HTTP/1.1 431");
        }
        let (_served, _, mut short) = begin(&proxy, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert_eq!(status(&mut short).await, answered);
        drop((waiting, short));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(proxy.budget.account().free(), ALL, "all is given back");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_name_take_no_more_than_the_budget_and_keep_no_usual_one_out() {
    const CLIENTS: usize = 400;
    const USUAL: usize = 200;
    let slow = Arc::<Slow>::default();
    let proxy = proxy_with(Arc::clone(&slow) as Arc<dyn Network>, None);
    let request = |count| format!("GET http://slow.example/ HTTP/1.1\r\n{}\r\n", fields(count, 2));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(begin(&proxy, request(96).as_bytes()).await);
    }
    // More than the rest of the budget has room for.
    let usual = [request(20), "CONNECT slow.example:443 HTTP/1.1\r\n\r\n".to_owned()];
    for request in usual.iter().cycle().take(USUAL) {
        clients.push(begin(&proxy, request.as_bytes()).await);
    }
    sleep(Duration::from_secs(1)).await;
    slow.answer.notify_waiters();
    let mut waited = Vec::new();
    for (place, (_, _, client)) in clients.iter_mut().enumerate() {
        match status(client).await.as_str() {
            "HTTP/1.1 502" => waited.push(place),
            busy => assert_eq!(busy, "HTTP/1.1 503"),
        }
    }
    // Half of what buffers have left, for maps that grow by doubling.
    let room = ALL / 4 / (192 * FIELD);
    let (usual, large): (Vec<_>, Vec<_>) = waited.into_iter().partition(|place| *place >= CLIENTS);
    assert!((room..=room + 2).contains(&large.len()), "{} waited, of {room}", large.len());
    assert_eq!(usual.len(), USUAL, "usual requests wait in any case");
    drop(clients);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(proxy.budget.account().free(), ALL);
}

#[tokio::test]
async fn other_tasks_have_a_turn_for_each_request_that_a_client_sends_ahead() {
    const REQUESTS: usize = 300;
    for line in
        ["GET / HTTP/1.1", "GET http://127.0.0.1/ HTTP/1.1", "OPTIONS http://a/ HTTP/1.1\r\nMax-Forwards: 0"]
    {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (served, _) = listener.accept().await.unwrap();
        let requests = format!("{line}\r\n\r\n").repeat(REQUESTS - 1);
        let last = format!("{line}\r\nConnection: close\r\n\r\n");
        client.write_all((requests + &last).as_bytes()).await.unwrap();
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Relaxed);
                yield_now().await;
            }
        });
        let place = Arc::new(Places::new(1).take(Source::Unknown).await);
        serve(Box::new(Stream::from(served)), place, proxy()).await;
        let turns = turns.load(Relaxed);
        other.abort();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers.matches("HTTP/1.1 ").count(), REQUESTS, "{line}");
        assert!(turns >= REQUESTS, "{line}: {turns} turns");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_gone_is_not_served_with_bytes_behind_its_request_either() {
    let name = "slow.example";
    for (request, time) in [
        (format!("GET http://{name}/ HTTP/1.1\r\n\r\nx"), Duration::ZERO),
        // A body and what follows CONNECT go on, if they do.
        (format!("POST http://{name}/ HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"), LINGER),
        (format!("CONNECT {name}:443 HTTP/1.1\r\n\r\nx"), LINGER),
    ] {
        let proxy = proxy_with(Arc::<Slow>::default(), None);
        let (served, seen, _client) = begin(&proxy, request.as_bytes()).await;
        sleep(Duration::from_secs(100)).await;
        assert!(!served.is_finished(), "{request}");
        let now = Instant::now();
        seen.ended.send_replace(true);
        timeout(LINGER * 2, served).await.expect("it ends").unwrap();
        assert_eq!(now.elapsed(), time, "{request}");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(proxy.budget.account().free(), ALL);
    }
}
