//! The memory of a running process, searched for bytes that should not be there.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use nix::unistd::Pid;

/// A mapping of a process that it can read: `[heap]`, `[stack]`, a file, or none of these.
struct Mapping {
    start: u64,
    len: usize,
    name: String,
}

/// Where a text was found.
pub(crate) struct Place {
    address: u64,
    mapping: String,
    around: Vec<u8>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n  {:#x} {} {}", self.address, self.mapping, self.around.escape_ascii())
    }
}

/// What a process has in memory that it may write to or has written to.
pub(crate) struct Memory(Vec<(Mapping, Vec<u8>)>);

impl Memory {
    /// Reads it while the process runs. `None` where the kernel does not permit it.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let of_process = PathBuf::from(format!("/proc/{pid}"));
        let memory = File::open(of_process.join("mem")).ok()?;
        let maps = std::fs::read_to_string(of_process.join("maps")).ok()?;
        let read = |mapping: Mapping| {
            let mut bytes = vec![0; mapping.len];
            // It may be gone by now.
            memory.read_exact_at(&mut bytes, mapping.start).ok()?;
            Some((mapping, bytes))
        };
        let all: Vec<_> = maps.lines().filter_map(mapping).filter_map(read).collect();
        (!all.is_empty()).then_some(Self(all))
    }

    /// Every place of `text`.
    pub(crate) fn places(&self, text: &[u8]) -> Vec<Place> {
        let places = self.0.iter().flat_map(|(mapping, bytes)| {
            memchr::memmem::find_iter(bytes, text).map(|at| Place {
                address: mapping.start + at as u64,
                mapping: mapping.name.clone(),
                around: bytes[at.saturating_sub(64)..(at + text.len() + 64).min(bytes.len())].to_vec(),
            })
        });
        places.collect()
    }

    /// Every 32 bytes that could be a key, because `is_key` says so of bytes that look random.
    pub(crate) fn keys(&self, is_key: impl Fn(&[u8; 32]) -> bool) -> Vec<[u8; 32]> {
        let mut found: Vec<[u8; 32]> = Vec::new();
        for (_, bytes) in &self.0 {
            // With the start of the next page: a key may cross the border.
            let pages =
                (0..bytes.len()).step_by(4096).map(|start| &bytes[start..bytes.len().min(start + 4124)]);
            for page in pages.filter(|page| page.iter().any(|byte| *byte != 0)) {
                for window in page.windows(32).step_by(4) {
                    let Some(key) = window.first_chunk().filter(|key| looks_random(key)) else { continue };
                    if !found.contains(key) && is_key(key) {
                        found.push(*key);
                    }
                }
            }
        }
        found
    }
}

/// Whether the bytes are not text, pointers or small numbers: of 32 random bytes about 30 differ.
fn looks_random(bytes: &[u8; 32]) -> bool {
    let mut seen = [0u64; 4];
    for byte in bytes {
        seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
    seen.iter().map(|word| word.count_ones()).sum::<u32>() >= 20
}

/// One line of `/proc/PID/maps`. Code and constants are left out: nothing of them was written.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (range, permissions) = (words.next()?, words.next()?);
    let name = words.nth(3).unwrap_or("anonymous").to_owned();
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16));
    let (start, end) = (start.ok()?, end.ok()?);
    let is_written = permissions.starts_with("rw") && !name.starts_with("[v");
    is_written.then_some(Mapping { start, len: usize::try_from(end - start).ok()?, name })
}
