//! Ends the waits of a thread from another thread: an event for the driver's wait, and one beside a timer.

use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use tun_rs::InterruptEvent;
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateEventW, CreateWaitableTimerExW, INFINITE, SetEvent,
    SetWaitableTimer, TIMER_ALL_ACCESS, WaitForMultipleObjects,
};

use super::descriptor::Pollable;
use super::queue::{Until, Woken};

/// Ends the waits of one thread.
pub(super) struct Wake {
    interrupt: InterruptEvent,
    /// Resets itself when it ends a wait.
    event: OwnedHandle,
    /// Made when the thread pauses for the first time.
    timer: OnceLock<Option<OwnedHandle>>,
}

impl std::fmt::Debug for Wake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wake").field("event", &self.event).finish_non_exhaustive()
    }
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no attributes and no name; the handle is owned from here on.
        let event = unsafe { owned(CreateEventW(ptr::null(), 0, 0, ptr::null())) };
        let event = event.ok_or_else(io::Error::last_os_error)?;
        Ok(Self { interrupt: InterruptEvent::new()?, event, timer: OnceLock::new() })
    }

    /// Ends the present wait, or the next one.
    pub(super) fn wake(&self) -> io::Result<()> {
        self.interrupt.trigger()?;
        // SAFETY: the handle is open as long as `self`.
        match unsafe { SetEvent(self.event.as_raw_handle()) } {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Waits for the queue, until another thread ends the wait.
    pub(super) fn wait(&self, queue: &impl Pollable, until: Until) -> io::Result<Woken> {
        if until == Until::Writable {
            // A ring does not announce room, so the writer pauses instead.
            return Ok(Woken::Ready);
        }
        match queue.wait_readable(&self.interrupt) {
            Ok(()) => Ok(Woken::Ready),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.interrupt.reset()?;
                Ok(Woken::Asked)
            }
            Err(error) => {
                tracing::debug!(%error, "the TUN is gone");
                Ok(Woken::Gone)
            }
        }
    }

    /// Waits for this time at most, to a fraction of a millisecond: a wait with a timeout would last until
    /// the next tick of the system's clock, which is up to 16 ms away.
    pub(super) fn park(&self, time: Duration) {
        let Some(timer) = self.timer.get_or_init(timer) else {
            thread::sleep(time);
            return;
        };
        // In units of 100 ns; negative from now on.
        let due = -i64::try_from(time.as_nanos() / 100).unwrap_or(i64::MAX).max(1);
        let handles = [self.event.as_raw_handle(), timer.as_raw_handle()];
        // SAFETY: both handles are open as long as `self`, and `due` and `handles` live until after the
        // calls.
        unsafe {
            if SetWaitableTimer(timer.as_raw_handle(), &raw const due, 0, None, ptr::null(), 0) == 0 {
                thread::sleep(time);
                return;
            }
            WaitForMultipleObjects(2, handles.as_ptr(), 0, INFINITE);
        }
    }
}

/// Returns a timer of high resolution, which Windows has since 10 version 1803, or another.
fn timer() -> Option<OwnedHandle> {
    [CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, 0].into_iter().find_map(|flags| {
        // SAFETY: no attributes and no name; the handle is owned from here on.
        unsafe { owned(CreateWaitableTimerExW(ptr::null(), ptr::null(), flags, TIMER_ALL_ACCESS)) }
    })
}

/// Returns the owner of a handle; `None` if it is null.
///
/// # Safety
/// A handle that is not null is open, and nothing else closes it.
unsafe fn owned(handle: *mut std::ffi::c_void) -> Option<OwnedHandle> {
    // SAFETY: as promised by the caller.
    (!handle.is_null()).then(|| unsafe { OwnedHandle::from_raw_handle(handle) })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_pause_lasts_as_long_as_it_should_and_another_thread_can_end_it() {
        let wake = Wake::new().unwrap();
        for micros in [1, 100, 2000] {
            let (pause, start) = (Duration::from_micros(micros), Instant::now());
            wake.park(pause);
            assert!(start.elapsed() >= pause);
        }
        thread::scope(|scope| {
            scope.spawn(|| wake.wake().unwrap());
            wake.park(Duration::from_secs(3600));
        });
    }
}
