//! Values below /proc/sys.

use std::io;
use std::path::PathBuf;

fn path_of(name: &str) -> PathBuf {
    // A dot within the name of a device is written as a slash, and the other way round (sysctl(8)).
    let path: String = name
        .chars()
        .map(|c| {
            if c == '.' {
                '/'
            } else if c == '/' {
                '.'
            } else {
                c
            }
        })
        .collect();
    PathBuf::from("/proc/sys").join(path)
}

/// Returns the value, if it can be read.
pub(super) fn read(name: &str) -> Option<String> {
    std::fs::read_to_string(path_of(name)).ok().map(|value| value.trim().to_owned())
}

/// Sets the value.
pub(super) fn write(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(path_of(name), value)
}
