//! Counts the bytes that a thread has allocated, so that a property can say that nothing stays allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static MOST_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator with a counter.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE_BYTES.with(|bytes| {
            bytes.set(bytes.get() + layout.size() as i64);
            bytes.get()
        });
        MOST_BYTES.with(|most| most.set(most.get().max(live)));
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.with(|bytes| bytes.set(bytes.get() - layout.size() as i64));
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes that this thread allocated and did not free.
pub fn live_bytes() -> i64 {
    LIVE_BYTES.with(Cell::get)
}

/// Returns the most bytes that this thread had allocated at once while it worked, beyond those before.
pub fn most_bytes<T>(work: impl FnOnce() -> T) -> (i64, T) {
    let before = live_bytes();
    MOST_BYTES.with(|most| most.set(before));
    let done = work();
    (MOST_BYTES.with(Cell::get) - before, done)
}
