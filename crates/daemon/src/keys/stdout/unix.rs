//! Who else has what is written to standard output.

use nix::sys::stat::{SFlag, fstat};

/// The permission bits of standard output, if it is a file that is open to everybody.
pub(super) fn open_to_all() -> Option<u32> {
    let status = fstat(std::io::stdout()).ok()?;
    let is_file = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
    // Its type is narrower on some systems.
    let mode = u32::from(status.st_mode) & 0o777;
    (is_file && mode & 0o007 != 0).then_some(mode)
}
