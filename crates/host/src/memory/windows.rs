//! The memory of the machine, from GlobalMemoryStatusEx.

use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

pub(super) fn available_bytes() -> Option<u64> {
    status().map(|status| status.ullAvailPhys)
}

pub(super) fn total_bytes() -> Option<u64> {
    status().map(|status| status.ullTotalPhys)
}

fn status() -> Option<MEMORYSTATUSEX> {
    let mut status =
        MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..MEMORYSTATUSEX::default() };
    // SAFETY: the structure has its length, and outlives the call.
    (unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory_and_a_part_of_it_is_available() {
        let (available, total) = (available_bytes().unwrap(), total_bytes().unwrap());
        assert!(available > 0 && available <= total && total > 64 << 20, "{available} of {total}");
    }
}
