//! Asks the system's resolver about a name, because the standard library does not return its error code.

use std::ffi::CString;
use std::ptr;

/// Reports whether the name does not exist, so that a retry is useless, as opposed to name servers that
/// cannot be reached.
pub(super) fn is_unknown(host: &str) -> bool {
    let Ok(host) = CString::new(host) else { return true };
    let mut found = ptr::null_mut();
    // SAFETY: the name is a C string, and the service and the hints may be null.
    let code = unsafe { libc::getaddrinfo(host.as_ptr(), ptr::null(), ptr::null(), &raw mut found) };
    if code == 0 && !found.is_null() {
        // SAFETY: the call above allocated the list, and nothing refers to it.
        unsafe { libc::freeaddrinfo(found) };
    }
    // FreeBSD has no code for a name without addresses.
    #[cfg(not(target_os = "freebsd"))]
    if code == libc::EAI_NODATA {
        return true;
    }
    matches!(code, libc::EAI_NONAME | libc::EAI_FAIL)
}
