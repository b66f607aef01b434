//! The functions of `include/weft.h`: arguments are checked, panics are caught, errors become a status and a
//! line.

#![expect(unreachable_pub, reason = "the functions are found by their names")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::Level;
use zeroize::Zeroize as _;

use crate::{Error, Interface, MAX_TEXT_BYTES, Options};

/// Numbers in the place of pointers: one that is wrong, or of an interface that is gone, is an error.
static INTERFACES: Mutex<BTreeMap<u64, Arc<Interface>>> = Mutex::new(BTreeMap::new());
pub(crate) static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

type Protect = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Logger = unsafe extern "C" fn(*mut c_void, c_int, *const c_char);

/// `weft_options`.
#[repr(C)]
pub struct COptions {
    memory_limit: u64,
    mtu: u16,
    protect: Option<Protect>,
    context: *mut c_void,
}

/// The pointer that the program gave, and gets with each callback.
#[derive(Clone, Copy)]
struct Context(*mut c_void);

// SAFETY: weft does not look behind the pointer; that other threads may use it is the program's promise
// (weft.h).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn get(self) -> *mut c_void {
        self.0
    }
}

fn interfaces() -> MutexGuard<'static, BTreeMap<u64, Arc<Interface>>> {
    INTERFACES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(number: u64) -> Result<Arc<Interface>, Error> {
    interfaces().get(&number).cloned().ok_or(Error::NoInterface(number))
}

/// Returns the status of a call, and keeps the line of an error.
pub(crate) fn status(call: impl FnOnce() -> Result<(), Error>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(Error::of_panic(&*panic)));
    let Err(error) = result else { return 0 };
    let line = CString::new(error.to_string().replace('\0', " ").replace('\n', "; ")).unwrap_or_default();
    // Fails only while the thread ends.
    let _ = LAST_ERROR.try_with(|last| last.replace(line));
    error.status()
}

/// As [`status`], for an interface: a panic ends it.
fn status_of(number: u64, call: impl FnOnce(&Interface) -> Result<(), Error>) -> i32 {
    status(|| {
        let interface = find(number)?;
        catch_unwind(AssertUnwindSafe(|| call(&interface))).unwrap_or_else(|panic| {
            let _ = interface.stop();
            Err(Error::of_panic(&*panic))
        })
    })
}

/// Returns the text behind a pointer.
///
/// # Safety
/// The pointer is NULL or that of a text which lives for `'a` and ends with a zero.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(Error::Null("the text"));
    }
    // SAFETY: the caller's promise; no more is read than up to the zero.
    if unsafe { libc::strnlen(pointer, MAX_TEXT_BYTES + 1) } > MAX_TEXT_BYTES {
        return Err(Error::TooLong);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|error| Error::NotUtf8(error.valid_up_to()))
}

/// # Safety
/// As weft.h says: `pointer` is NULL or a text, `options` NULL or options, `out` NULL or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_open(
    pointer: *const c_char,
    tun_fd: c_int,
    options: *const COptions,
    out: *mut u64,
) -> i32 {
    status(|| {
        if out.is_null() {
            return Err(Error::Null("interface"));
        }
        // SAFETY: the caller's promise.
        let text = unsafe { text(pointer) }?;
        // SAFETY: the caller's promise.
        let options = unsafe { options.as_ref() };
        let interface = Interface::open(text, tun_fd, options.map(COptions::read).unwrap_or_default())?;
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        interfaces().insert(number, Arc::new(interface));
        // SAFETY: the caller's promise, and the pointer is not NULL.
        unsafe { out.write(number) };
        Ok(())
    })
}

impl COptions {
    fn read(&self) -> Options {
        let context = Context(self.context);
        Options {
            mtu: self.mtu,
            memory_limit: (self.memory_limit != 0).then_some(self.memory_limit),
            protect: self.protect.map(|protect| -> crate::Protect {
                // SAFETY: the program's function, with the context and an open descriptor as it expects them.
                Box::new(move |socket| unsafe { protect(context.get(), socket.as_raw_fd()) == 0 })
            }),
        }
    }
}

/// # Safety
/// As weft.h says: `count` is NULL or a number, `descriptors` has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_sockets(number: u64, descriptors: *mut c_int, count: *mut usize) -> i32 {
    status_of(number, |interface| {
        if count.is_null() {
            return Err(Error::Null("count"));
        }
        // SAFETY: the caller's promise, and the pointer is not NULL.
        let room = unsafe { *count };
        if descriptors.is_null() && room > 0 {
            return Err(Error::Null("descriptors"));
        }
        interface.sockets(|sockets| {
            for (place, socket) in sockets.iter().take(room).enumerate() {
                // SAFETY: the caller's promise: there is room for `room` descriptors, and `place` is less.
                unsafe { descriptors.add(place).write(socket.as_raw_fd()) };
            }
            // SAFETY: as above.
            unsafe { count.write(sockets.len()) };
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_run(number: u64) -> i32 {
    status_of(number, Interface::run)
}

/// # Safety
/// As weft.h says: `pointer` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_set(number: u64, pointer: *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    status_of(number, |interface| interface.set(unsafe { text(pointer) }?))
}

/// # Safety
/// As weft.h says: `out` is NULL or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_get(number: u64, out: *mut *mut c_char) -> i32 {
    status_of(number, |interface| {
        if out.is_null() {
            return Err(Error::Null("text"));
        }
        let text = interface.get()?;
        // Of its exact size: growing would leave copies of keys behind.
        let mut copy = vec![0; text.len() + 1].into_boxed_slice();
        copy[..text.len()].copy_from_slice(&text);
        // SAFETY: the caller's promise, and the pointer is not NULL.
        unsafe { out.write(Box::into_raw(copy).cast()) };
        Ok(())
    })
}

/// # Safety
/// `pointer` is NULL or of [`weft_get`], and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_free_text(pointer: *mut c_char) {
    if pointer.is_null() {
        return;
    }
    // SAFETY: the caller's promise: the text ends with a zero, behind which its allocation ends.
    let len = unsafe { CStr::from_ptr(pointer) }.count_bytes() + 1;
    // SAFETY: as above.
    let mut text = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer.cast::<u8>(), len)) };
    text.zeroize();
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_network_changed(number: u64) -> i32 {
    status_of(number, Interface::network_changed)
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_stop(number: u64) -> i32 {
    status_of(number, Interface::stop)
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_free(number: u64) -> i32 {
    status_of(number, |interface| {
        interface.stop()?;
        interfaces().remove(&number);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_last_error() -> *const c_char {
    // The text stays where it is until it is replaced.
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// # Safety
/// `logger` may be called with `context` on any thread until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_set_logger(logger: Option<Logger>, context: *mut c_void, level: c_int) -> i32 {
    status(|| {
        let Some(logger) = logger else {
            crate::set_logger(None);
            return Ok(());
        };
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        let chosen = usize::try_from(level).ok().and_then(|level| levels.get(level.checked_sub(1)?)).copied();
        let chosen = chosen.ok_or(Error::Level(level))?;
        let context = Context(context);
        let forward: crate::Logger = Box::new(move |level, line| {
            let number =
                levels.iter().position(|other| *other == level).map_or(0, |place| place as c_int + 1);
            let line = CString::new(line).unwrap_or_default();
            // SAFETY: the caller's promise; the line lives until the call returns.
            unsafe { logger(context.get(), number, line.as_ptr()) };
        });
        crate::set_logger(Some((chosen, forward)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn weft_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
