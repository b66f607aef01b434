//! A named pipe. Its calls are overlapped: others have no time limit, and a read would hold up a write.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{
    ERROR_BROKEN_PIPE, ERROR_IO_PENDING, ERROR_OPERATION_ABORTED, ERROR_PIPE_BUSY, ERROR_PIPE_NOT_CONNECTED,
    ERROR_SEM_TIMEOUT, HANDLE, WAIT_OBJECT_0,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_OVERLAPPED, ReadFile, SECURITY_IDENTIFICATION, WriteFile,
};
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Pipes::WaitNamedPipeW;
use windows_sys::Win32::System::Threading::{CreateEventW, WaitForSingleObject};
use windows_sys::core::BOOL;

use crate::pipe::{is, is_trusted};
use crate::security::wide;

/// The users that may connect to a daemon, for messages.
pub const MAY_CONNECT: &str = "an administrator";

/// Only administrators can listen below the prefix, unless another program has the pipe already.
const STRANGER: &str = "neither SYSTEM nor the administrators own this pipe: nothing was sent; see which process has it, \
                        and end it";
/// More bytes in one call would be a lot of locked memory.
const PART: usize = 1 << 20;

/// A connection to a daemon. Several threads may use it.
#[derive(Debug)]
pub struct Connection {
    pipe: File,
}

impl Connection {
    /// Connects to the daemon that listens on the pipe `path`. SYSTEM or the administrators own the pipe:
    /// another process gets nothing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if no process listens, and [`io::ErrorKind::TimedOut`] at the deadline.
    pub fn connect(path: &Path, deadline: Instant) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(FILE_FLAG_OVERLAPPED);
        // The process that listens may not act in the name of this user.
        options.security_qos_flags(SECURITY_IDENTIFICATION);
        loop {
            match options.open(path) {
                Ok(pipe) if is_trusted(&pipe)? => return Ok(Self { pipe }),
                Ok(_) => return Err(io::Error::other(STRANGER)),
                Err(error) if is(&error, ERROR_PIPE_BUSY) => wait_for_place(path, deadline)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns no user: the owner was checked already.
    ///
    /// # Errors
    /// Never.
    pub fn server(&self) -> io::Result<Option<u32>> {
        Ok(None)
    }

    /// Returns nothing: what is asked of it differs on Linux only.
    #[allow(clippy::unused_self, reason = "on other systems it is the connection's")]
    pub fn server_process(&self) -> Option<u32> {
        None
    }

    /// Reads what has arrived, or waits for it. Returns 0 at the end of the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if nothing arrives until the deadline.
    pub fn read(&self, bytes: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let (start, length) = (bytes.as_mut_ptr(), bytes.len().min(PART) as u32);
        let read = self.transfer(deadline, |pipe, overlapped| {
            // SAFETY: `transfer` returns when the call has ended, and the bytes are borrowed until then.
            unsafe { ReadFile(pipe, start, length, ptr::null_mut(), overlapped) }
        });
        match read {
            Err(error) if is(&error, ERROR_BROKEN_PIPE) || is(&error, ERROR_PIPE_NOT_CONNECTED) => Ok(0),
            read => read,
        }
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the daemon has not taken them until the deadline.
    pub fn write_all(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let (start, length) = (bytes.as_ptr(), bytes.len().min(PART) as u32);
            let written = self.transfer(deadline, |pipe, overlapped| {
                // SAFETY: `transfer` returns when the call has ended, and the bytes are borrowed until then.
                unsafe { WriteFile(pipe, start, length, ptr::null_mut(), overlapped) }
            })?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Returns another handle of the connection, for another thread.
    ///
    /// # Errors
    /// When the process has no handle left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { pipe: self.pipe.try_clone()? })
    }

    /// Begins an overlapped call and waits for its end, which is its cancellation at the deadline. Returns
    /// the number of bytes that it has moved.
    fn transfer(
        &self,
        deadline: Instant,
        begin: impl FnOnce(HANDLE, *mut OVERLAPPED) -> BOOL,
    ) -> io::Result<usize> {
        // SAFETY: no attributes and no name.
        let event = unsafe { CreateEventW(ptr::null(), 1, 0, ptr::null()) };
        if event.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just opened it, and nothing else has it.
        let event = unsafe { OwnedHandle::from_raw_handle(event) };
        let pipe = self.pipe.as_raw_handle();
        let mut overlapped = OVERLAPPED { hEvent: event.as_raw_handle(), ..OVERLAPPED::default() };
        let overlapped = &raw mut overlapped;
        if begin(pipe, overlapped) == 0 {
            let error = io::Error::last_os_error();
            if !is(&error, ERROR_IO_PENDING) {
                return Err(error);
            }
            // SAFETY: the event is open.
            if unsafe { WaitForSingleObject(event.as_raw_handle(), milliseconds(deadline)) } != WAIT_OBJECT_0
            {
                // SAFETY: the pipe is open, and the structure exists. It fails if the call has just ended.
                unsafe { CancelIoEx(pipe, overlapped) };
            }
        }
        let mut moved = 0;
        // A cancelled call ends too, and may have moved bytes before: this waits for it.
        // SAFETY: the pipe is open, and both variables outlive the call.
        match unsafe { GetOverlappedResult(pipe, overlapped, &raw mut moved, 1) } {
            0 => Err(in_time(io::Error::last_os_error())),
            _ => Ok(moved as usize),
        }
    }
}

/// Waits until an instance of the pipe has no client.
fn wait_for_place(path: &Path, deadline: Instant) -> io::Result<()> {
    let path = wide(&path.to_string_lossy());
    // 0 would be the server's choice.
    let patience = milliseconds(deadline);
    if patience == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    // SAFETY: the path ends with a zero.
    match unsafe { WaitNamedPipeW(path.as_ptr(), patience) } {
        0 => Err(in_time(io::Error::last_os_error())),
        _ => Ok(()),
    }
}

/// Returns the time until the deadline, rounded up: a wait does not end before the deadline.
fn milliseconds(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    // The largest number would be no limit.
    let most = Duration::from_millis(u64::from(u32::MAX - 1));
    left.min(most).as_micros().div_ceil(1000) as u32
}

fn in_time(error: io::Error) -> io::Error {
    let is_over = is(&error, ERROR_OPERATION_ABORTED) || is(&error, ERROR_SEM_TIMEOUT);
    if is_over { io::ErrorKind::TimedOut.into() } else { error }
}
