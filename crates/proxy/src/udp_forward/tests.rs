//! A forward to a name that is not resolved for a while, with sockets in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use tokio::io::ReadBuf;
use tokio::sync::Notify;
use weft_network::{Connection, Later, Listener, LookUpError, Stats};

use super::*;
use crate::budget::Budget;

/// What arrives at a socket, and who waits for it.
#[derive(Default)]
struct Arriving {
    datagrams: VecDeque<(Vec<u8>, SocketAddr)>,
    waker: Option<Waker>,
}

/// A socket at which datagrams arrive, and which counts what is sent by it.
#[derive(Default)]
pub(crate) struct Fake {
    arriving: Mutex<Arriving>,
    sent: Arc<AtomicUsize>,
    /// What is sent comes back.
    is_echo: bool,
    /// It has no room, and who waits for it.
    blocked: Mutex<(bool, Option<Waker>)>,
}

impl Fake {
    pub(crate) fn arrive(&self, datagrams: impl Iterator<Item = (Vec<u8>, SocketAddr)>) {
        let mut arriving = self.arriving.lock().unwrap();
        arriving.datagrams.extend(datagrams);
        if let Some(waker) = arriving.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn block(&self, is_blocked: bool) {
        let waker = std::mem::replace(&mut *self.blocked.lock().unwrap(), (is_blocked, None)).1;
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Datagrams for Fake {
    fn poll_recv(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>> {
        let mut arriving = self.arriving.lock().unwrap();
        match arriving.datagrams.pop_front() {
            Some((datagram, from)) => {
                into.put_slice(&datagram);
                Poll::Ready(Ok(from))
            }
            None => {
                arriving.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_send(&self, cx: &mut Context<'_>, datagram: &[u8], to: SocketAddr) -> Poll<io::Result<()>> {
        let mut blocked = self.blocked.lock().unwrap();
        if blocked.0 {
            blocked.1 = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.is_echo {
            self.arrive([(datagram.to_vec(), to)].into_iter());
        }
        self.sent.fetch_add(datagram.len(), Relaxed);
        Poll::Ready(Ok(()))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, 1).into())
    }
}

/// A tunnel that answers for a name when it is told to.
#[derive(Default)]
pub(crate) struct Slow {
    pub(crate) answer: Notify,
    pub(crate) sent: Arc<AtomicUsize>,
    pub(crate) is_echo: bool,
    pub(crate) is_blocked: bool,
}

impl Network for Slow {
    fn connect(&self, _: SocketAddr) -> Later<'_, io::Result<Box<dyn Connection>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn udp(&self, _: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        let socket = Fake { sent: Arc::clone(&self.sent), is_echo: self.is_echo, ..Fake::default() };
        socket.block(self.is_blocked);
        Ok(Arc::new(socket))
    }

    fn look_up<'a>(&'a self, _: &'a str) -> Later<'a, Result<Vec<IpAddr>, LookUpError>> {
        Box::pin(async {
            self.answer.notified().await;
            Ok(vec![[192, 0, 2, 1].into()])
        })
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_slow_name_is_bounded_over_all_sources_and_given_back() {
    const SOURCES: u16 = 800;
    const LEN: usize = 60_000;
    const BUDGET: usize = 4 << 20;
    let budget = Budget::new(BUDGET);
    let (listening, slow) = (Arc::<Fake>::default(), Arc::<Slow>::default());
    let network: Arc<dyn Network> = Arc::clone(&slow) as Arc<dyn Network>;
    let reach = Reach::new(network, vec![vec!["192.0.2.0/24".parse().unwrap()]], None);
    let target = Arc::new(Target::Remote(reach, "slow.example:53".parse().unwrap()));
    let sockets = Budget::new(usize::from(SOURCES) * 4).account();
    let forward = serve(
        Arc::clone(&listening) as Arc<dyn Datagrams>,
        Sources::default(),
        target,
        budget.account(),
        sockets,
    );
    let driver = async {
        // The last one sends more than a source may have waiting.
        for (round, sources, each, bytes) in [
            (1, SOURCES, 8, BUDGET / 4..=BUDGET),
            (2, SOURCES, 8, BUDGET / 4..=BUDGET),
            (3, 1, 20, WAITING * LEN..=WAITING * LEN),
        ] {
            for port in 1..=sources {
                let from = ([127, 0, 0, round], port).into();
                listening.arrive((0..each).map(|_| (vec![0; LEN], from)));
            }
            // Paused time goes on when every task waits.
            sleep(Duration::from_secs(1)).await;
            assert!(listening.arriving.lock().unwrap().datagrams.is_empty());
            slow.answer.notify_waiters();
            sleep(Duration::from_secs(1)).await;
            let waited = slow.sent.swap(0, Relaxed);
            assert!(bytes.contains(&waited), "{waited} bytes waited, round {round}");
            assert_eq!(budget.account().free(), BUDGET);
        }
    };
    tokio::select! {
        never = forward => match never {},
        () = driver => {}
    }
}

#[tokio::test(start_paused = true)]
async fn replies_that_wait_for_room_are_bounded_over_all_sources_and_given_back() {
    const SOURCES: u16 = 800;
    const LEN: usize = 60_000;
    const BUDGET: usize = 4 << 20;
    let budget = Budget::new(BUDGET);
    let listening = Arc::<Fake>::default();
    let network: Arc<dyn Network> = Arc::new(Slow { is_echo: true, ..Slow::default() });
    let target = Arc::new(Target::Host(network, ([192, 0, 2, 1], 53).into()));
    let sockets = Budget::new(usize::from(SOURCES) * 4).account();
    let forward = serve(
        Arc::clone(&listening) as Arc<dyn Datagrams>,
        Sources::default(),
        target,
        budget.account(),
        sockets,
    );
    let driver = async {
        listening.block(true);
        for round in [1, 2] {
            listening.arrive((1..=SOURCES).map(|port| (vec![0; LEN], ([127, 0, 0, round], port).into())));
            sleep(Duration::from_secs(1)).await;
        }
        listening.block(false);
        sleep(Duration::from_secs(1)).await;
        let waited = listening.sent.load(Relaxed);
        assert!((BUDGET / 4..=BUDGET).contains(&waited), "{waited} bytes waited");
        assert_eq!(budget.account().free(), BUDGET);
    };
    tokio::select! {
        never = forward => match never {},
        () = driver => {}
    }
}

#[tokio::test]
async fn a_flood_of_new_sources_takes_no_turn_from_the_tasks_of_others() {
    const SOURCES: usize = 1000;
    let (listening, slow) = (Arc::<Fake>::default(), Arc::<Slow>::default());
    let network: Arc<dyn Network> = Arc::clone(&slow) as Arc<dyn Network>;
    let target = Arc::new(Target::Host(network, (Ipv4Addr::LOCALHOST, 9).into()));
    let [waiting, sockets] = [4 << 20, 2 * SOURCES].map(|most| Budget::new(most).account());
    let forward =
        serve(Arc::clone(&listening) as Arc<dyn Datagrams>, Sources::default(), target, waiting, sockets);
    let from = |port| (Ipv4Addr::LOCALHOST, port).into();
    listening.arrive((1..=SOURCES).map(|port| (vec![0], from(port as u16))));
    let driver = async {
        let left = || listening.arriving.lock().unwrap().datagrams.len();
        while left() > 0 {
            yield_now().await;
            let behind = SOURCES - left() - slow.sent.load(Relaxed);
            assert!(behind < 100, "{behind} sources wait for their turn");
        }
    };
    tokio::select! {
        never = forward => match never {},
        () = driver => {}
    }
}
