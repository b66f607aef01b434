//! Descriptors of a process that was forked: what it inherited from the shell, or from weft, must not keep
//! another program's pipe or terminal open.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;

use nix::unistd::{close, dup2_stderr, dup2_stdin, dup2_stdout};

/// The first descriptor after standard input, output and error.
const FIRST: RawFd = 3;

/// Closes all descriptors but these; standard input, output and error lead nowhere. Their owners must not be
/// dropped in this process.
pub(crate) fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    close_those(|descriptor| !kept.contains(&descriptor))?;
    let null = null()?;
    dup2_stderr(&null)?;
    discard_input_and_output(&null)
}

/// Closes the descriptors that weft itself was given at its start, except standard error: those that it
/// opened are closed when a program is executed.
pub(crate) fn close_inherited() -> io::Result<()> {
    close_those(is_inherited)?;
    discard_input_and_output(&null()?)
}

fn close_those(is_closed: impl Fn(RawFd) -> bool) -> io::Result<()> {
    let names = std::fs::read_dir("/proc/self/fd")?.flatten();
    // Collected first: the directory has a descriptor too, which is closed by then.
    let open: Vec<RawFd> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor >= FIRST && is_closed(*descriptor)) {
        let _ = close(descriptor);
    }
    Ok(())
}

/// Reports whether a program that this process executes would get the descriptor, as this process got it.
fn is_inherited(descriptor: RawFd) -> bool {
    // SAFETY: the call takes numbers; that of a descriptor that is closed is an error.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

fn null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

fn discard_input_and_output(null: &File) -> io::Result<()> {
    dup2_stdin(null)?;
    Ok(dup2_stdout(null)?)
}
