//! A named pipe that a daemon on Windows listens on, and the owner of one that a client has opened.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::{AsHandle, FromRawHandle as _, IntoRawHandle as _, OwnedHandle};
use std::path::{Path, PathBuf};

use tokio::net::windows::named_pipe::NamedPipeServer;
use tokio::sync::Mutex;
use windows_sys::Win32::Foundation::{ERROR_INVALID_OWNER, ERROR_PIPE_BUSY, INVALID_HANDLE_VALUE};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_FIRST_PIPE_INSTANCE, FILE_FLAG_OVERLAPPED, PIPE_ACCESS_DUPLEX, SECURITY_IDENTIFICATION,
};
use windows_sys::Win32::System::Pipes::{
    CreateNamedPipeW, PIPE_REJECT_REMOTE_CLIENTS, PIPE_TYPE_BYTE, PIPE_UNLIMITED_INSTANCES,
};

use crate::Source;
use crate::pipe_rules::{self, PIPES, interface};
use crate::security::{Descriptor, Owner, wide};

/// SYSTEM and Administrators may connect, from processes of high integrity (SDDL, \[MS-DTYP\] 2.5.1). A
/// service is SYSTEM and owns the pipe as such. An administrator may not give it away, so that his group owns
/// it.
const ACCESS: [&str; 2] = [
    "O:SYD:P(A;;GA;;;SY)(A;;GA;;;BA)S:(ML;;NWNRNX;;;HI)",
    "O:BAD:P(A;;GA;;;SY)(A;;GA;;;BA)S:(ML;;NWNRNX;;;HI)",
];
/// Bytes that the kernel keeps in each direction.
const BUFFER: u32 = 64 << 10;

const _: () = assert!(
    pipe_rules::PIPE_ACCESS_DUPLEX == PIPE_ACCESS_DUPLEX
        && pipe_rules::FILE_FLAG_OVERLAPPED == FILE_FLAG_OVERLAPPED
        && pipe_rules::FILE_FLAG_FIRST_PIPE_INSTANCE == FILE_FLAG_FIRST_PIPE_INSTANCE
);

/// Why a pipe cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process has a pipe of this name.
    #[error(
        "another daemon serves interface {} on {}; end it first, or choose another name", interface(path), path.display()
    )]
    Served {
        /// The path of the pipe.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {action} {}: {source}{}", path.display(), administrator_hint(source))]
    Io {
        /// The operation that failed.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl ListenError {
    /// Returns the kind of the operating system's error, or the closest kind for the other errors.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Served { .. } => io::ErrorKind::AddrInUse,
            Self::Io { source, .. } => source.kind(),
        }
    }
}

fn administrator_hint(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied { "; run weft as an administrator" } else { "" }
}

/// A pipe to which clients may connect already, and wait until it is served.
#[derive(Debug)]
pub struct Pipe {
    path: PathBuf,
    access: &'static str,
    first: OwnedHandle,
}

impl Pipe {
    /// Creates the pipe `path`, `\\.\pipe\NAME`.
    ///
    /// # Errors
    /// Those of [`ListenError`].
    pub fn open(path: &Path) -> Result<Self, ListenError> {
        let path = path.to_owned();
        // With the flag for the first instance the kernel refuses a second one as it refuses a user who may
        // not create it, so that this tells the two apart.
        if exists(&path) {
            return Err(ListenError::Served { path });
        }
        let [system, administrators] = ACCESS;
        let created = match instance(&path, system, true) {
            Err(error) if is(&error, ERROR_INVALID_OWNER) => {
                instance(&path, administrators, true).map(|first| (administrators, first))
            }
            first => first.map(|first| (system, first)),
        };
        match created {
            Ok((access, first)) => Ok(Self { path, access, first }),
            Err(source) => Err(ListenError::Io { action: "make the pipe", path, source }),
        }
    }

    /// Accepts clients, in the context of a tokio runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch the pipe.
    pub fn accept(self) -> io::Result<PipeListener> {
        Ok(PipeListener { path: self.path, access: self.access, waiting: Mutex::new(server(self.first)?) })
    }
}

/// A pipe that is served.
#[derive(Debug)]
pub struct PipeListener {
    path: PathBuf,
    access: &'static str,
    /// The instance that the next client connects to.
    waiting: Mutex<NamedPipeServer>,
}

impl PipeListener {
    /// Waits for a client. No client is lost if the future is dropped.
    ///
    /// # Errors
    /// Those of CreateNamedPipeW. The client that has connected is returned by a later call then.
    pub async fn next(&self) -> io::Result<(NamedPipeServer, Source)> {
        let mut waiting = self.waiting.lock().await;
        waiting.connect().await?;
        let next = server(instance(&self.path, self.access, false)?)?;
        Ok((std::mem::replace(&mut *waiting, next), Source::Unknown))
    }
}

/// Reports whether SYSTEM or the group of administrators owns a pipe that a client has opened. Keys are for
/// no other.
///
/// # Errors
/// When the owner cannot be read.
pub fn is_trusted(pipe: &impl AsHandle) -> io::Result<bool> {
    Ok(Owner::of(pipe)?.is_trusted())
}

/// Returns the names of the pipes below this prefix, `\\.\pipe\FOLDER`.
///
/// # Errors
/// When the system does not list them.
pub fn names_below(prefix: &str) -> io::Result<Vec<String>> {
    let pipes = fs::read_dir(PIPES)?.map(|entry| Ok(entry?.file_name()));
    let pipes: Vec<_> = pipes.collect::<io::Result<_>>()?;
    Ok(pipe_rules::below(prefix, pipes.iter().filter_map(|pipe| pipe.to_str())))
}

fn exists(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    match options.read(true).write(true).security_qos_flags(SECURITY_IDENTIFICATION).open(path) {
        Ok(_) => true,
        Err(error) => is(&error, ERROR_PIPE_BUSY),
    }
}

pub(crate) fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

/// Creates an instance of a pipe, for one client.
fn instance(path: &Path, access: &str, is_first: bool) -> io::Result<OwnedHandle> {
    let path = wide(&path.to_string_lossy());
    let access = Descriptor::parse(access)?;
    let attributes = access.attributes();
    // SAFETY: the path ends with a zero, and the attributes and their descriptor outlive the call.
    let handle = unsafe {
        CreateNamedPipeW(
            path.as_ptr(),
            pipe_rules::open_mode(is_first),
            PIPE_TYPE_BYTE | PIPE_REJECT_REMOTE_CLIENTS,
            PIPE_UNLIMITED_INSTANCES,
            BUFFER,
            BUFFER,
            0,
            &raw const attributes,
        )
    };
    if handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just opened it, and nothing else has it.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

fn server(instance: OwnedHandle) -> io::Result<NamedPipeServer> {
    // SAFETY: it is a pipe that was opened for overlapped calls, and it is given away.
    unsafe { NamedPipeServer::from_raw_handle(instance.into_raw_handle()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_make_a_pipe_is_told_who_may() {
        let path = PathBuf::from(r"\\.\pipe\ProtectedPrefix\Administrators\WireGuard\wg0");
        let of = |source| ListenError::Io { action: "make the pipe", path: path.clone(), source };
        let denied = of(io::ErrorKind::PermissionDenied.into());
        assert!(denied.to_string().ends_with("; run weft as an administrator"), "{denied}");
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        let other = of(io::ErrorKind::OutOfMemory.into());
        assert!(!other.to_string().contains("run weft as"), "{other}");
    }

    #[test]
    fn a_pipe_that_is_there_is_that_of_another_daemon() {
        let path = PathBuf::from(format!(r"\\.\pipe\weft-test-{}\wg0", std::process::id()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let first = Pipe::open(&path).unwrap().accept().unwrap();
        let error = Pipe::open(&path).unwrap_err();
        assert!(matches!(error, ListenError::Served { .. }), "{error}");
        assert!(error.to_string().starts_with("another daemon serves interface wg0 on "), "{error}");
        drop(first);
        Pipe::open(&path).unwrap();
    }
}
