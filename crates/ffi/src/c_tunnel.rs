//! The functions of `include/weft.h` for a tunnel that ends in the process.

#![expect(unreachable_pub, reason = "the functions are found by their names")]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::c_api::{LAST, status, text};
use crate::{EmbeddedListener, EmbeddedTunnel, Error, MAX_TEXT_BYTES};

/// Numbers in the place of pointers.
struct Numbered<T> {
    what: &'static str,
    all: Mutex<BTreeMap<u64, Arc<T>>>,
}

static TUNNELS: Numbered<EmbeddedTunnel> = Numbered::new("tunnel");
static LISTENERS: Numbered<EmbeddedListener> = Numbered::new("listener");

impl<T> Numbered<T> {
    const fn new(what: &'static str) -> Self {
        Self { what, all: Mutex::new(BTreeMap::new()) }
    }

    fn add(&self, one: Arc<T>) -> u64 {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.all.lock().unwrap_or_else(PoisonError::into_inner).insert(number, one);
        number
    }

    fn find(&self, number: u64) -> Result<Arc<T>, Error> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&number).cloned().ok_or(Error::NoNumber(self.what, number))
    }

    fn retain(&self, mut stays: impl FnMut(&T) -> bool) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = all.extract_if(.., |_, one| !stays(one)).collect();
        // Dropped without the lock.
        drop(all);
        drop(gone);
    }

    fn remove(&self, number: u64) -> Result<Arc<T>, Error> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&number).ok_or(Error::NoNumber(self.what, number))
    }
}

/// `weft_address`.
#[repr(C)]
pub struct CAddress {
    ip: [c_char; 46],
    port: u16,
}

impl CAddress {
    fn of(address: SocketAddr) -> Self {
        let mut ip = [0; 46];
        // The longest has 45 characters.
        let text = address.ip().to_string();
        for (place, byte) in ip.iter_mut().zip(text.bytes()) {
            *place = byte as c_char;
        }
        Self { ip, port: address.port() }
    }
}

/// `weft_tunnel_statistics`.
#[repr(C)]
pub struct CStatistics {
    sent_bytes: u64,
    received_bytes: u64,
    last_handshake: i64,
    connections: u64,
    memory: u64,
}

/// Returns the pointer of a result, which is not NULL.
fn expect<T>(pointer: *mut T, name: &'static str) -> Result<*mut T, Error> {
    if pointer.is_null() { Err(Error::Null(name)) } else { Ok(pointer) }
}

/// Returns the text behind a pointer, of which errors say `what` it is.
///
/// # Safety
/// The pointer is NULL or that of a text which lives for `'a` and ends with a zero.
unsafe fn words<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str, Error> {
    // SAFETY: the caller's promise.
    unsafe { text(pointer) }.map_err(|error| match error {
        Error::Null(_) => Error::Null(what),
        Error::NotUtf8(at) => Error::Configuration(format!("{what} is not UTF-8 (byte {at})")),
        Error::TooLong => Error::Configuration(format!("{what} has more than {MAX_TEXT_BYTES} bytes")),
        error => error,
    })
}

fn time(milliseconds: u32) -> Option<Duration> {
    (milliseconds != 0).then(|| Duration::from_millis(milliseconds.into()))
}

/// Gives a socket to the program.
///
/// # Safety
/// There is room for a number behind the pointer.
unsafe fn give(socket: OwnedFd, to: *mut c_int) {
    // SAFETY: the caller's promise.
    unsafe { to.write(socket.into_raw_fd()) };
}

/// Writes an address if it is wanted.
///
/// # Safety
/// The pointer is NULL, or there is room for an address behind it.
unsafe fn tell(address: Option<SocketAddr>, to: *mut CAddress) {
    if let Some(address) = address.filter(|_| !to.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { to.write(CAddress::of(address)) };
    }
}

/// # Safety
/// As weft.h says: `pointer` is NULL or a text, `tunnel` NULL or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tunnel_open(pointer: *const c_char, memory: u64, tunnel: *mut u64) -> i32 {
    status(|| {
        let tunnel = expect(tunnel, "tunnel")?;
        // SAFETY: the caller's promise.
        let number = TUNNELS.add(EmbeddedTunnel::open(unsafe { words(pointer, "the text") }?, memory)?);
        // SAFETY: the caller's promise.
        unsafe { tunnel.write(number) };
        Ok(())
    })
}

/// # Safety
/// As weft.h says: `host` is NULL or a text, `descriptor` NULL or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_connect(
    tunnel: u64,
    host: *const c_char,
    port: u16,
    timeout_ms: u32,
    descriptor: *mut c_int,
) -> i32 {
    status(|| {
        let descriptor = expect(descriptor, "descriptor")?;
        // SAFETY: the caller's promise.
        let host = unsafe { words(host, "the host") }?;
        let socket = TUNNELS.find(tunnel)?.connect(host, port, time(timeout_ms))?;
        // SAFETY: the caller's promise.
        unsafe { give(socket, descriptor) };
        Ok(())
    })
}

/// # Safety
/// As weft.h says: `ip` is NULL or a text, `listener` NULL or room for a number, `at` NULL or room for an
/// address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_listen(
    tunnel: u64,
    ip: *const c_char,
    port: u16,
    listener: *mut u64,
    at: *mut CAddress,
) -> i32 {
    status(|| {
        let listener = expect(listener, "listener")?;
        // SAFETY: the caller's promise.
        let ip = unsafe { words(ip, "the address") }?;
        let ip = ip.parse().map_err(|_| Error::Address(ip.to_owned()))?;
        let opened = TUNNELS.find(tunnel)?.listen(ip, port)?;
        // SAFETY: the caller's promise.
        unsafe { tell(opened.local_addr(), at) };
        // SAFETY: the caller's promise.
        unsafe { listener.write(LISTENERS.add(Arc::new(opened))) };
        Ok(())
    })
}

/// # Safety
/// As weft.h says: `descriptor` is NULL or room for a number, `from` NULL or room for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_accept(
    listener: u64,
    timeout_ms: u32,
    descriptor: *mut c_int,
    from: *mut CAddress,
) -> i32 {
    status(|| {
        let descriptor = expect(descriptor, "descriptor")?;
        let (socket, address) = LISTENERS.find(listener)?.accept(time(timeout_ms))?;
        // SAFETY: the caller's promise.
        unsafe { tell(address, from) };
        // SAFETY: the caller's promise.
        unsafe { give(socket, descriptor) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_listener_close(listener: u64) -> i32 {
    status(|| {
        LISTENERS.find(listener)?.tunnel.expect_own()?;
        LISTENERS.remove(listener).map(drop)
    })
}

/// # Safety
/// As weft.h says: `host` is NULL or a text, `descriptor` NULL or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_udp(
    tunnel: u64,
    host: *const c_char,
    port: u16,
    descriptor: *mut c_int,
) -> i32 {
    status(|| {
        let descriptor = expect(descriptor, "descriptor")?;
        // SAFETY: the caller's promise.
        let socket = TUNNELS.find(tunnel)?.udp(unsafe { words(host, "the host") }?, port)?;
        // SAFETY: the caller's promise.
        unsafe { give(socket, descriptor) };
        Ok(())
    })
}

/// # Safety
/// As weft.h says: `statistics` is NULL or room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_tunnel_stats(tunnel: u64, statistics: *mut CStatistics) -> i32 {
    status(|| {
        let statistics = expect(statistics, "statistics")?;
        let (stats, peers) = TUNNELS.find(tunnel)?.stats()?;
        let seconds =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let last = peers.iter().filter_map(|peer| peer.last_handshake).max().map_or(0, seconds);
        let told = CStatistics {
            sent_bytes: peers.iter().map(|peer| peer.tx_bytes).sum(),
            received_bytes: peers.iter().map(|peer| peer.rx_bytes).sum(),
            last_handshake: i64::try_from(last).unwrap_or(i64::MAX),
            connections: stats.streams,
            memory: stats.reserved_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { statistics.write(told) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_tunnel_drain(tunnel: u64, timeout_ms: u32) -> i32 {
    status(|| TUNNELS.find(tunnel)?.drain(time(timeout_ms)))
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_tunnel_close(tunnel: u64) -> i32 {
    status(|| {
        let closed = TUNNELS.find(tunnel)?;
        closed.close()?;
        LISTENERS.retain(|listener| !Arc::ptr_eq(&listener.tunnel, &closed));
        TUNNELS.remove(tunnel).map(drop)
    })
}
