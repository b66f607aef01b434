//! Files where there are no permission bits.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Always `None`: the directory decides about access.
pub(crate) fn other_owner(_: &File) -> Option<u32> {
    None
}

/// Reports whether the path exists: an open file cannot be replaced.
pub(crate) fn is_same_file(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Writes a file, and waits for the disk.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Does nothing: directories are not synced here.
pub(crate) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
