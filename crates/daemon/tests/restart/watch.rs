//! Counts the handshakes on a cable.

use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use weft_lab::Namespace;

const ETHERNET_HEADER: usize = 14;
const UDP_HEADER: usize = 8;

/// Handshake initiations that were seen since it began, by who sent them.
pub(crate) struct Initiations {
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
        let socket = namespace.run(open);
        let counts = Arc::<Counts>::default();
        let shared = Arc::clone(&counts);
        let thread = std::thread::spawn(move || run(&socket, &shared));
        Self { counts, thread: Some(thread) }
    }

    /// How many the end with this number has sent.
    pub(crate) fn of(&self, end: usize) -> u64 {
        self.counts.of[end].load(SeqCst)
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

fn run(socket: &OwnedFd, counts: &Counts) {
    let mut frame = [0u8; 256];
    while !counts.end.load(SeqCst) {
        // SAFETY: the buffer is as long as is said, and longer frames are cut.
        let len = unsafe { libc::recv(socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        let Ok(len) = usize::try_from(len) else { continue };
        if let Some(source) = initiation(&frame[..len.min(frame.len())]) {
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

fn open() -> OwnedFd {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the call takes numbers only.
    let socket =
        unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol)) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it was just made, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: sockaddr_ll is plain numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = nix::net::if_::if_nametoindex("eth0").unwrap().cast_signed();
    let tick = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    // SAFETY: both calls read as many bytes as are said, of what lives until they return.
    let result = unsafe {
        let bound = libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        );
        let timed = libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const tick).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        );
        (bound, timed)
    };
    assert_eq!(result, (0, 0), "{}", std::io::Error::last_os_error());
    socket
}
