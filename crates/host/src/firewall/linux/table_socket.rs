//! Asks the kernel whether a table of nftables exists, without nft(8): often, and without a process.

use std::io;

use rtnetlink::packet_core::{ErrorBuffer, NLM_F_REQUEST, NLMSG_ERROR, NetlinkBuffer};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};

use crate::firewall::{Family, Table};

/// The types of the question and of the answer (linux/netfilter/nfnetlink.h, nf_tables.h:
/// NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE and NFT_MSG_NEWTABLE).
const QUESTION: u16 = 10 << 8 | 1;
const ANSWER: u16 = 10 << 8;
/// The attribute with the name of a table (NFTA_TABLE_NAME).
const NAME: u16 = 1;

/// What the kernel answers where it has no nftables (the last one: nfnetlink_rcv_msg without its module), or
/// does not know the family of a table.
const NO_NFTABLES: [i32; 4] = [libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT, libc::EOPNOTSUPP, libc::EINVAL];

/// Returns those of these tables that exist in the network namespace of this thread.
pub(super) fn existing(tables: impl IntoIterator<Item = Table>) -> io::Result<Vec<Table>> {
    let Some(mut socket) = unless_lacking(open())? else { return Ok(Vec::new()) };
    let mut existing = Vec::new();
    for table in tables {
        if unless_lacking(has(&mut socket, &table))? == Some(true) {
            existing.push(table);
        }
    }
    Ok(existing)
}

/// Returns nothing where the kernel has no nftables.
fn unless_lacking<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if error.raw_os_error().is_some_and(|errno| NO_NFTABLES.contains(&errno)) => Ok(None),
        answer => answer.map(Some),
    }
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    // The answer is there once the question is sent.
    socket.set_non_blocking(true)?;
    socket.bind_auto()?;
    Ok(socket)
}

fn has(socket: &mut Socket, table: &Table) -> io::Result<bool> {
    socket.send_to(&question(table), &SocketAddr::new(0, 0), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    is_there(&answer)
}

/// Reads the answer of the kernel.
fn is_there(answer: &[u8]) -> io::Result<bool> {
    let strange = |_| io::Error::new(io::ErrorKind::InvalidData, "an unknown answer");
    let answer = NetlinkBuffer::new_checked(answer).map_err(strange)?;
    if answer.message_type() == ANSWER {
        return Ok(true);
    }
    let error = ErrorBuffer::new_checked(answer.payload()).map_err(strange)?;
    match error.code().map_or(0, |code| -code.get()) {
        libc::ENOENT => Ok(false),
        errno if answer.message_type() == NLMSG_ERROR => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown answer")),
    }
}

/// Returns the message that asks for a table.
fn question(table: &Table) -> Vec<u8> {
    let family = match table.family {
        Family::Ip => libc::NFPROTO_IPV4,
        Family::Ip6 => libc::NFPROTO_IPV6,
        Family::Inet => libc::NFPROTO_INET,
    };
    // struct nfgenmsg, and the attribute with its header and the byte 0 that ends the name.
    let attribute = 4 + table.name.len() + 1;
    let mut payload = vec![family as u8, 0, 0, 0];
    payload.extend_from_slice(&(attribute as u16).to_ne_bytes());
    payload.extend_from_slice(&NAME.to_ne_bytes());
    payload.extend_from_slice(table.name.as_bytes());
    payload.resize(4 + attribute.next_multiple_of(4), 0);

    let mut bytes = vec![0; 16 + payload.len()];
    let mut message = NetlinkBuffer::new(&mut bytes);
    message.set_length(16 + payload.len() as u32);
    message.set_message_type(QUESTION);
    message.set_flags(NLM_F_REQUEST);
    message.payload_mut().copy_from_slice(&payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of the kernel of this type.
    fn answer(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 16 + payload.len()];
        let mut message = NetlinkBuffer::new(&mut bytes);
        message.set_length(16 + payload.len() as u32);
        message.set_message_type(kind);
        message.payload_mut().copy_from_slice(payload);
        bytes
    }

    #[test]
    fn only_what_the_kernel_does_not_find_is_not_there() {
        let error = |errno: i32| is_there(&answer(NLMSG_ERROR, &[(-errno).to_ne_bytes(), [0; 4]].concat()));
        assert!(is_there(&answer(ANSWER, &[1, 0, 0, 0])).unwrap());
        assert!(!error(libc::ENOENT).unwrap());
        assert_eq!(error(libc::EPERM).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let whole = answer(NLMSG_ERROR, &(-libc::ENOENT).to_ne_bytes());
        for length in 0..whole.len() {
            assert!(is_there(&whole[..length]).is_err(), "{length} bytes");
        }
        assert!(is_there(&answer(NLMSG_ERROR, &[0; 8])).is_err(), "a consent without an answer");
    }
}
