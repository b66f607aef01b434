//! Counts the handshakes on a cable.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::Socket;
use weft_lab::{Namespace, packet_socket};

const ETHERNET_HEADER: usize = 14;
const UDP_HEADER: usize = 8;
/// After how many seconds an initiation without an answer is repeated, and after how many an end that was
/// sent data and hears nothing begins (whitepaper, 6.1: Rekey-Timeout, Keepalive-Timeout + Rekey-Timeout).
const REKEY_TIMEOUT: u64 = 5;
const SILENCE: u64 = 15;
/// How long it waits for a frame before it looks whether it is to end.
const TICK: Duration = Duration::from_millis(50);

/// Handshake initiations seen since it began, by their sender.
pub(crate) struct Initiations {
    since: Instant,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    /// By the last byte of the source's IPv4 address: 1 or 2.
    of: [AtomicU64; 3],
    end: AtomicBool,
}

impl Initiations {
    /// Begins to count on eth0 of a namespace.
    pub(crate) fn count(namespace: &Namespace) -> Self {
        let mut socket = namespace.run(|| packet_socket::open("eth0", libc::ETH_P_ALL as u16)).unwrap();
        socket.set_read_timeout(Some(TICK)).unwrap();
        let counts = Arc::<Counts>::default();
        let shared = Arc::clone(&counts);
        let thread = std::thread::spawn(move || run(&mut socket, &shared));
        Self { since: Instant::now(), counts, thread: Some(thread) }
    }

    /// Checks that end 1 began a handshake at once, and that once was enough: only an initiation that gets no
    /// answer for 5 s is repeated, and the other end asks after 15 s of silence, as on a busy machine.
    #[track_caller]
    pub(crate) fn assert_one(&self) {
        let [first, second] = [1, 2].map(|end| self.counts.of[end].load(SeqCst));
        let seconds = self.since.elapsed().as_secs();
        assert!(first >= 1, "A did not begin");
        assert!(first <= 1 + seconds / REKEY_TIMEOUT, "A began {first} times in {seconds} s");
        assert!(second <= seconds / SILENCE, "B began {second} times in {seconds} s");
    }
}

impl Drop for Initiations {
    fn drop(&mut self) {
        self.counts.end.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(socket: &mut Socket, counts: &Counts) {
    // Longer frames are cut.
    let mut frame = [0u8; 256];
    while !counts.end.load(SeqCst) {
        let Ok(len) = socket.read(&mut frame) else { continue };
        if let Some(source) = initiation(&frame[..len]) {
            counts.of[usize::from(source).min(2)].fetch_add(1, SeqCst);
        }
    }
}

/// The last byte of the source, if it is a handshake initiation over IPv4.
fn initiation(frame: &[u8]) -> Option<u8> {
    let packet = frame.get(ETHERNET_HEADER..)?;
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let is_udp = packet.first()? >> 4 == 4 && packet.get(9) == Some(&17);
    let message = packet.get(header + UDP_HEADER..)?;
    (is_udp && message.len() == 148 && message.starts_with(&[1, 0, 0, 0])).then(|| packet[15])
}
