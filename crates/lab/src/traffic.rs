//! TCP traffic of the kernel's stack, with every byte checked on arrival.
//!
//! A flow begins with its seed, followed by the [`Content`] of that seed. When the sender has sent everything
//! it closes its direction, and the receiver replies with the number of bytes that it received and verified.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Namespace;
use super::content::{Content, mix};

/// A flow without progress for this long fails as stalled. A flow that a flood starves for some seconds tries
/// again only after as long once more (RFC 6298, section 5.5), and a flood of a test takes up to 15 s.
pub const STALL: Duration = Duration::from_secs(60);
/// Interval at which the acceptor checks whether it should end.
const ACCEPT_TICK: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 1024;
const READ_BUFFER: usize = 256 * 1024;
/// Congestion control of the senders, which every kernel has, whatever the host's default. Once a flood has
/// starved a flow of BBR, its estimate of the bandwidth stays at some segments a second for minutes.
const CONGESTION_CONTROL: &[u8] = b"reno";

#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// This number of bytes (streams) or datagrams (numbered flows).
    Count(u64),
    /// As much as possible until this time.
    Until(Instant),
}

/// A receiver's result for one flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedFlow {
    /// The seed that the sender announced.
    pub seed: u64,
    /// Bytes of content received.
    pub bytes: u64,
    /// Position of the first wrong byte.
    pub first_mismatch: Option<u64>,
    /// Why the flow ended, unless its sender completed it.
    pub error: Option<String>,
}

/// Accepts flows and checks them, with one thread per flow.
#[derive(Debug)]
pub struct TcpReceiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// Stops accepting flows, without waiting for the running ones.
impl Drop for TcpReceiver {
    fn drop(&mut self) {
        self.shared.ending.store(true, Relaxed);
    }
}

#[derive(Debug, Default)]
struct Shared {
    bytes: AtomicU64,
    ending: AtomicBool,
    flows: Mutex<Vec<JoinHandle<ReceivedFlow>>>,
}

impl TcpReceiver {
    /// Listens in the calling thread's namespace. Port 0 selects a free port.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let socket = socket2::SockRef::from(&listener);
        // Room for hundreds of flows opened at once: a SYN that finds the backlog full is retried a second
        // later.
        socket.listen(BACKLOG)?;
        // A receive timeout bounds accept(2) too (socket(7)).
        socket.set_read_timeout(Some(ACCEPT_TICK))?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let acceptor = {
            let shared = shared.clone();
            thread::Builder::new().name("tcp-accept".to_owned()).spawn(move || accept(&listener, &shared))?
        };
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Returns the address that the receiver listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of bytes received so far, over all flows.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }

    /// Returns the number of flows accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.flows.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Stops accepting flows, waits for the running ones and returns their results, ordered by seed.
    pub fn finish(mut self) -> Vec<ReceivedFlow> {
        self.shared.ending.store(true, Relaxed);
        let _ = self.acceptor.take().map(JoinHandle::join);
        let flows = std::mem::take(&mut *self.shared.flows.lock().unwrap_or_else(PoisonError::into_inner));
        let panicked = |_| ReceivedFlow { error: Some("the receiver panicked".into()), ..Default::default() };
        let mut flows: Vec<_> = flows.into_iter().map(|flow| flow.join().unwrap_or_else(panicked)).collect();
        flows.sort_by_key(|flow| flow.seed);
        flows
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.ending.load(Relaxed) {
        let Ok((stream, _)) = listener.accept() else { continue };
        let counter = shared.clone();
        let receive = move || {
            let mut flow = ReceivedFlow::default();
            if let Err(error) = receive(&stream, &mut flow, &counter.bytes) {
                flow.error = Some(error.to_string());
            }
            flow
        };
        if let Ok(thread) = thread::Builder::new().name("tcp-receive".to_owned()).spawn(receive) {
            shared.flows.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
    }
}

fn receive(mut stream: &TcpStream, flow: &mut ReceivedFlow, counter: &AtomicU64) -> io::Result<()> {
    stream.set_read_timeout(Some(STALL))?;
    let mut seed = [0; 8];
    stream.read_exact(&mut seed)?;
    flow.seed = u64::from_le_bytes(seed);
    let content = Content::new(flow.seed);
    let mut buffer = vec![0; READ_BUFFER];
    loop {
        let len = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(stalled(error)),
        };
        if flow.first_mismatch.is_none() {
            flow.first_mismatch = content.first_mismatch(flow.bytes, &buffer[..len]);
        }
        flow.bytes += len as u64;
        counter.fetch_add(len as u64, Relaxed);
    }
    stream.write_all(&flow.first_mismatch.unwrap_or(flow.bytes).to_le_bytes())
}

fn stalled(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, format!("nothing moved for {} s", STALL.as_secs()))
        }
        _ => error,
    }
}

/// Adds what the kernel's TCP waits for.
fn stalled_sender(stream: &TcpStream, error: io::Error) -> io::Error {
    let error = stalled(error);
    let Ok(info) = tcp_info(stream) else { return error };
    let text = format!(
        "{error}: {} segments under way, backed off {} times to {} ms, last sent {} ms ago, last acknowledged {} ms ago",
        info.tcpi_unacked,
        info.tcpi_backoff,
        info.tcpi_rto / 1_000,
        info.tcpi_last_data_sent,
        info.tcpi_last_ack_recv,
    );
    io::Error::new(error.kind(), text)
}

/// A sender's result for one flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentFlow {
    pub seed: u64,
    /// Bytes of content written to the socket.
    pub bytes: u64,
    /// Bytes that the receiver reported as received and verified.
    pub confirmed: u64,
    /// Segments that the kernel retransmitted.
    pub retransmits: u64,
    /// Why the flow failed.
    pub error: Option<String>,
}

/// Counters of running senders, and the means to stop them.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes written to the sockets.
    pub bytes: AtomicU64,
    /// Segments that the kernel retransmitted, over the flows that have ended.
    pub retransmits: AtomicU64,
    /// Set to end every sender at its next chunk.
    pub stop: AtomicBool,
    /// Why the first flow failed, if one has.
    pub error: OnceLock<String>,
}

/// Sends one flow from the calling thread's namespace and waits until the receiver has confirmed it.
pub fn send_stream(address: SocketAddr, amount: Amount, seed: u64, progress: &Progress) -> SentFlow {
    let mut flow = SentFlow { seed, ..SentFlow::default() };
    let result = send(address, amount, &mut flow, progress);
    ended(flow, result, progress)
}

/// Sends one flow over an existing connection, and waits until the receiver has confirmed it.
pub fn send_stream_over(stream: TcpStream, amount: Amount, seed: u64, progress: &Progress) -> SentFlow {
    let mut flow = SentFlow { seed, ..SentFlow::default() };
    let result = send_over(stream, amount, &mut flow, progress);
    ended(flow, result, progress)
}

fn ended(mut flow: SentFlow, result: io::Result<()>, progress: &Progress) -> SentFlow {
    flow.error = result.err().map(|error| error.to_string());
    if let Some(error) = &flow.error {
        let _ = progress.error.set(error.clone());
    }
    flow
}

fn send(address: SocketAddr, amount: Amount, flow: &mut SentFlow, progress: &Progress) -> io::Result<()> {
    let stream = TcpStream::connect_timeout(&address, STALL)?;
    socket2::SockRef::from(&stream).set_tcp_congestion(CONGESTION_CONTROL)?;
    send_over(stream, amount, flow, progress)
}

fn send_over(
    mut stream: TcpStream,
    amount: Amount,
    flow: &mut SentFlow,
    progress: &Progress,
) -> io::Result<()> {
    stream.set_write_timeout(Some(STALL))?;
    stream.set_read_timeout(Some(STALL))?;
    let result = send_content(&mut stream, amount, flow, progress);
    flow.retransmits = retransmits(&stream).unwrap_or(0);
    progress.retransmits.fetch_add(flow.retransmits, Relaxed);
    result
}

fn send_content(
    stream: &mut TcpStream,
    amount: Amount,
    flow: &mut SentFlow,
    progress: &Progress,
) -> io::Result<()> {
    let content = Content::new(flow.seed);
    stream.write_all(&flow.seed.to_le_bytes())?;
    while !progress.stop.load(Relaxed) {
        let mut chunk = content.at(flow.bytes);
        match amount {
            Amount::Count(bytes) => {
                let remaining = usize::try_from(bytes - flow.bytes).unwrap_or(usize::MAX);
                chunk = &chunk[..chunk.len().min(remaining)];
            }
            Amount::Until(end) if Instant::now() >= end => break,
            Amount::Until(_) => {}
        }
        if chunk.is_empty() {
            break;
        }
        let len = match stream.write(chunk) {
            Ok(len) => len as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(stalled_sender(stream, error)),
        };
        flow.bytes += len;
        progress.bytes.fetch_add(len, Relaxed);
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut confirmed = [0; 8];
    stream.read_exact(&mut confirmed).map_err(|error| stalled_sender(stream, error))?;
    flow.confirmed = u64::from_le_bytes(confirmed);
    Ok(())
}

/// Returns the number of segments that the kernel has retransmitted on this connection.
pub fn retransmits(stream: &TcpStream) -> io::Result<u64> {
    Ok(u64::from(tcp_info(stream)?.tcpi_total_retrans))
}

/// Returns the kernel's smoothed round-trip time of this connection.
pub fn round_trip(stream: &TcpStream) -> io::Result<Duration> {
    Ok(Duration::from_micros(tcp_info(stream)?.tcpi_rtt.into()))
}

fn tcp_info(stream: &TcpStream) -> io::Result<libc::tcp_info> {
    use std::os::fd::AsRawFd as _;
    // SAFETY: tcp_info is plain integers, for which zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// Several concurrent flows, with one thread per flow.
#[derive(Debug)]
pub struct TcpSenders {
    progress: Arc<Progress>,
    threads: Vec<JoinHandle<SentFlow>>,
}

impl TcpSenders {
    /// Starts `flows` flows from `namespace` to `address`, each with a distinct seed derived from `seed`.
    pub fn start(
        namespace: &Namespace,
        address: SocketAddr,
        flows: u32,
        amount: Amount,
        seed: u64,
    ) -> io::Result<Self> {
        let progress = Arc::<Progress>::default();
        let start_one = |flow: u32| {
            let progress = progress.clone();
            let seed = mix(seed).wrapping_add(u64::from(flow));
            thread::Builder::new()
                .name("tcp-send".to_owned())
                .spawn(move || send_stream(address, amount, seed, &progress))
        };
        // Threads started inside the namespace stay in it.
        let threads = namespace.run(|| (0..flows).map(start_one).collect::<io::Result<Vec<_>>>())?;
        Ok(Self { progress, threads })
    }

    /// Returns the counters of the flows.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Reports whether every flow has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Ends every flow at its next chunk. The flows still wait for their confirmation.
    pub fn stop(&self) {
        self.progress.stop.store(true, Relaxed);
    }

    /// Waits for every flow and returns the results.
    pub fn finish(self) -> Vec<SentFlow> {
        let panicked = |_| SentFlow { error: Some("the sender panicked".into()), ..Default::default() };
        self.threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> TcpReceiver {
        TcpReceiver::listen("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    #[test]
    fn a_stream_arrives_complete_and_is_confirmed() {
        let receiver = loopback();
        let progress = Progress::default();
        let sent = send_stream(receiver.local_addr(), Amount::Count(5_000_001), 3, &progress);
        let expected = SentFlow { seed: 3, bytes: 5_000_001, confirmed: 5_000_001, ..SentFlow::default() };
        assert_eq!(SentFlow { retransmits: 0, ..sent }, expected);
        assert_eq!(receiver.bytes(), 5_000_001);
        let received = ReceivedFlow { seed: 3, bytes: 5_000_001, ..ReceivedFlow::default() };
        assert_eq!(receiver.finish(), [received]);
        assert_eq!(progress.bytes.load(Relaxed), 5_000_001);
    }

    #[test]
    fn a_corrupted_byte_is_reported_by_its_position() {
        let receiver = loopback();
        let mut stream = TcpStream::connect(receiver.local_addr()).unwrap();
        let mut bytes = Content::new(9).at(0)[..1000].to_vec();
        bytes[700] ^= 0x10;
        stream.write_all(&9u64.to_le_bytes()).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_le_bytes(answer), 700);
        assert_eq!(receiver.finish()[0].first_mismatch, Some(700));
    }
}
