//! A name server that changes its answers.

use std::net::{Ipv4Addr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex};

/// The A records of every name; none: there is no such name.
pub(crate) type Records = Arc<Mutex<Vec<Ipv4Addr>>>;

/// From now on every name has the addresses 192.0.2.x with these ends.
pub(crate) fn set(records: &Records, lasts: &[u8]) {
    *records.lock().unwrap() = lasts.iter().map(|&last| Ipv4Addr::new(192, 0, 2, last)).collect();
}

/// Answers at an address in this thread's network namespace, for as long as the process lives.
pub(crate) fn serve(at: impl ToSocketAddrs, records: &Records) {
    let socket = UdpSocket::bind(at).unwrap();
    let records = records.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..length], &records.lock().unwrap()) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
}

/// The answer to a question (RFC 1035, section 4), with a time to live of zero.
fn answer(question: &[u8], records: &[Ipv4Addr]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut end = HEADER;
    while *question.get(end)? != 0 {
        end += usize::from(question[end]) + 1;
    }
    let kind = question.get(end + 1..end + 3)?;
    let records = if kind == [0, 1] { records } else { &[] };
    // NXDOMAIN where there is nothing of any kind; the other kinds of a name that exists are empty.
    let code = if records.is_empty() && kind == [0, 1] { 3 } else { 0 };
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(records.len()).ok()?, 0, 0, 0, 0]);
    answer.extend(question.get(HEADER..end + 5)?);
    for record in records {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(record.octets());
    }
    Some(answer)
}
