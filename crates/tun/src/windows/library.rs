//! Where wintun.dll is, whether it is for this processor, and whether it has the functions of Wintun. What
//! the system looks for elsewhere could be another program's, and runs with the rights of an administrator.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::windows::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use windows_sys::Win32::Foundation::ERROR_BAD_EXE_FORMAT;
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_WITH_ALTERED_SEARCH_PATH, LoadLibraryExW,
};

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
/// The functions of wintun.h, all of which tun-rs looks up.
const FUNCTIONS: [&CStr; 14] = [
    c"WintunAllocateSendPacket",
    c"WintunCloseAdapter",
    c"WintunCreateAdapter",
    c"WintunDeleteDriver",
    c"WintunEndSession",
    c"WintunGetAdapterLUID",
    c"WintunGetReadWaitEvent",
    c"WintunGetRunningDriverVersion",
    c"WintunOpenAdapter",
    c"WintunReceivePacket",
    c"WintunReleaseReceivePacket",
    c"WintunSendPacket",
    c"WintunSetLogger",
    c"WintunStartSession",
];

const FIND: &str = "find wintun.dll";
const LOAD: &str = "load wintun.dll";

/// Returns the absolute path of the library, beside this program. `name` is that of the interface.
pub(super) fn path(name: &str) -> Result<String, OpenError> {
    let path = std::env::current_exe().map(|program| program.with_file_name("wintun.dll"));
    let path = path.map_err(|source| failed(FIND, name, source))?;
    check(&path, name)?;
    path.into_os_string().into_string().map_err(|_| failed(FIND, name, io::ErrorKind::InvalidData.into()))
}

fn failed(action: &'static str, name: &str, source: io::Error) -> OpenError {
    OpenError::Io { action, name: name.to_owned(), source }
}

/// Checks that the file is a library for this processor with all functions of Wintun.
fn check(path: &Path, name: &str) -> Result<(), OpenError> {
    let shown = path.display().to_string();
    let wrong = || OpenError::WrongWintun { path: shown.clone(), processor: PROCESSOR };
    match machine_of(path) {
        Ok(MACHINE) => {}
        Ok(_) => return Err(wrong()),
        Err(error) => {
            return Err(match error.kind() {
                io::ErrorKind::NotFound => OpenError::NoWintun { path: shown, processor: PROCESSOR },
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => wrong(),
                _ => failed(LOAD, name, error),
            });
        }
    }
    match lacking(path, &FUNCTIONS) {
        Ok(None) => Ok(()),
        Ok(Some(function)) => {
            Err(OpenError::IncompleteWintun { path: shown, function, processor: PROCESSOR })
        }
        Err(error) if error.raw_os_error() == Some(ERROR_BAD_EXE_FORMAT.cast_signed()) => Err(wrong()),
        Err(error) => Err(failed(LOAD, name, error)),
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

/// Loads a library, and returns the first function that it lacks. It stays loaded: the device needs it next.
fn lacking(path: &Path, functions: &[&'static CStr]) -> io::Result<Option<&'static str>> {
    let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    // SAFETY: the path ends with a zero.
    let library = unsafe { LoadLibraryExW(path.as_ptr(), ptr::null_mut(), LOAD_WITH_ALTERED_SEARCH_PATH) };
    if library.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the library is loaded, and the name ends with a zero.
    let is_there = |name: &CStr| unsafe { GetProcAddress(library, name.as_ptr().cast()) }.is_some();
    Ok(functions.iter().find(|name| !is_there(name)).and_then(|name| name.to_str().ok()))
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
        let error = check(Path::new(r"C:\weft-test-none\wintun.dll"), "wg0").unwrap_err().to_string();
        let begin = r"C:\weft-test-none\wintun.dll is missing: put the wintun.dll for";
        assert!(error.starts_with(begin), "{error}");
    }

    #[test]
    fn a_library_without_a_function_is_told_with_its_name() {
        let system = Path::new(r"C:\windows\system32\kernel32.dll");
        assert_eq!(lacking(system, &[c"CreateFileW", c"ReadFile"]).unwrap(), None);
        assert_eq!(lacking(system, &[c"ReadFile", c"WintunSetLogger"]).unwrap(), Some("WintunSetLogger"));
        let error = check(system, "wg0").unwrap_err();
        assert!(
            matches!(&error, OpenError::IncompleteWintun { function, .. } if *function == "WintunAllocateSendPacket")
        );
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
