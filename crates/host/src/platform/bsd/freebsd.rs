//! What FreeBSD knows of a process (sysctl(3), `KERN_PROC_PID`).

use super::Known;

pub(super) fn known(id: libc::pid_t) -> Option<Known> {
    let mut found = std::mem::MaybeUninit::<libc::kinfo_proc>::zeroed();
    let mut length = size_of::<libc::kinfo_proc>();
    let name = [libc::CTL_KERN, libc::KERN_PROC, libc::KERN_PROC_PID, id];
    let words = libc::c_uint::try_from(name.len()).ok()?;
    // SAFETY: the kernel reads `words` numbers of the name, writes at most `length` bytes to `found` and
    // their number to `length`, and all three live until after the call.
    let result = unsafe {
        libc::sysctl(name.as_ptr(), words, found.as_mut_ptr().cast(), &raw mut length, std::ptr::null(), 0)
    };
    if result != 0 || length != size_of::<libc::kinfo_proc>() {
        return None;
    }
    // SAFETY: it is made of numbers and pointers that are not followed, and was zero before the call wrote to
    // it.
    let found = unsafe { found.assume_init() };
    let (seconds, micros) = (found.ki_start.tv_sec, found.ki_start.tv_usec);
    let started =
        u64::try_from(seconds).ok()?.checked_mul(1_000_000)?.checked_add(micros.try_into().ok()?)?;
    Some(Known { started, user: found.ki_uid })
}
