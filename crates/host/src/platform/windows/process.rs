//! Waits for another process on Windows, which has no signal by which it could be told to end. To end it by
//! force would leave its routes, name servers and filters behind.

use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::time::Duration;

use windows_sys::Win32::Foundation::{ERROR_INVALID_PARAMETER, FILETIME, WAIT_OBJECT_0, WAIT_TIMEOUT};
use windows_sys::Win32::System::Threading::{
    GetProcessTimes, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE, WaitForSingleObject,
};

use super::Process;

/// Returns the time at which a process was created, in units of 100 ns since 1601, if it still runs.
pub(super) fn started(id: u32) -> Option<u64> {
    let process = open(id).ok()??;
    // A process that has ended keeps its id as long as someone has a handle of it.
    if has_ended(&process, Duration::ZERO).ok()? { None } else { created(&process).ok() }
}

/// Always `None`: users have no numbers here. Only administrators change the directory of the records.
pub(super) fn user(_: u32) -> Option<u32> {
    None
}

/// Always false: the device of a process is not removed from outside.
pub(crate) fn has_lost_its_device(_: u32) -> bool {
    false
}

/// Waits for the end of a process, which was told to end by its control socket. Returns whether it has ended;
/// true if it had ended before.
pub(crate) fn end(process: Process, patience: Duration) -> io::Result<bool> {
    let Some(handle) = open(process.id)? else { return Ok(true) };
    // The handle refers to the process that has the id now.
    if created(&handle)? != process.started {
        return Ok(true);
    }
    has_ended(&handle, patience)
}

/// Opens a process; `None` if there is no such process.
fn open(id: u32) -> io::Result<Option<OwnedHandle>> {
    // SAFETY: the call takes numbers.
    let handle = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE, 0, id) };
    if handle.is_null() {
        let error = io::Error::last_os_error();
        let is_none = error.raw_os_error() == Some(ERROR_INVALID_PARAMETER.cast_signed());
        return if is_none { Ok(None) } else { Err(error) };
    }
    // SAFETY: the call has just opened it, and nothing else has it.
    Ok(Some(unsafe { OwnedHandle::from_raw_handle(handle) }))
}

fn created(process: &OwnedHandle) -> io::Result<u64> {
    let mut times = [FILETIME::default(); 4];
    let [created, exited, kernel, user] = &mut times;
    // SAFETY: the handle is open, and the four results outlive the call.
    let known = unsafe {
        GetProcessTimes(
            process.as_raw_handle(),
            &raw mut *created,
            &raw mut *exited,
            &raw mut *kernel,
            &raw mut *user,
        )
    };
    if known == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(created.dwHighDateTime) << 32 | u64::from(created.dwLowDateTime))
}

fn has_ended(process: &OwnedHandle, patience: Duration) -> io::Result<bool> {
    // The largest number would be no limit.
    let milliseconds = patience.as_millis().min(u128::from(u32::MAX - 1)) as u32;
    // SAFETY: the handle is open.
    match unsafe { WaitForSingleObject(process.as_raw_handle(), milliseconds) } {
        WAIT_OBJECT_0 => Ok(true),
        WAIT_TIMEOUT => Ok(false),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_waited_for_and_a_stranger_of_its_number_is_not() {
        // Reads its input until the end.
        let mut child =
            Command::new("cmd").args(["/c", "set /p line="]).stdin(Stdio::piped()).spawn().unwrap();
        let process = Process { id: child.id(), started: started(child.id()).unwrap() };
        assert!(process.is_alive());
        let stranger = Process { started: process.started + 1, ..process };
        assert!(!stranger.is_alive());
        assert!(end(stranger, Duration::ZERO).unwrap());
        assert!(!end(process, Duration::ZERO).unwrap(), "it runs");
        drop(child.stdin.take());
        assert!(end(process, Duration::from_secs(60)).unwrap());
        assert!(!process.is_alive(), "it has ended, and its handle is still open");
        child.wait().unwrap();
        drop(child);
        assert!(end(process, Duration::ZERO).unwrap(), "gone already");
    }
}
