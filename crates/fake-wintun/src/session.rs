//! The two rings of an adapter, and the threads between them and the kernel.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::UdpSocket;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{CreateEventW, SetEvent};

/// Packets that wait for weft; the kernel's driver drops what is more.
const RECEIVE_PACKETS: usize = 8192;

/// Returns a number from the environment.
pub(crate) fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// A session of an adapter.
pub(crate) struct Session {
    shared: Arc<Shared>,
    /// Packets that weft has sent, for the thread that gives them to the kernel.
    sent: mpsc::Sender<Vec<u8>>,
    ring_bytes: usize,
    /// Number of times that the send ring had no room.
    full: AtomicU64,
    /// Packets in the hands of weft, by their addresses.
    lent: Mutex<HashMap<usize, Vec<u8>>>,
}

/// What a session shares with its threads.
struct Shared {
    received: Mutex<VecDeque<Vec<u8>>>,
    /// Signalled when there is something to receive; resets itself.
    readable: OwnedHandle,
    used_bytes: AtomicUsize,
    has_ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes that a packet takes in a ring: its length before it, aligned to 4 bytes.
fn ring_bytes_of(len: usize) -> usize {
    (4 + len).next_multiple_of(4)
}

impl Session {
    pub(crate) fn start(ring_bytes: u32) -> io::Result<Self> {
        let kernel = std::env::var("WEFT_FAKE_WINTUN_KERNEL").map_err(io::Error::other)?;
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(kernel)?;
        // The kernel learns the address.
        socket.send(&[])?;
        // SAFETY: no attributes and no name; the handle is owned from here on.
        let event = unsafe { CreateEventW(ptr::null(), 0, 0, ptr::null()) };
        if event.is_null() {
            return Err(io::Error::last_os_error());
        }
        let shared = Arc::new(Shared {
            received: Mutex::default(),
            // SAFETY: it was just opened, and nothing else closes it.
            readable: unsafe { OwnedHandle::from_raw_handle(event) },
            used_bytes: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
        });
        let (sent, to_kernel) = mpsc::channel();
        let (from_kernel, reading) = (socket.try_clone()?, Arc::clone(&shared));
        std::thread::spawn(move || reading.receive(&from_kernel));
        let writing = Arc::clone(&shared);
        std::thread::spawn(move || writing.send(&socket, &to_kernel));
        let ring_bytes = variable("WEFT_FAKE_WINTUN_RING").unwrap_or(ring_bytes as usize);
        Ok(Self { shared, sent, ring_bytes, full: AtomicU64::new(0), lent: Mutex::default() })
    }

    pub(crate) fn readable(&self) -> HANDLE {
        self.shared.readable.as_raw_handle()
    }

    /// Lends the next packet for weft.
    pub(crate) fn receive(&self) -> Option<(*mut u8, u32)> {
        let packet = lock(&self.shared.received).pop_front()?;
        let len = packet.len() as u32;
        Some((self.lend(packet), len))
    }

    /// Lends room for a packet of weft; `None` if the ring is full.
    pub(crate) fn allocate(&self, len: u32) -> Option<*mut u8> {
        let bytes = ring_bytes_of(len as usize);
        if self.shared.used_bytes.fetch_add(bytes, SeqCst) + bytes > self.ring_bytes {
            self.shared.used_bytes.fetch_sub(bytes, SeqCst);
            self.full.fetch_add(1, SeqCst);
            return None;
        }
        Some(self.lend(vec![0; len as usize]))
    }

    /// Takes a packet of weft for the kernel.
    pub(crate) fn send(&self, packet: *const u8) {
        if let Some(packet) = self.take(packet) {
            // The thread runs as long as this end exists.
            let _ = self.sent.send(packet);
        }
    }

    fn lend(&self, mut packet: Vec<u8>) -> *mut u8 {
        let start = packet.as_mut_ptr();
        lock(&self.lent).insert(start.addr(), packet);
        start
    }

    /// Takes a packet back.
    pub(crate) fn take(&self, packet: *const u8) -> Option<Vec<u8>> {
        lock(&self.lent).remove(&packet.addr())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, SeqCst);
        eprintln!("fake wintun: ring_full={}", self.full.load(SeqCst));
    }
}

impl Shared {
    fn receive(&self, socket: &UdpSocket) {
        let mut buffer = vec![0; 65_536];
        while !self.has_ended.load(SeqCst) {
            // An ICMP message about the kernel's socket is an error of one call.
            let Ok(len) = socket.recv(&mut buffer) else { continue };
            let mut received = lock(&self.received);
            if received.len() < RECEIVE_PACKETS {
                received.push_back(buffer[..len].to_vec());
            }
            drop(received);
            // SAFETY: the handle is open as long as `self`.
            unsafe { SetEvent(self.readable.as_raw_handle()) };
        }
    }

    fn send(&self, socket: &UdpSocket, packets: &mpsc::Receiver<Vec<u8>>) {
        let pause = variable("WEFT_FAKE_WINTUN_PAUSE_US").map(Duration::from_micros);
        for packet in packets {
            if let Some(pause) = pause {
                std::thread::sleep(pause);
            }
            if let Err(error) = socket.send(&packet) {
                eprintln!("fake wintun: the kernel takes no packet: {error}");
            }
            self.used_bytes.fetch_sub(ring_bytes_of(packet.len()), SeqCst);
        }
    }
}
