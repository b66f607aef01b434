//! What the system's resolver says of a name, more exactly than the standard library tells.

use std::ffi::CString;
use std::ptr;

/// Whether there is no such name, so that asking again is of no use: as opposed to name servers that cannot be reached.
pub(super) fn is_unknown(host: &str) -> bool {
    let Ok(host) = CString::new(host) else { return true };
    let mut found = ptr::null_mut();
    // SAFETY: the name is a C string, and neither a service nor hints have to be given.
    let code = unsafe { libc::getaddrinfo(host.as_ptr(), ptr::null(), ptr::null(), &raw mut found) };
    if code == 0 && !found.is_null() {
        // SAFETY: the list was made by the call above, and nothing refers to it.
        unsafe { libc::freeaddrinfo(found) };
    }
    matches!(code, libc::EAI_NONAME | libc::EAI_NODATA | libc::EAI_FAIL)
}
