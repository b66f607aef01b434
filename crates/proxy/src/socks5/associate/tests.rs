//! An association between sockets in memory.

use std::sync::atomic::Ordering::Relaxed;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use weft_ipc::{Places, Source};
use weft_network::Kernel;

use super::*;
use crate::budget::Budget;
use crate::pipe::{Seen, end};
use crate::reach::Reach;
use crate::udp_forward::tests::{Fake, Slow};

const CLIENT: ([u8; 4], u16) = ([127, 0, 0, 1], 5000);

struct Running {
    socket: Arc<Fake>,
    client: Arc<Seen>,
    association: JoinHandle<io::Result<()>>,
    budget: Arc<Budget>,
}

/// Starts an association whose datagrams go into this network, where those that wait have `bytes`.
fn begin(tunnel: &Arc<Slow>, bytes: usize) -> Running {
    let tunnel: Arc<dyn Network> = Arc::clone(tunnel) as Arc<dyn Network>;
    let reach = Reach::new(tunnel, vec![vec!["192.0.2.0/24".parse().unwrap()]], None);
    let host: Arc<dyn Network> = Arc::new(Kernel::of_this_thread());
    let proxy = Proxy::new(reach, host, None, Duration::from_secs(3600), bytes, 8);
    let (budget, socket) = (Arc::clone(&proxy.budget), Arc::<Fake>::default());
    let (control, client, _) = end(1);
    let inside = Arc::clone(&socket) as Arc<dyn Datagrams>;
    let association = tokio::spawn(async move {
        let place = Places::new(1).take(Source::Unknown).await;
        let charged = proxy.budget.account();
        let inside = Inside {
            place: Arc::new(place),
            replies: Replies::new(inside, Arc::clone(&charged)),
            client: CLIENT.into(),
            user: None,
            port: OnceLock::new(),
            announced: None,
            senders: Arc::default(),
            checked: Mutex::new(Instant::now()),
            of_others: Mutex::default(),
        };
        let association = Association {
            proxy: &proxy,
            inside: Arc::new(inside),
            outside: Vec::new(),
            replies: JoinSet::new(),
            charged,
            _first: proxy.associations.charge(1).unwrap(),
        };
        association.run(control).await
    });
    Running { socket, client, association, budget }
}

/// Datagrams of the client with as many bytes for a name.
fn datagrams(count: usize, len: usize) -> impl Iterator<Item = (Vec<u8>, SocketAddr)> {
    let datagram = [&b"\0\0\0\x03\x0cslow.example\0\x35"[..], &vec![0; len]].concat();
    (0..count).map(move |_| (datagram.clone(), CLIENT.into()))
}

#[tokio::test(start_paused = true)]
async fn datagrams_of_an_association_that_wait_for_a_name_are_bounded_in_number_and_bytes() {
    const LEN: usize = 60_000;
    for (bytes, most) in [(64 << 20, LOOK_UPS * LEN), (512 << 10, 512 << 10)] {
        let tunnel = Arc::<Slow>::default();
        let Running { socket, budget, association, .. } = begin(&tunnel, bytes);
        socket.arrive(datagrams(40, LEN));
        // Paused time goes on when every task waits.
        sleep(Duration::from_secs(1)).await;
        tunnel.answer.notify_waiters();
        sleep(Duration::from_secs(1)).await;
        let waited = tunnel.sent.load(Relaxed);
        assert!((most / 4..=most).contains(&waited), "{waited} bytes, of {most}");
        association.abort();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(budget.account().free(), bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn an_association_ends_with_its_client_also_while_the_tunnel_takes_nothing() {
    let tunnel = Arc::new(Slow { is_blocked: true, ..Slow::default() });
    let Running { socket, client, association, .. } = begin(&tunnel, 1 << 20);
    let datagram = [&b"\0\0\0\x01\xc0\0\x02\x01\0\x35"[..], b"hello"].concat();
    socket.arrive([(datagram, CLIENT.into())].into_iter());
    sleep(Duration::from_secs(100)).await;
    assert!(!association.is_finished());
    client.ended.send_replace(true);
    timeout(Duration::from_secs(1), association).await.expect("it ends").unwrap().unwrap();
}
