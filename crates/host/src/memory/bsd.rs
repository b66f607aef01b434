//! The memory of the machine, from sysctl(3). Half of it stands in for what is available.

#[cfg(target_os = "freebsd")]
const ALL: &std::ffi::CStr = c"hw.physmem";
#[cfg(target_os = "macos")]
const ALL: &std::ffi::CStr = c"hw.memsize";

pub(super) fn available_bytes() -> Option<u64> {
    total_bytes().map(|total| total / 2)
}

pub(super) fn total_bytes() -> Option<u64> {
    let mut bytes = 0_u64;
    let mut length = size_of::<u64>();
    // SAFETY: the name ends with a zero, the kernel writes at most `length` bytes to `bytes` and their number
    // to `length`, and all three live until after the call.
    let result = unsafe {
        libc::sysctlbyname(ALL.as_ptr(), (&raw mut bytes).cast(), &raw mut length, std::ptr::null_mut(), 0)
    };
    (result == 0 && length == size_of::<u64>()).then_some(bytes)
}
