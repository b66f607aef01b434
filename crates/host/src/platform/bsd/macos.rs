//! What macOS knows of a process (libproc).

use super::Known;

pub(super) fn known(id: libc::pid_t) -> Option<Known> {
    let mut found = std::mem::MaybeUninit::<libc::proc_bsdinfo>::zeroed();
    let bytes = libc::c_int::try_from(size_of::<libc::proc_bsdinfo>()).ok()?;
    // SAFETY: the call writes at most `bytes` bytes to `found`, which has room for them.
    let written =
        unsafe { libc::proc_pidinfo(id, libc::PROC_PIDTBSDINFO, 0, found.as_mut_ptr().cast(), bytes) };
    if written != bytes {
        return None;
    }
    // SAFETY: it is made of numbers, and was zero before the call wrote to it.
    let found = unsafe { found.assume_init() };
    let started = found.pbi_start_tvsec.checked_mul(1_000_000)?.checked_add(found.pbi_start_tvusec)?;
    Some(Known { started, user: found.pbi_uid })
}
