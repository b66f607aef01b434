//! The text of the UAPI, at both ends: requests as the server parses them, answers as the client does.
//!
//! Every request is answered; a change that is accepted is written again as the same change; a state that is
//! read is written again as the same state.

use std::io::Write as _;

use weft_config::device::DeviceChange;
use weft_config::endpoint;
use weft_uapi::client::{answer, request};
use weft_uapi::{Answer, Errno, Request, RequestParser, Step};

/// The index of an interface that a scope names.
fn scope_of(name: &str) -> Option<u32> {
    match endpoint::parse(&format!("[fe80::1%{name}]:1"))? {
        std::net::SocketAddr::V6(address) => Some(address.scope_id()),
        std::net::SocketAddr::V4(_) => None,
    }
}

pub(crate) fn check(bytes: &[u8]) {
    let with_end = [b"set=1\n", bytes, b"\n\n"].concat();
    let (requests, refused) = parse(&with_end);
    assert!(!requests.is_empty() || refused > 0, "a request is answered");
    for change in parse(bytes).0.iter().chain(&requests) {
        let text = request::set(change);
        let (again, refused) = parse(&text);
        assert!(
            refused == 0 && again.len() == 1 && again[0] == *change,
            "a change is written as it was read"
        );
    }
    client(bytes);
    client(&[bytes, b"\nerrno=0\n\n"].concat());
}

/// Feeds lines to the parser. Returns the changes, and the number of refusals.
fn parse(bytes: &[u8]) -> (Vec<DeviceChange>, usize) {
    let mut parser = RequestParser::new(scope_of);
    let (mut changes, mut refused) = (Vec::new(), 0);
    let mut lines = bytes.split(|byte| *byte == b'\n');
    // What is behind the last line break is no line.
    lines.next_back();
    for line in lines {
        match parser.line(line) {
            Step::More => assert!(!parser.is_idle(), "a request has begun"),
            Step::Complete(Request::Get) => {}
            Step::Complete(Request::Set(change)) => changes.push(change),
            Step::Rejected(problem) => {
                assert!(Errno::from(&problem).number() < 0 && !problem.to_string().is_empty());
                refused += 1;
            }
            Step::Foreign => refused += 1,
        }
    }
    refused += usize::from(parser.end().is_some());
    assert!(parser.is_idle());
    (changes, refused)
}

fn client(bytes: &[u8]) {
    if let Ok(errno) = answer::parse_set(bytes) {
        let mut text = Vec::new();
        writeln!(text, "errno={errno}\n").unwrap();
        assert_eq!(answer::parse_set(&text), Ok(errno));
    }
    let Ok(Ok(reported)) = answer::parse_get(bytes) else { return };
    let (peers, port) = (reported.state.peers.len(), reported.state.settings.listen_port);
    let text = write(Answer::new(reported.state));
    let again = answer::parse_get(&text).unwrap().unwrap();
    assert_eq!((again.state.peers.len(), again.state.settings.listen_port), (peers, port));
    assert_eq!(write(Answer::new(again.state)), text, "a state is written as it was read");
}

fn write(mut answer: Answer) -> Vec<u8> {
    let mut text = Vec::new();
    loop {
        let before = text.len();
        if !answer.write_piece(&mut text).unwrap() {
            return text;
        }
        assert!(text.len() - before <= Answer::MAX_PIECE, "a piece is bounded");
    }
}
