//! The drain: a socket of the group that takes nothing. What cannot be WireGuard is put there and costs the kernel alone, and
//! its counter of drops tells junk from what did not fit a receive buffer.

use std::io;
use std::os::fd::AsRawFd;

use libc::sock_filter;

use super::program::{Key, instruction};
use super::steering::attach;

/// "weft", so that the program is known again.
const MARK: u32 = 0x7765_6674;
/// The mark, the key of the group, and the answer.
const INSTRUCTIONS: usize = Key::WORDS + 2;

/// Lets a socket take nothing. Its program also keeps the key for the process that takes the sockets over: with the same key
/// each source stays in its lane, and its datagrams in order.
pub(super) fn close(socket: &impl AsRawFd, key: Key) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_FILTER, &program(key))
}

fn program(key: Key) -> Vec<sock_filter> {
    let value = |value| instruction(libc::BPF_LD | libc::BPF_IMM, value);
    let answer = instruction(libc::BPF_RET | libc::BPF_K, 0);
    std::iter::once(MARK).chain(key.0).map(value).chain([answer]).collect()
}

/// The key that a drain keeps; `None` if the socket is no drain.
pub(super) fn key_of(socket: &impl AsRawFd) -> Option<Key> {
    const SO_GET_FILTER: libc::c_int = libc::SO_ATTACH_FILTER;
    let mut code = [instruction(0, 0); INSTRUCTIONS];
    // In instructions, not in bytes.
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
