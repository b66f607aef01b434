use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use weft_ipc::{Places, Refusals, Source};

use super::*;
use crate::budget::Budget;
use crate::kernel::Kernel;
use crate::network::Network;
use crate::reach::Reach;

fn proxy() -> Arc<Proxy> {
    let network: Arc<dyn Network> = Arc::new(Kernel::of_this_thread());
    let budget = Budget::new(1 << 20);
    Arc::new(Proxy {
        reach: Reach::new(Arc::clone(&network), Vec::new(), None),
        host: network,
        users: None,
        request_timeout: Duration::from_secs(3600),
        refusals: Refusals::default(),
        relayed: budget.account(),
        udp_sockets: Arc::clone(&budget),
        associations: budget.account(),
        senders: Arc::default(),
        budget,
    })
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
        serve(Box::new(served), place, proxy()).await;
        let turns = turns.load(Relaxed);
        other.abort();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers.matches("HTTP/1.1 ").count(), REQUESTS, "{line}");
        assert!(turns >= REQUESTS, "{line}: {turns} turns");
    }
}
