//! Answers of DNS servers: reading one takes memory in proportion to its length, whatever its header says.

use weft_dns_message::{Kind, Query};

use crate::memory::most_bytes;

/// The most bytes that are allocated for each byte of an answer, and for any answer.
const MEMORY_OF_A_BYTE: i64 = 64;
const MEMORY: i64 = 4 << 10;
/// The least bytes of a record with an address.
const LEAST_OF_A_RECORD: usize = 15;

pub(crate) fn check(bytes: &[u8]) {
    let query = Query::new("www.example.com", Kind::A).unwrap();
    let (memory, answer) = most_bytes(|| query.read(bytes));
    let allowed = MEMORY + MEMORY_OF_A_BYTE * i64::try_from(bytes.len()).unwrap();
    assert!(memory <= allowed, "{memory} bytes for {} bytes", bytes.len());
    let addresses = answer.map_or(0, |answer| answer.addresses.len());
    assert!(addresses * LEAST_OF_A_RECORD <= bytes.len(), "{addresses} addresses in {} bytes", bytes.len());
}
