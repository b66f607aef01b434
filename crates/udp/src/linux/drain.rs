//! The drain: a socket of the group that accepts nothing. Datagrams that cannot be WireGuard messages are put
//! there and cost only kernel time. Its drop counter tells them from datagrams that did not fit a receive
//! buffer.

use std::io;
use std::os::fd::AsRawFd;

use libc::sock_filter;

use super::program::{Key, instruction};
use super::steering::attach;

/// "weft", by which the program is recognized.
const MARK: u32 = 0x7765_6674;
/// One instruction for the mark, one for each word of the key of the group, and the return.
const INSTRUCTIONS: usize = Key::WORDS + 2;

/// Makes a socket accept nothing. The program also stores the key for the process that adopts the sockets:
/// with the same key each source stays in its lane, and its datagrams stay in order.
pub(super) fn close(socket: &impl AsRawFd, key: Key) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_FILTER, &program(key))
}

fn program(key: Key) -> Vec<sock_filter> {
    let value = |value| instruction(libc::BPF_LD | libc::BPF_IMM, value);
    let answer = instruction(libc::BPF_RET | libc::BPF_K, 0);
    std::iter::once(MARK).chain(key.0).map(value).chain([answer]).collect()
}

/// Returns the key that a drain stores; `None` if the socket is not a drain.
pub(super) fn key_of(socket: &impl AsRawFd) -> Option<Key> {
    const SO_GET_FILTER: libc::c_int = libc::SO_ATTACH_FILTER;
    let mut code = [instruction(0, 0); INSTRUCTIONS];
    // The length is in instructions, not in bytes.
    let mut len = INSTRUCTIONS as libc::socklen_t;
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
    if result != 0 || len as usize != INSTRUCTIONS {
        return None;
    }
    let key = Key(std::array::from_fn(|word| code[1 + word].k));
    let fields = |code: &sock_filter| (code.code, code.jt, code.jf, code.k);
    code.iter().map(fields).eq(program(key).iter().map(fields)).then_some(key)
}
