//! The allocator of the binary: wipes memory when it is freed, because it may hold keys.
//!
//! Text, requests and what boringtun keeps for a peer are freed in many places, also where a vector or a
//! table grows, and not all of these types can wipe themselves. A packet in steady state allocates nothing,
//! so this costs it nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{Ordering, compiler_fence};

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[path = "wiping_allocator/glibc.rs"]
mod system;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[path = "wiping_allocator/other.rs"]
mod system;

/// Has the system's allocator keep little of what was freed. Called at the start of the process.
pub fn keep_little() {
    system::keep_little();
}

/// Gives memory that was freed back to the system. It takes some milliseconds, in which other threads may
/// wait for memory: it is for the end of work that took much.
pub(crate) fn give_back() {
    system::give_back();
}

/// The allocator of the system, with memory wiped before it goes back.
#[derive(Debug)]
pub struct WipingAllocator;

// SAFETY: every block is one of the system's allocator, with the layout that it was asked for. `realloc` and
// `alloc_zeroed` follow the contract of `GlobalAlloc` by means of the other functions.
unsafe impl GlobalAlloc for WipingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller says that the block is allocated, with this layout, and not used any more.
        unsafe {
            wipe(block, layout.size());
            System.dealloc(block, layout);
        }
    }

    /// The system's would leave the old block unwiped where it moves it.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller says that `new_size`, rounded up to this alignment, is not too large.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the caller says that `new_size` is not zero.
        let new_block = unsafe { System.alloc(new_layout) };
        if !new_block.is_null() {
            // SAFETY: both blocks are allocated, at least this long and apart; the old one is not used any
            // more.
            unsafe {
                std::ptr::copy_nonoverlapping(block, new_block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        new_block
    }
}

/// # Safety
/// `block` is allocated, has `len` bytes, and is used by no one else.
unsafe fn wipe(block: *mut u8, len: usize) {
    // SAFETY: said above.
    unsafe { std::ptr::write_bytes(block, 0, len) };
    // The compiler must not remove what looks like a write before the end of the block.
    compiler_fence(Ordering::SeqCst);
}
