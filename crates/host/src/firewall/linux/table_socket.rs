//! Asks the kernel for tables of nftables, their chains and rules, without nft(8): often, and without a
//! process.

use std::io;

use rtnetlink::packet_core::{
    ErrorBuffer, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};

use crate::firewall::{Family, Table};

/// The types of the questions and the answers (linux/netfilter/nfnetlink.h, nf_tables.h:
/// NFNL_SUBSYS_NFTABLES, and NFT_MSG_GETTABLE, NFT_MSG_NEWTABLE and so on).
const GET_TABLE: u16 = 10 << 8 | 1;
const TABLE: u16 = 10 << 8;
const GET_CHAIN: u16 = 10 << 8 | 4;
const CHAIN: u16 = 10 << 8 | 3;
const GET_RULE: u16 = 10 << 8 | 7;
const RULE: u16 = 10 << 8 | 6;
const GET_GENERATION: u16 = 10 << 8 | 16;
const GENERATION: u16 = 10 << 8 | 15;
/// The attributes of a table (NFTA_TABLE_NAME, NFTA_TABLE_FLAGS), of a chain and a rule (NFTA_CHAIN_TABLE and
/// NFTA_RULE_TABLE, and so on), and of an expression in a rule (NFTA_EXPR_NAME).
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
/// The flag of a table that is not applied (NFT_TABLE_F_DORMANT).
const DORMANT: u32 = 1;
/// The attribute with the number of changes (NFTA_GEN_ID).
const GENERATION_ID: u16 = 1;
const PART_TABLE: u16 = 1;
const CHAIN_HANDLE: u16 = 2;
const CHAIN_NAME: u16 = 3;
const CHAIN_POLICY: u16 = 5;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
/// The expression that changes with each packet.
const COUNTER: &[u8] = b"counter\0";
/// The size of struct nfgenmsg, which precedes the attributes.
const FAMILY_HEADER: usize = 4;

/// How often a list is read again that changed while it was read.
const TRIES: usize = 10;

/// A chain or a rule, as far as it shows whether it is still the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// The name of a chain; a rule has none.
    pub(crate) name: String,
    /// What is added, or made again, has another number than all before it in its table. A rule that replaces
    /// another keeps its number.
    pub(crate) handle: u64,
    /// The policy of a chain, or the expressions of a rule as the kernel writes them, without what it counts.
    content: Vec<u8>,
}

/// What the kernel answers where it has no nftables (the last one: nfnetlink_rcv_msg without its module), or
/// does not know the family of a table.
const NO_NFTABLES: [i32; 4] = [libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT, libc::EOPNOTSUPP, libc::EINVAL];

/// Returns those of these tables that exist in the network namespace of this thread.
pub(super) fn existing(tables: impl IntoIterator<Item = Table>) -> io::Result<Vec<Table>> {
    with_flags(tables, |_| true)
}

/// Returns those of these tables that are applied, which dormant ones are not.
pub(super) fn active(tables: impl IntoIterator<Item = Table>) -> io::Result<Vec<Table>> {
    with_flags(tables, |flags| flags & DORMANT == 0)
}

/// Returns those of these tables that exist with such flags.
fn with_flags(
    tables: impl IntoIterator<Item = Table>,
    are_wanted: impl Fn(u32) -> bool,
) -> io::Result<Vec<Table>> {
    let Some(mut socket) = unless_lacking(TableSocket::open())? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for table in tables {
        if unless_lacking(socket.flags(&table))?.flatten().is_some_and(&are_wanted) {
            found.push(table);
        }
    }
    Ok(found)
}

/// Returns nothing where the kernel has no nftables.
fn unless_lacking<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if error.raw_os_error().is_some_and(|errno| NO_NFTABLES.contains(&errno)) => Ok(None),
        answer => answer.map(Some),
    }
}

/// A netlink socket of the network namespace of the thread that opened it.
pub(super) struct TableSocket(Socket);

impl TableSocket {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        // The answer is there once the question is sent.
        socket.set_non_blocking(true)?;
        socket.bind_auto()?;
        Ok(Self(socket))
    }

    /// Returns the flags of a table, if it exists.
    fn flags(&mut self, table: &Table) -> io::Result<Option<u32>> {
        let flags = |attributes: &[u8]| {
            let found = attributes_of(attributes).find(|(kind, _)| *kind == TABLE_FLAGS);
            found.map_or(0, |(_, value)| number(value) as u32)
        };
        let answer = self.one(GET_TABLE, table.family, &[(TABLE_NAME, &table.name)])?;
        Ok(content(&answer, TABLE)?.map(flags))
    }

    /// Returns a number that is another one after each change of the rules.
    pub(super) fn generation(&mut self) -> io::Result<u64> {
        let answer = self.one(GET_GENERATION, Family::Inet, &[])?;
        let attributes = content(&answer, GENERATION)?.ok_or_else(|| strange(()))?;
        let id = attributes_of(attributes).find(|(kind, _)| *kind == GENERATION_ID);
        id.map(|(_, value)| number(value)).ok_or_else(|| strange(()))
    }

    /// Returns a chain of a table, if it exists.
    pub(super) fn chain(&mut self, table: &Table, name: &str) -> io::Result<Option<Part>> {
        let attributes = [(PART_TABLE, table.name.as_str()), (CHAIN_NAME, name)];
        let answer = self.one(GET_CHAIN, table.family, &attributes)?;
        Ok(content(&answer, CHAIN)?.map(|attributes| part_of(CHAIN, attributes).1))
    }

    /// Returns the chains of a table. The kernel lists those of all tables of a family.
    pub(super) fn chains(&mut self, table: &Table) -> io::Result<Vec<Part>> {
        self.list_of(table, GET_CHAIN, CHAIN, &[])
    }

    /// Returns the rules of a table. The kernel lists those of all tables of a family before Linux 4.9.
    pub(super) fn rules(&mut self, table: &Table) -> io::Result<Vec<Part>> {
        self.list_of(table, GET_RULE, RULE, &[(PART_TABLE, &table.name)])
    }

    /// Returns the names of the tables of a family.
    pub(super) fn tables(&mut self, family: Family) -> io::Result<Vec<String>> {
        let all = self.list(family, GET_TABLE, TABLE, &[], |_| true)?;
        Ok(all.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns the answer to a question for one thing.
    fn one(&mut self, question: u16, family: Family, attributes: &[(u16, &str)]) -> io::Result<Vec<u8>> {
        self.ask(question, NLM_F_REQUEST, family, attributes)?;
        Ok(self.0.recv_from_full()?.0)
    }

    /// Returns what a list has of a table.
    fn list_of(
        &mut self,
        table: &Table,
        question: u16,
        kind: u16,
        attributes: &[(u16, &str)],
    ) -> io::Result<Vec<Part>> {
        let found = self.list(table.family, question, kind, attributes, |of| of == table.name)?;
        Ok(found.into_iter().map(|(_, part)| part).collect())
    }

    /// Returns what a list has of the tables that are wanted, with their names. A list that changes meanwhile
    /// may lack what is there, and is read again.
    fn list(
        &mut self,
        family: Family,
        question: u16,
        kind: u16,
        attributes: &[(u16, &str)],
        is_wanted: impl Fn(&str) -> bool,
    ) -> io::Result<Vec<(String, Part)>> {
        for _ in 0..TRIES {
            self.ask(question, NLM_F_REQUEST | NLM_F_DUMP, family, attributes)?;
            let (mut found, mut is_whole, mut is_at_end) = (Vec::new(), true, false);
            while !is_at_end {
                let (datagram, _) = self.0.recv_from_full()?;
                let mut rest = datagram.as_slice();
                while !rest.is_empty() && !is_at_end {
                    let message = NetlinkBuffer::new_checked(rest).map_err(strange)?;
                    is_whole &= message.flags() & NLM_F_DUMP_INTR == 0;
                    is_at_end = message.message_type() == NLMSG_DONE;
                    let length = message.length() as usize;
                    if !is_at_end && let Some(attributes) = content(&rest[..length], kind)? {
                        found.extend(Some(part_of(kind, attributes)).filter(|(table, _)| is_wanted(table)));
                    }
                    rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                }
            }
            if is_whole {
                return Ok(found);
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    fn ask(&self, kind: u16, flags: u16, family: Family, attributes: &[(u16, &str)]) -> io::Result<()> {
        self.0.send_to(&question(kind, flags, family, attributes), &SocketAddr::new(0, 0), 0).map(drop)
    }
}

fn strange<T>(_: T) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an unknown answer")
}

/// Returns the attributes of an answer of this type; `None`: the kernel does not find what was asked for.
fn content(answer: &[u8], kind: u16) -> io::Result<Option<&[u8]>> {
    let message = NetlinkBuffer::new_checked(answer).map_err(strange)?;
    if message.message_type() == kind {
        return message.payload().get(FAMILY_HEADER..).map(Some).ok_or_else(|| strange(()));
    }
    let error = ErrorBuffer::new_checked(message.payload()).map_err(strange)?;
    match error.code().map_or(0, |code| -code.get()) {
        libc::ENOENT => Ok(None),
        errno if message.message_type() == NLMSG_ERROR => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(strange(())),
    }
}

/// Reads a chain or a rule, and the name of its table.
fn part_of(kind: u16, attributes: &[u8]) -> (String, Part) {
    let (mut table, mut part) = (String::new(), Part::default());
    for (attribute, value) in attributes_of(attributes) {
        match (kind, attribute) {
            (_, PART_TABLE) => table = text(value),
            (CHAIN, CHAIN_NAME) => part.name = text(value),
            (CHAIN, CHAIN_HANDLE) | (RULE, RULE_HANDLE) => part.handle = number(value),
            (CHAIN, CHAIN_POLICY) => part.content = value.to_vec(),
            (RULE, RULE_EXPRESSIONS) => {
                for (_, expression) in attributes_of(value) {
                    let is_counter = attributes_of(expression).any(|it| it == (EXPRESSION_NAME, COUNTER));
                    part.content.extend_from_slice(if is_counter { COUNTER } else { expression });
                }
            }
            _ => {}
        }
    }
    (table, part)
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

/// Returns the types and values of attributes.
fn attributes_of(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = rest.first_chunk::<4>()?;
        let length = u16::from_ne_bytes([head[0], head[1]]);
        let kind = u16::from_ne_bytes([head[2], head[3]]) & libc::NLA_TYPE_MASK as u16;
        let value = rest.get(4..length.into())?;
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns a number, which has its highest byte first.
fn number(value: &[u8]) -> u64 {
    value.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns a message with attributes that are texts.
fn question(kind: u16, flags: u16, family: Family, attributes: &[(u16, &str)]) -> Vec<u8> {
    let family = match family {
        Family::Ip => libc::NFPROTO_IPV4,
        Family::Ip6 => libc::NFPROTO_IPV6,
        Family::Inet => libc::NFPROTO_INET,
    };
    let mut payload = vec![family as u8, 0, 0, 0];
    for (kind, text) in attributes {
        // The attribute with its header and the byte 0 that ends the text.
        let length = 4 + text.len() + 1;
        let start = payload.len();
        payload.extend_from_slice(&(length as u16).to_ne_bytes());
        payload.extend_from_slice(&kind.to_ne_bytes());
        payload.extend_from_slice(text.as_bytes());
        payload.resize(start + length.next_multiple_of(4), 0);
    }
    let mut bytes = vec![0; 16 + payload.len()];
    let mut message = NetlinkBuffer::new(&mut bytes);
    message.set_length(16 + payload.len() as u32);
    message.set_message_type(kind);
    message.set_flags(flags);
    message.payload_mut().copy_from_slice(&payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_there(answer: &[u8]) -> io::Result<bool> {
        content(answer, TABLE).map(|found| found.is_some())
    }

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
        assert!(is_there(&answer(TABLE, &[1, 0, 0, 0])).unwrap());
        assert!(!error(libc::ENOENT).unwrap());
        assert_eq!(error(libc::EPERM).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let whole = answer(NLMSG_ERROR, &(-libc::ENOENT).to_ne_bytes());
        for length in 0..whole.len() {
            assert!(is_there(&whole[..length]).is_err(), "{length} bytes");
        }
        assert!(is_there(&answer(NLMSG_ERROR, &[0; 8])).is_err(), "a consent without an answer");
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_chain_is_read_from_an_answer_and_from_a_part_of_it() {
        let read = [
            attribute(PART_TABLE, b"weft-wg0\0"),
            attribute(CHAIN_HANDLE, &3u64.to_be_bytes()),
            attribute(CHAIN_NAME, b"output\0"),
            attribute(CHAIN_POLICY, &1u32.to_be_bytes()),
        ]
        .concat();
        let chain = Part { name: "output".to_owned(), handle: 3, content: 1u32.to_be_bytes().to_vec() };
        assert_eq!(part_of(CHAIN, &read), ("weft-wg0".to_owned(), chain));
        for length in 0..read.len() {
            let _cut_off = part_of(CHAIN, &read[..length]);
        }
    }

    #[test]
    fn a_rule_is_the_same_whatever_it_has_counted() {
        const EXPRESSION: u16 = 1;
        const EXPRESSION_DATA: u16 = 2;
        let expression = |name: &[u8], data: &[u8]| {
            attribute(
                EXPRESSION,
                &[attribute(EXPRESSION_NAME, name), attribute(EXPRESSION_DATA, data)].concat(),
            )
        };
        let answer = |handle: u64, counted: &[u8], verdict: &[u8]| {
            let expressions =
                [expression(b"counter\0", counted), expression(b"immediate\0", verdict)].concat();
            [
                attribute(PART_TABLE, b"weft-wg0\0"),
                attribute(RULE_HANDLE, &handle.to_be_bytes()),
                attribute(RULE_EXPRESSIONS, &expressions),
            ]
            .concat()
        };
        let before = answer(4, &[0; 24], b"drop");
        let (table, rule) = part_of(RULE, &before);
        assert_eq!((table.as_str(), rule.handle), ("weft-wg0", 4));
        assert_eq!(part_of(RULE, &answer(4, &[7; 24], b"drop")).1, rule);
        assert_ne!(part_of(RULE, &answer(5, &[0; 24], b"drop")).1, rule, "added again");
        assert_ne!(part_of(RULE, &answer(4, &[0; 24], b"pass")).1, rule, "replaced");
        for length in 0..before.len() {
            let _cut_off = part_of(RULE, &before[..length]);
        }
    }
}
