//! The lines of the control socket, at both ends, and the state that one daemon leaves to the next.
//!
//! A line comes whole however it is cut, and one that is too long is refused; what is read is written again
//! as the same; a state of any content is taken over or refused.

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use weft::carried_over::State;
use weft_config::{Config, parse};
use weft_report::StatusReport;
use weft_report::control_socket::line::{self, LineBuffer, Request};
use weft_report::control_socket::{ManageError, ReloadReport};

use crate::input::Input;

/// Bytes of a line that are taken here.
const MOST: usize = 100;

pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() {
        b'c' => cuts(&mut input),
        b'r' => request(input.rest()),
        b's' => state(input.rest()),
        _ => {
            answer::<StatusReport>(input.rest());
        }
    }
}

fn cuts(input: &mut Input<'_>) {
    let (first, second) = (usize::from(input.byte()), usize::from(input.byte()));
    let bytes = input.bytes(1 << 14);
    let mut expected = bytes.split(|byte| *byte == b'\n').peekable();
    let mut buffer = LineBuffer::default();
    let (mut rest, mut sizes) = (bytes, [1 + first, 1 + second].into_iter().cycle());
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(sizes.next().unwrap().min(rest.len()));
        rest = behind;
        let mut taken = buffer.push(piece, MOST);
        loop {
            match taken {
                Ok(Some(line)) => {
                    assert_eq!(*line, expected.next().unwrap());
                    assert!(line.len() <= MOST && expected.peek().is_some());
                }
                Ok(None) => break,
                Err(_) => return assert!(expected.next().unwrap().len() > MOST, "a short line is refused"),
            }
            taken = buffer.next(MOST);
        }
    }
    let last = expected.next().unwrap();
    assert!(expected.next().is_none(), "every line came");
    assert_eq!((buffer.is_empty(), &*buffer.into_rest() as &[u8]), (last.is_empty(), last));
}

fn request(bytes: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Request<'_>>(bytes) else { return };
    if let Some(text) = request.config_base64.and_then(|base64| line::decode(base64).ok()) {
        assert_eq!(*line::decode(&line::encode(&text)).unwrap(), *text);
    }
    let text = line::to_line(&request, 0).unwrap();
    let again: Request<'_> = serde_json::from_slice(&text).unwrap();
    assert_eq!(*line::to_line(&again, 0).unwrap(), *text, "a request is written as it was read");
}

fn answer<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<line::Answer<T>>(bytes) else { return };
    let text = line::to_line(&answer, 0).unwrap();
    let again: line::Answer<T> = serde_json::from_slice(&text).unwrap();
    assert_eq!(*line::to_line(&again, 0).unwrap(), *text, "an answer is written as it was read");
    let _ = answer.error.map(|error| ManageError::from(error).to_string());
    let _ = serde_json::from_slice::<line::Answer<ReloadReport>>(bytes);
}

fn state(bytes: &[u8]) {
    let state = match State::from_bytes(bytes) {
        Ok(state) => state,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let text = state.to_bytes().unwrap();
    let again = State::from_bytes(&text).unwrap().to_bytes().unwrap();
    assert_eq!(*again, *text, "a state is written as it was read");
    let (now, wall_clock) = (Instant::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
    assert_eq!(state.remembered(now, wall_clock).len(), state.peers.len());
    let _ = state.clock_set_back(wall_clock);
    let config = file();
    let (places, endpoints) = (state.addresses(&config), config.endpoint_addresses());
    assert_eq!(places.len(), config.peers.len());
    // The next daemon makes this change; its own key is never a peer.
    let change = state.change(&config, &endpoints);
    assert!(change.peers.len() <= state.peers.len() + state.base.peers.len() + config.peers.len());
    let _ = (state.port(&config), state.mark(&config, 51_820));
}

/// The file of the next daemon.
fn file() -> Config {
    let text = "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\nListenPort = 7\n\
                [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = 10.0.0.2/32\n\
                Endpoint = 192.0.2.1:1\n[Peer]\nPublicKey = TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=\n\
                AllowedIPs = fd00::/64\nPersistentKeepalive = 25\n";
    parse(text, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config
}
