//! What glibc's allocator keeps for later. By itself it keeps most of what a moment needed: each large block
//! that is freed raises the size from which blocks are mapped separately, to 32 MiB at most, and so the next
//! ones come from heaps, between small blocks that stay.

/// The size in bytes from which a block is mapped separately, and unmapped when it is freed: glibc's own,
/// which then stays as it is.
const SEPARATE: libc::c_int = 128 << 10;

/// Has blocks that are large go back to the system when they are freed.
pub(super) fn keep_little() {
    // SAFETY: the function takes numbers alone, and has a lock.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, SEPARATE) };
}

/// Gives whole pages that are free, also between blocks that stay, back to the system.
pub(super) fn give_back() {
    // SAFETY: the function takes a number alone, and has locks.
    unsafe { libc::malloc_trim(0) };
}
