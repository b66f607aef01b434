//! The lines of the control socket: JSON objects, bounded in length, wiped after use.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weft_config::{Notation, printable, printable_bytes};
use zeroize::Zeroizing;

use super::{Layer, ManageError, VERSION};

/// The maximum bytes of a request: a configuration file of 16 MiB in base64, and the rest of its line.
pub const MAX_REQUEST: usize = 24 << 20;
/// The maximum bytes of an answer: a status with 50,000 peers.
pub const MAX_ANSWER: usize = 64 << 20;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Status,
    Reload,
    Capture,
    Stop,
}

#[derive(Serialize, Deserialize)]
pub struct Request<'a> {
    pub version: u32,
    pub request: Kind,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none", default)]
    pub config_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stage: Option<Layer>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub snap_bytes: Option<u32>,
    /// Whether a command of the interface's configuration makes the request.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub within_command: bool,
    /// Whether the text is what a command has just written into the file.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_saved: bool,
}

impl Request<'_> {
    pub fn of(request: Kind) -> Self {
        Self {
            version: VERSION,
            request,
            file: None,
            config_base64: None,
            dry_run: false,
            peer: None,
            stage: None,
            snap_bytes: None,
            within_command: false,
            is_saved: false,
        }
    }
}

/// The part of a request that every version has, so that another version can be answered.
#[derive(Deserialize)]
pub struct RequestVersion {
    pub version: u32,
}

/// An answer has either `ok` or `error`.
#[derive(Serialize, Deserialize)]
pub struct Answer<T> {
    pub version: u32,
    #[serde(skip_serializing_if = "Option::is_none", default = "nothing")]
    pub ok: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<WireError>,
}

fn nothing<T>() -> Option<T> {
    None
}

/// An answer without content.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {}

/// What failed while an interface was taken down, in sentences.
#[derive(Debug, Serialize, Deserialize)]
pub struct Incomplete {
    pub failures: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct WireError {
    kind: ErrorKind,
    message: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ErrorKind {
    Configuration,
    Permission,
    Ended,
    /// Also any kind that a later version adds.
    #[serde(other)]
    Failed,
}

impl From<&ManageError> for WireError {
    fn from(error: &ManageError) -> Self {
        let kind = match error {
            ManageError::Configuration(_) => ErrorKind::Configuration,
            ManageError::Permission(_) => ErrorKind::Permission,
            ManageError::Failed(_) => ErrorKind::Failed,
            ManageError::Ended => ErrorKind::Ended,
        };
        Self { kind, message: error.to_string() }
    }
}

impl From<WireError> for ManageError {
    fn from(error: WireError) -> Self {
        match error.kind {
            ErrorKind::Configuration => Self::Configuration(error.message),
            ErrorKind::Permission => Self::Permission(error.message),
            ErrorKind::Failed => Self::Failed(error.message),
            ErrorKind::Ended => Self::Ended,
        }
    }
}

/// Parses an answer. Its strings are printable: the process that answers may belong to another user than the
/// one that reads what it says.
pub fn parse<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<T> {
    let is_escape = |pair: &[u8]| pair[0] == b'\\' && b"ubfr".contains(&pair[1]);
    let is_printable = matches!(printable_bytes(line, Notation::Json), Cow::Borrowed(_));
    if is_printable && !line.windows(2).any(is_escape) {
        return serde_json::from_slice(line);
    }
    serde_json::from_value(made_printable(serde_json::from_slice(line)?))
}

fn made_printable(value: Value) -> Value {
    let text = |text: String| printable(&text, Notation::Text).into_owned();
    match value {
        Value::String(string) => Value::String(text(string)),
        Value::Array(values) => Value::Array(values.into_iter().map(made_printable).collect()),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (text(key), made_printable(value)));
            Value::Object(fields.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

/// Serializes a request or an answer as a line. Allocates `room` bytes first, so that a line with keys is not
/// reallocated, which would leave copies behind.
pub fn to_line(value: &impl Serialize, room: usize) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(room));
    serde_json::to_writer(&mut *line, value)?;
    line.push(b'\n');
    Ok(line)
}

/// Returns the room for a line that contains this base64 text.
pub fn room_around(base64: &str) -> usize {
    base64.len() + 8192
}

pub fn encode(text: &str) -> Zeroizing<String> {
    let mut base64 = Zeroizing::new(String::with_capacity(text.len().div_ceil(3) * 4));
    STANDARD.encode_string(text, &mut base64);
    base64
}

/// Decodes a text in base64, or returns what is wrong with it.
pub fn decode(base64: &str) -> Result<Zeroizing<String>, &'static str> {
    // The decoder requires room for whole groups of 3 bytes, although it writes a partial last group.
    let mut bytes = Zeroizing::new(vec![0; base64.len().div_ceil(4) * 3]);
    let len = STANDARD.decode_slice(base64, &mut bytes).map_err(|_| "config_base64 is not base64")?;
    let text = std::str::from_utf8(&bytes[..len]).map_err(|_| "the configuration is not UTF-8")?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Collects bytes until a line is complete. Bytes after it are kept for the next line.
#[derive(Default)]
pub struct LineBuffer {
    bytes: Zeroizing<Vec<u8>>,
    /// The number of bytes that were searched for the end of a line.
    searched: usize,
}

/// Error: a line exceeds its maximum length.
#[derive(Debug)]
pub struct TooLong;

impl LineBuffer {
    /// Appends bytes. Returns a line without its line break, if one is complete.
    pub fn push(&mut self, bytes: &[u8], max: usize) -> Result<Option<Zeroizing<Vec<u8>>>, TooLong> {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            // `Vec` would move the bytes when it grows, and not wipe the old allocation.
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.next_power_of_two()));
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.bytes.len();
            return if self.bytes.len() > max { Err(TooLong) } else { Ok(None) };
        };
        if end > max {
            return Err(TooLong);
        }
        let mut rest = Zeroizing::new(Vec::with_capacity(self.bytes.len() - end));
        rest.extend_from_slice(&self.bytes[end + 1..]);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        self.searched = 0;
        line.truncate(end);
        Ok(Some(line))
    }

    /// Returns the next complete line among the bytes that came with the last one.
    pub fn next(&mut self, max: usize) -> Result<Option<Zeroizing<Vec<u8>>>, TooLong> {
        self.push(&[], max)
    }

    /// Returns the bytes after the last line.
    pub fn into_rest(self) -> Zeroizing<Vec<u8>> {
        self.bytes
    }

    /// Reports whether there are no bytes after the last line.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_however_they_are_cut() {
        let text = b"one\ntwo\n\nthree";
        for size in 1..=text.len() {
            let mut buffer = LineBuffer::default();
            let mut lines = Vec::new();
            for part in text.chunks(size) {
                let mut line = buffer.push(part, 100).unwrap();
                while let Some(found) = line {
                    lines.push(String::from_utf8(found.to_vec()).unwrap());
                    line = buffer.next(100).unwrap();
                }
            }
            assert_eq!(lines, ["one", "two", ""], "{size}");
            assert!(!buffer.is_empty());
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_before_it_ends() {
        let mut buffer = LineBuffer::default();
        assert!(buffer.push(&[b'x'; 10], 10).unwrap().is_none());
        assert!(buffer.push(b"x", 10).is_err());
        assert!(LineBuffer::default().push(b"0123456789x\n", 10).is_err());
        assert!(LineBuffer::default().push(b"0123456789\n", 10).unwrap().is_some());
    }

    #[test]
    fn the_strings_of_an_answer_are_printable() {
        let line = "{\"version\":1,\"ok\":{\"failures\":[\"a\\u001b]52;c;aGk=\\u0007\",\"b\u{9b}2J\",\"c\\nd\\\\u\"]}}";
        let Answer { ok: Some(Incomplete { failures }), .. } = parse(line.as_bytes()).unwrap() else {
            panic!()
        };
        assert_eq!(failures, [r"a\u{1b}]52;c;aGk=\u{7}", r"b\u{9b}2J", "c\nd\\u"]);
        let line = br#"{"version":1,"error":{"kind":"failed","message":"\u202e"}}"#;
        let Answer { error: Some(error), .. } = parse::<Answer<Done>>(line).unwrap() else { panic!() };
        assert_eq!(ManageError::from(error).to_string(), r"\u{202e}");
        let line = br#"{"version":1,"ok":{"\u001b":"a"}}"#;
        let Answer { ok, .. } = parse::<Answer<std::collections::BTreeMap<String, String>>>(line).unwrap();
        assert_eq!(ok.unwrap().keys().next().unwrap(), r"\u{1b}");
        let line = r#"{"version":1,"ok":{"failures":["plain ä"]}}"#;
        let Answer { ok: Some(Incomplete { failures }), .. } = parse(line.as_bytes()).unwrap() else {
            panic!()
        };
        assert_eq!(failures, ["plain ä"]);
    }

    #[test]
    fn a_configuration_survives_base64() {
        for text in ["", "[", "[I", "[In", "[Interface]\nPrivateKey = \u{e9}\"\\\n"] {
            assert_eq!(*decode(&encode(text)).unwrap(), text);
        }
        assert!(decode("%").is_err());
        assert!(decode("/w==").is_err());
    }
}
