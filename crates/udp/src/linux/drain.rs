//! The drain: a socket of the group that accepts nothing. Datagrams that cannot be WireGuard messages are put
//! there and cost only kernel time. Its drop counter separates them from datagrams that did not fit a receive
//! buffer.

use std::io;
use std::os::fd::AsRawFd;

use libc::sock_filter;

use super::program::instruction;
use super::steering::attach;

/// "weft", by which the program is recognized.
const MARK: u32 = 0x7765_6674;

/// Makes a socket accept nothing.
pub(super) fn close(socket: &impl AsRawFd) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_FILTER, &program())
}

fn program() -> [sock_filter; 2] {
    [instruction(libc::BPF_LD | libc::BPF_IMM, MARK), instruction(libc::BPF_RET | libc::BPF_K, 0)]
}

/// Reports whether a socket is the drain of a weft, and with it the last socket of a complete group.
pub(super) fn is_drain(socket: &impl AsRawFd) -> bool {
    const SO_GET_FILTER: libc::c_int = libc::SO_ATTACH_FILTER;
    let mut code = [instruction(0, 0); 2];
    // The length is in instructions, not in bytes.
    let mut len = code.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` instructions to `code`, and both live until after the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_GET_FILTER,
            code.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let fields = |code: &sock_filter| (code.code, code.jt, code.jf, code.k);
    result == 0 && len as usize == code.len() && code.iter().map(fields).eq(program().iter().map(fields))
}
