//! Where wintun.dll is, and whether it is for this processor. What the system looks for elsewhere could be another
//! program's, and runs with the rights of an administrator.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use crate::config::OpenError;

/// The processor of this program, as Wintun's files are called.
const PROCESSOR: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => "x86",
};
/// The same in the header of a library (IMAGE_FILE_MACHINE_…).
const MACHINE: u16 = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => 0x8664,
    b"aarch64" => 0xaa64,
    _ => 0x014c,
};

/// Returns the absolute path of the library, beside this program. `name` is that of the interface.
pub(super) fn path(name: &str) -> Result<String, OpenError> {
    let path = std::env::current_exe().map(|program| program.with_file_name("wintun.dll"));
    let failed = |source| OpenError::Io { action: "find wintun.dll", name: name.to_owned(), source };
    let path = path.map_err(failed)?;
    let shown = path.display().to_string();
    match machine_of(&path) {
        Ok(MACHINE) => {
            path.into_os_string().into_string().map_err(|_| failed(io::ErrorKind::InvalidData.into()))
        }
        Ok(_) => Err(OpenError::WrongWintun { path: shown, processor: PROCESSOR }),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Err(OpenError::NoWintun { path: shown, processor: PROCESSOR }),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Err(OpenError::WrongWintun { path: shown, processor: PROCESSOR })
            }
            _ => Err(OpenError::Io { action: "read wintun.dll", name: name.to_owned(), source: error }),
        },
    }
}

/// Reads the machine of a library from its header (PE Format, "MS-DOS Stub" and "COFF File Header").
fn machine_of(path: &Path) -> io::Result<u16> {
    let mut file = File::open(path)?;
    let mut offset = [0; 4];
    file.seek(SeekFrom::Start(0x3c))?;
    file.read_exact(&mut offset)?;
    let mut header = [0; 6];
    file.seek(SeekFrom::Start(u32::from_le_bytes(offset).into()))?;
    file.read_exact(&mut header)?;
    match header {
        [b'P', b'E', 0, 0, low, high] => Ok(u16::from_le_bytes([low, high])),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_that_of_the_program_itself() {
        assert_eq!(machine_of(&std::env::current_exe().unwrap()).unwrap(), MACHINE);
    }

    #[test]
    fn without_the_library_the_error_says_where_it_has_to_be() {
        let error = path("wg0").unwrap_err().to_string();
        assert!(error.contains("wintun.dll is missing: put the wintun.dll for"), "{error}");
    }
}
