//! The responder: a thread of the daemon that takes part in the tests of peers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};
use weft_ipc::{Place, Refusals, ServerThread, Source, serve_each};
use weft_report::StatusReport;

use crate::datagrams;
use crate::from_device;
use crate::load::{self, Lanes};
use crate::protocol::{self, Direction, Hello, PATIENCE, Refusal, Reply, Request, SETTLE};
use crate::sample::peer_of;
use crate::sampler::{Probe, Sampler, Watch};
use crate::{MAX_STREAMS, PORT};

/// Maximum number of connections: those of a test, and some that are refused meanwhile.
const CONNECTIONS: usize = MAX_STREAMS as usize + 16;
/// How long a test blocks another one if its connections have not arrived or it was aborted.
const HELD: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 64;

/// Reads the state of the daemon.
pub type Status = Probe;

/// The listening socket. It accepts only what comes out of its interface: by the device that hands the packet
/// in, since every local user may bind a socket to the interface, and reaches its addresses through `lo`.
#[derive(Debug)]
pub struct Listener {
    socket: StdListener,
    interface: String,
}

impl Listener {
    /// Listens on [`PORT`] of this interface, whatever its addresses are.
    ///
    /// # Errors
    /// Another program listens on the port of all addresses; there is no such interface; the kernel refuses
    /// the filter.
    pub fn open(interface: &str) -> io::Result<Self> {
        let any = [IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()];
        let [both, only_v4] = any.map(|address| open(interface, SocketAddr::new(address, PORT)));
        match both {
            // A machine without IPv6.
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => only_v4,
            both => both,
        }
        .map(|socket| Self { socket, interface: interface.to_owned() })
    }
}

fn open(interface: &str, address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    from_device::only(&socket, interface)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Takes part in the tests of peers. Dropping it ends the test that runs, and the thread.
#[derive(Debug)]
pub struct Responder {
    _thread: ServerThread,
}

impl Responder {
    /// Answers on a new thread.
    ///
    /// # Errors
    /// The system cannot make the thread or its runtime.
    pub fn start(listener: Listener, status: Status) -> io::Result<Self> {
        // One for a report of the daemon; one more never waits for it.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        let Listener { socket, interface } = listener;
        let site = Arc::new(Site {
            status,
            interface,
            running: Mutex::default(),
            refusals: Refusals::default(),
            begun: Refusals::default(),
        });
        let thread = ServerThread::start("weft-speedtest", runtime, async move || {
            // Fails only in a runtime without I/O.
            let Ok(socket) = TcpListener::from_std(socket) else { return };
            let next = async || {
                let (stream, client) = socket.accept().await?;
                Ok((stream, Source::from(client.ip())))
            };
            serve_each("speed tests", CONNECTIONS, next, |stream, place| {
                serve(stream, Arc::clone(&site), place)
            })
            .await;
        })?;
        Ok(Self { _thread: thread })
    }
}

struct Site {
    status: Status,
    interface: String,
    running: Mutex<Option<Running>>,
    refusals: Refusals,
    begun: Refusals,
}

/// The test that has been accepted.
struct Running {
    token: String,
    claimed: Instant,
    /// Its connections have arrived.
    has_begun: bool,
    ends: Instant,
    streams: mpsc::Sender<TcpStream>,
}

impl Site {
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this the only test, until the claim is dropped. One whose connections do not arrive gives way.
    fn claim(self: &Arc<Self>, request: &Request) -> Result<Claim, Refusal> {
        let mut running = self.lock();
        let now = Instant::now();
        let stands = |running: &&Running| running.has_begun || now - running.claimed < HELD;
        if let Some(running) = running.as_ref().filter(stands) {
            return Err(Refusal::Busy { seconds: running.ends.saturating_duration_since(now).as_secs() + 1 });
        }
        let (streams, received) = mpsc::channel(usize::from(request.streams));
        let token = format!("{:032x}", rand::random::<u128>());
        let ends = now + Duration::from_millis(request.milliseconds) + SETTLE + 2 * PATIENCE;
        *running = Some(Running { token: token.clone(), claimed: now, has_begun: false, ends, streams });
        Ok(Claim { site: Arc::clone(self), token, ends, streams: received, is_over: false })
    }

    /// Gives a connection to the test that it belongs to, else closes it.
    fn hand_over(&self, token: &str, stream: TcpStream) {
        if let Some(running) = self.lock().as_ref().filter(|running| running.token == token) {
            // Full: the test has all of its connections.
            let _ = running.streams.try_send(stream);
        }
    }

    async fn status(self: &Arc<Self>) -> Option<StatusReport> {
        let site = Arc::clone(self);
        spawn_blocking(move || (site.status)()).await.ok().flatten()
    }
}

/// The right to run a test.
struct Claim {
    site: Arc<Site>,
    token: String,
    ends: Instant,
    streams: mpsc::Receiver<TcpStream>,
    /// The test was not broken off.
    is_over: bool,
}

impl Claim {
    /// Keeps the right to its end, if no other test has it by now.
    fn begin(&self) -> Result<(), Refusal> {
        let mut running = self.site.lock();
        let own = running.as_mut().filter(|running| running.token == self.token);
        own.map(|running| running.has_begun = true).ok_or(Refusal::Busy { seconds: 1 })
    }
}

impl Drop for Claim {
    /// One that is broken off keeps out others until [`HELD`] has passed: it has cost a report of the daemon.
    fn drop(&mut self) {
        let mut running = self.site.lock();
        if let Some(own) = running.as_mut().filter(|running| running.token == self.token) {
            (own.has_begun, own.ends) = (false, own.claimed);
            if self.is_over {
                *running = None;
            }
        }
    }
}

async fn serve(stream: TcpStream, site: Arc<Site>, place: Arc<Place>) {
    let (Ok(local), Ok(remote), Ok(())) = (stream.local_addr(), stream.peer_addr(), load::prepare(&stream))
    else {
        return;
    };
    let mut stream = BufReader::new(stream);
    match timeout(PATIENCE, protocol::read(&mut stream, &mut Vec::new())).await {
        Ok(Ok(Hello::Data { token })) => site.hand_over(&token, stream.into_inner()),
        Ok(Ok(Hello::Test(request))) => {
            place.begin_serving();
            let (lines, mut answers) = stream.into_inner().into_split();
            let ends = [local.ip().to_canonical(), remote.ip().to_canonical()];
            if let Err(refusal) = test(&site, &request, ends, lines, &mut answers).await {
                site.refusals.report(&format!("a speed test of {}", ends[1]), &refusal);
                let _ = timeout(PATIENCE, protocol::write(&mut answers, &Reply::Refused(refusal))).await;
            }
        }
        // Silence, or another protocol.
        _ => {}
    }
}

/// Runs the test that a client asks for to its end, or to that of the connection.
async fn test(
    site: &Arc<Site>,
    request: &Request,
    [local, remote]: [IpAddr; 2],
    mut lines: OwnedReadHalf,
    answers: &mut OwnedWriteHalf,
) -> Result<(), Refusal> {
    request.check()?;
    let duration = Duration::from_millis(request.milliseconds);
    let mut claim = site.claim(request)?;
    let failed = |reason: &str| Refusal::Failed(reason.to_owned());
    let asked = Instant::now();
    let report = site.status().await.ok_or_else(|| failed("the interface is being taken down"))?;
    let peer = peer_of(&report, remote).filter(|_| has_address(&report, local)).ok_or(Refusal::NotAPeer)?;
    let watch = Watch::after(Arc::clone(&site.status), &peer.public_key, &report, asked);
    let gone = |_| failed("the client is gone");
    let sends = request.direction == Direction::Down;
    // Before the client begins to send.
    let udp = request.udp.map(|udp| {
        let ends = [SocketAddr::new(local, PORT), SocketAddr::new(remote, udp.port)];
        let socket = datagrams::socket(&site.interface, ends[0], ends[1]);
        let refusal = |error| Refusal::Failed(format!("cannot open UDP port {PORT}: {error}"));
        socket.map(|socket| Lanes::Udp(socket, udp)).map_err(refusal)
    });
    let udp = udp.transpose()?;
    protocol::write(answers, &Reply::Accepted { token: claim.token.clone() }).await.map_err(gone)?;
    let lanes = match udp {
        Some(udp) => udp,
        None => {
            let streams = tokio::select! {
                // Whatever else the client sends ends the test, as the end of its connection does.
                _ = lines.read_u8() => return Ok(()),
                streams = timeout(PATIENCE, all(&mut claim.streams, request)) => streams,
            };
            let streams = streams.map_err(|_| failed("not all connections of the test arrived in time"))?;
            for name in request.congestion.iter().filter(|_| sends) {
                streams.iter().try_for_each(|stream| load::set_congestion(stream, name))?;
            }
            Lanes::Tcp(streams)
        }
    };
    claim.begin()?;
    if let Some(left_out) = site.begun.admit() {
        let (peer, direction, streams) = (&peer.public_key, request.direction, request.streams);
        tracing::info!(%peer, ?direction, streams, left_out, "speed test");
    }
    protocol::write(answers, &Reply::Begin).await.map_err(gone)?;

    let sampler = Sampler::begin(lanes, sends, duration, watch.clone(), None);
    let (send, replies) = mpsc::unbounded_channel();
    tokio::select! {
        _ = lines.read_u8() => {}
        () = sleep_until(claim.ends) => {}
        _ = async { tokio::join!(observe(sampler, &watch, send), write_all(replies, answers)) } => {
            claim.is_over = true;
        }
    }
    Ok(())
}

/// Whether the address is one of the interface: the socket accepts every address of the machine that a peer
/// may reach through the interface.
fn has_address(report: &StatusReport, address: IpAddr) -> bool {
    report.addresses.iter().any(|net| net.parse::<IpNet>().is_ok_and(|net| net.addr() == address))
}

/// Waits for all connections of a test.
async fn all(arriving: &mut mpsc::Receiver<TcpStream>, request: &Request) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    while streams.len() < usize::from(request.streams)
        && let Some(stream) = arriving.recv().await
    {
        streams.push(stream);
    }
    streams
}

/// Samples until the end, at most ten lines a second.
async fn observe(mut sampler: Sampler, watch: &Watch, replies: mpsc::UnboundedSender<Reply>) {
    let (until, mut is_broken) = (sampler.until(), false);
    while !is_broken && !sampler.is_over() {
        match sampler.next().await {
            Ok(sample) => is_broken = replies.send(Reply::Sample(Box::new(sample))).is_err(),
            Err(error) => {
                is_broken = true;
                let _ = replies.send(Reply::Refused(Refusal::Failed(format!("the test broke off: {error}"))));
            }
        }
    }
    if !is_broken {
        sleep_until(until + SETTLE / 2).await;
        sampler.end();
        sleep_until(until + SETTLE).await;
        let _ = replies.send(Reply::End { counters: watch.now().await });
    }
}

/// Sends lines apart from sampling: on a full link they may wait.
async fn write_all(mut replies: mpsc::UnboundedReceiver<Reply>, answers: &mut OwnedWriteHalf) {
    while let Some(reply) = replies.recv().await {
        if protocol::write(answers, &reply).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_test_that_is_broken_off_is_followed_by_another_a_second_after_its_begin() {
        let site = Arc::new(Site {
            status: Arc::new(|| None),
            interface: String::new(),
            running: Mutex::default(),
            refusals: Refusals::default(),
            begun: Refusals::default(),
        });
        let request = Request {
            direction: Direction::Down,
            milliseconds: 60_000,
            streams: 1,
            congestion: None,
            udp: None,
        };
        for is_over in [true, false] {
            let mut claim = site.claim(&request).unwrap();
            claim.begin().unwrap();
            claim.is_over = is_over;
            drop(claim);
        }
        let Err(Refusal::Busy { seconds: 1 }) = site.claim(&request).map(|_| ()) else {
            panic!("it is not kept")
        };
        if let Some(running) = &mut *site.lock() {
            running.claimed -= HELD;
        }
        site.claim(&request).unwrap();
    }

    #[test]
    fn the_first_report_of_a_test_is_its_first_sample() {
        let probe: Status = Arc::new(|| panic!("another report is asked for"));
        let watch = Watch::after(probe, "peer", &StatusReport::default(), Instant::now());
        assert!(watch.look().is_some());
    }
}
