//! The text of the cross-platform UAPI, in and out.

use weft_config::device::{DeviceChange, DeviceState};
use weft_uapi::{Answer, Request, RequestParser, Step};
use zeroize::Zeroizing;

use crate::Error;

/// The maximum bytes of a text: thousands of peers.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// What ends an answer on a socket; a call has a status instead.
const OUTCOME: &[u8] = b"errno=0\n\n";

/// Parses a request that changes an interface. The empty line that ends it may be missing.
pub(crate) fn parse(text: &str) -> Result<DeviceChange, Error> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Error::TooLong);
    }
    let refused = |reason: &str| Error::Text(reason.to_owned());
    // The system's names of interfaces are not read: an endpoint with a scope has its number.
    let mut parser = RequestParser::new(|scope| scope.parse().ok());
    let mut lines = text.lines().chain(["", ""]);
    let change = loop {
        match parser.line(lines.next().unwrap_or_default().as_bytes()) {
            Step::More => {}
            Step::Complete(Request::Set(change)) => break change,
            Step::Complete(Request::Get) => return Err(refused("it asks for the state")),
            Step::Rejected(problem) => return Err(refused(&problem.to_string())),
            Step::Foreign => return Err(refused("it does not begin with `set=1`")),
        }
    };
    if lines.any(|line| !line.is_empty()) {
        return Err(refused("there is more after the empty line that ends the request"));
    }
    Ok(change)
}

/// Formats a state as the lines of an answer, with its keys.
pub(crate) fn format(state: DeviceState) -> Result<Zeroizing<Vec<u8>>, Error> {
    /// More than the lines of an interface or of a peer, and of an allowed-ip.
    const LINES: usize = 1024;
    const ALLOWED_IP: usize = 64;
    let prefixes: usize = state.peers.iter().map(|peer| peer.allowed_ips.len()).sum();
    // Never exceeds its capacity: a buffer that grows leaves copies of keys behind.
    let capacity = LINES * (1 + state.peers.len()) + ALLOWED_IP * prefixes;
    let mut text = Zeroizing::new(Vec::with_capacity(capacity));
    let mut answer = Answer::new(state);
    while answer.write_piece(&mut *text).map_err(|error| Error::System(error.to_string()))? {}
    if text.ends_with(OUTCOME) {
        let len = text.len() - OUTCOME.len();
        text.truncate(len);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use weft_config::settings::InterfaceSettings;

    use super::*;

    #[test]
    fn a_request_may_end_without_its_empty_line_and_is_alone() {
        let key = "01".repeat(32);
        for text in
            ["set=1", "set=1\n", "set=1\n\n", "set=1\r\nlisten_port=7\r\n\r\n", "set=1\nlisten_port=7"]
        {
            assert_eq!(
                parse(text).unwrap().settings.listen_port,
                text.contains("port").then_some(7),
                "{text:?}"
            );
        }
        assert_eq!(parse(&format!("set=1\npublic_key={key}\n")).unwrap().peers.len(), 1);
        for text in
            ["", "get=1\n\n", "listen_port=7", "set=1\n\nset=1\n", "set=1\nlisten_port=x", "set=1\nport"]
        {
            assert!(matches!(parse(text), Err(Error::Text(_))), "{text:?}");
        }
        assert_eq!(parse(&"\n".repeat(MAX_TEXT_BYTES + 1)), Err(Error::TooLong));
    }

    #[test]
    fn what_is_formatted_has_no_outcome_and_can_be_set_again() {
        let state = DeviceState::from(InterfaceSettings { listen_port: 7, ..Default::default() });
        let text = format(state).unwrap();
        assert_eq!(&text[..], b"listen_port=7\n");
        assert!(format(DeviceState::default()).unwrap().is_empty());
    }
}
