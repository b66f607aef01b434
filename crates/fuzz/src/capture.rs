//! The blocks of a capture, as the client reads them from the control socket.
//!
//! Any bytes are blocks or are refused, and no block is passed on in parts; what weft writes, it reads.

use std::time::{Duration, SystemTime};

use weft_commands::capture::pcapng::{self, Packet, Statistics};

use crate::input::Input;

pub(crate) fn check(bytes: &[u8]) {
    blocks(bytes);
    let mut input = Input::new(bytes);
    let mut out = Vec::new();
    let at = |input: &mut Input<'_>| SystemTime::UNIX_EPOCH + Duration::from_micros(u64::from(input.u32()));
    pcapng::section(&mut out, "weft");
    pcapng::interface(&mut out, "wg0", "inner packets", 1 << 16);
    let (mut written, mut dropped) = (2, Vec::new());
    while !input.is_empty() && written < 50 {
        let at = at(&mut input);
        if input.byte() & 3 == 0 {
            let count = input.u32().into();
            let statistics = Statistics { interface: 0, from: at, until: at, seen: 9, dropped: count };
            pcapng::statistics(&mut out, &statistics);
            dropped.push(count);
        } else {
            let (head, len) = (input.below(200), input.below(200));
            let (head, tail) = (input.bytes(head), input.bytes(len));
            let comment = String::from_utf8_lossy(&tail[..tail.len().min(40)]).into_owned();
            let packet = Packet {
                interface: 0,
                at,
                bytes: [head, tail],
                len: head.len() + tail.len(),
                is_inbound: len & 1 == 0,
                comment: &comment,
            };
            pcapng::packet(&mut out, &packet);
        }
        written += 1;
    }
    let (read, counts) = blocks(&out).expect("what weft writes is refused");
    assert_eq!((read, counts), (written, dropped));
}

/// Reads blocks as long as there are any. Returns their number, and the drops that statistics report.
fn blocks(mut bytes: &[u8]) -> Option<(usize, Vec<u64>)> {
    let (mut count, mut dropped) = (0, Vec::new());
    while let Some(block) = pcapng::first_block(bytes).ok()? {
        assert!(block.bytes.len() >= 12 && bytes.starts_with(block.bytes));
        if block.kind() == 5 {
            dropped.push(block.dropped());
        }
        bytes = &bytes[block.bytes.len()..];
        count += 1;
    }
    Some((count, dropped))
}
