//! What the system bus and systemd-resolved answer over D-Bus: consent, refusals of every kind, other types
//! than expected, signals in between, bytes that are no message, and the end of the connection.
//!
//! DNS settings are in force if every change was consented to. Otherwise there is an error, and the settings
//! were taken back unless the connection has ended.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use weft_config::Dns;
use weft_host::dns::{DnsError, Method, Places, System};
use weft_host::routes::Link;

use crate::input::Input;

/// Errors that resolved or the bus may answer with.
const ERRORS: [&str; 8] = [
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.UnknownMethod",
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.resolve1.LinkBusy",
    "org.freedesktop.resolve1.NoSuchLink",
    "org.freedesktop.resolve1.SomethingNew",
    "org.freedesktop.DBus.Error.InvalidArgs",
];
const UNKNOWN_METHOD: usize = 1;
const NO_SUCH_LINK: usize = 5;

/// What the bus answers to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// What is expected.
    Consent,
    /// One of [`ERRORS`], with a text or without.
    Error(usize, bool),
    /// A body of another type. To a call that expects no body it is a consent.
    OtherType,
    /// Anything. What weft makes of it is not known.
    Noise,
    /// The connection ends.
    End,
}

/// The calls of one connection, with the answers.
type Calls = Vec<(String, Reply)>;

pub(crate) fn check(bytes: &[u8]) {
    let path = std::env::temp_dir().join(format!("weft-fuzz-bus-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let places = Places { bus: Some(format!("unix:path={}", path.display())), ..nowhere() };
    let link = Link { name: "weft0".to_owned(), index: 7, mtu: 1420 };
    let settings = Dns {
        servers: vec![IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xfd; 16])],
        search: vec!["example.org".parse().unwrap()],
        routing: Vec::new(),
    };
    std::thread::scope(|scope| {
        let bus = scope.spawn(move || serve(&listener.accept().unwrap().0, &mut Input::new(bytes)));
        let result = System::new(places).apply(Method::Resolved, &link, &settings);
        let calls = bus.join().unwrap();
        judge(&result.map(drop), &calls);
    });
}

/// Compares a result with what was called and answered.
fn judge(result: &Result<(), DnsError>, calls: &Calls) {
    let replies = |method: &str| -> Vec<Reply> {
        calls.iter().filter(|call| call.0 == method).map(|call| call.1).collect()
    };
    let is_known = calls.iter().all(|call| !matches!(call.1, Reply::Noise | Reply::End));
    let is_taken = |method: &str| {
        replies(method).last().is_some_and(|reply| match reply {
            Reply::Consent | Reply::OtherType => true,
            Reply::Error(error, _) => method == "SetLinkDefaultRoute" && *error == UNKNOWN_METHOD,
            Reply::Noise | Reply::End => false,
        })
    };
    let is_all_taken = ["SetLinkDNS", "SetLinkDomains", "SetLinkDefaultRoute"].into_iter().all(is_taken);
    if let Err(DnsError::Timeout { action, .. }) = result {
        panic!("no end to {action}: {calls:?}");
    }
    if !is_known {
        return;
    }
    assert_eq!(result.is_ok(), is_all_taken, "{result:?} {calls:?}");
    let has_changed = !replies("SetLinkDNS").is_empty();
    let is_reverted = calls.last().is_some_and(|call| call.0 == "RevertLink");
    assert_eq!(has_changed && result.is_err(), is_reverted, "{result:?} {calls:?}");
}

/// Answers the calls of a connection until it ends.
fn serve(stream: &UnixStream, input: &mut Input<'_>) -> Calls {
    let mut calls = Calls::new();
    // A connection that has ended is no fault of the bus.
    let _ = authenticate(stream).and_then(|mut reader| answer_all(&mut reader, stream, input, &mut calls));
    calls
}

/// The server's side of the authentication (D-Bus specification, section "Authentication Protocol").
fn authenticate(stream: &UnixStream) -> io::Result<BufReader<&UnixStream>> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&line);
        let mut stream = stream;
        match line.trim_start_matches('\0').split_whitespace().next() {
            Some("AUTH") => stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")?,
            Some("NEGOTIATE_UNIX_FD") => stream.write_all(b"AGREE_UNIX_FD\r\n")?,
            Some("BEGIN") => return Ok(reader),
            _ => stream.write_all(b"ERROR\r\n")?,
        }
    }
}

fn answer_all(
    reader: &mut BufReader<&UnixStream>,
    mut stream: &UnixStream,
    input: &mut Input<'_>,
    calls: &mut Calls,
) -> io::Result<()> {
    loop {
        let mut fixed = [0; 16];
        reader.read_exact(&mut fixed)?;
        let number = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let (body, serial, fields) = (number(4), number(8), number(12));
        let mut rest = vec![0; fields.next_multiple_of(8) as usize + body as usize];
        reader.read_exact(&mut rest)?;
        let Some(method) = member(&rest[..fields as usize]) else { continue };
        let expected: Body = match method.as_str() {
            "Hello" => ("s", string(":1.1")),
            "NameHasOwner" => ("b", 1u32.to_le_bytes().to_vec()),
            "GetConnectionUnixProcessID" => ("u", std::process::id().to_le_bytes().to_vec()),
            "StartServiceByName" => ("u", 1u32.to_le_bytes().to_vec()),
            _ => ("", Vec::new()),
        };
        if input.byte() & 15 == 15 {
            let signal =
                [field(1, "o", &string("/a")), field(2, "s", &string("a.b")), field(3, "s", &string("C"))];
            stream.write_all(&message(4, &signal, &("s", string("a signal in between"))))?;
        }
        let reply = if method == "Hello" { Reply::Consent } else { choose(input) };
        calls.push((method, reply));
        let to = field(5, "u", &serial.to_le_bytes());
        match reply {
            Reply::Consent => stream.write_all(&message(2, &[to], &expected))?,
            Reply::OtherType => {
                let other = ("as", vec![0; 4]);
                stream.write_all(&message(2, &[to], &other))?;
            }
            Reply::Error(error, has_text) => {
                let name = field(4, "s", &string(ERRORS[error]));
                let text = if has_text { ("s", string("why not")) } else { ("", Vec::new()) };
                stream.write_all(&message(3, &[to, name], &text))?;
            }
            Reply::Noise => {
                let mut bytes = message(2, &[to], &expected);
                let len = bytes.len();
                for _ in 0..=input.below(4) {
                    bytes[usize::from(input.u16()) % len] ^= input.byte() | 1;
                }
                stream.write_all(&bytes)?;
                stream.write_all(input.bytes(64))?;
                return stream.shutdown(std::net::Shutdown::Both);
            }
            Reply::End => return stream.shutdown(std::net::Shutdown::Both),
        }
    }
}

/// Most calls are consented to, so that later ones come.
fn choose(input: &mut Input<'_>) -> Reply {
    let choice = input.byte();
    match choice & 15 {
        11 | 12 => match usize::from(choice >> 4) % ERRORS.len() {
            // weft asks again for a while, and waits in between.
            NO_SUCH_LINK if choice & 15 == 11 => Reply::Consent,
            error => Reply::Error(error, choice & 128 != 0),
        },
        13 => Reply::OtherType,
        14 => Reply::Noise,
        15 => Reply::End,
        _ => Reply::Consent,
    }
}

/// A body: its signature and its bytes.
type Body = (&'static str, Vec<u8>);

/// A message in the marshalling of the D-Bus specification, little endian.
fn message(kind: u8, fields: &[Vec<u8>], body: &Body) -> Vec<u8> {
    let mut array = Vec::new();
    for bytes in fields {
        array.resize(array.len().next_multiple_of(8), 0);
        array.extend(bytes);
    }
    if !body.0.is_empty() {
        array.resize(array.len().next_multiple_of(8), 0);
        array.extend([8, 1, b'g', 0, body.0.len() as u8]);
        array.extend(body.0.bytes().chain([0]));
    }
    let mut message = vec![b'l', kind, 0, 1];
    message.extend([body.1.len() as u32, 1, array.len() as u32].map(u32::to_le_bytes).concat());
    message.extend(array);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend(&body.1);
    message
}

/// A field of a header: its number and a variant. Values of more than one byte begin at a multiple of four.
fn field(number: u8, signature: &str, value: &[u8]) -> Vec<u8> {
    let mut field = vec![number, 1, signature.as_bytes()[0], 0];
    field.extend(value);
    field
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend(text.bytes().chain([0]));
    bytes
}

/// The method that a header calls.
fn member(fields: &[u8]) -> Option<String> {
    let mut rest = fields;
    let mut at = 0;
    while let [number, 1, signature, 0, ..] = rest {
        let len = match signature {
            b'g' => 4 + 1 + usize::from(*rest.get(4)?) + 1,
            b'u' => 8,
            _ => 8 + u32::from_le_bytes(*rest.get(4..)?.first_chunk()?) as usize + 1,
        };
        if *number == 3 {
            return Some(String::from_utf8_lossy(rest.get(8..len - 1)?).into_owned());
        }
        at = (at + len).next_multiple_of(8);
        rest = fields.get(at..)?;
    }
    None
}

/// Paths where there is nothing.
fn nowhere() -> Places {
    let none = || PathBuf::from("/nonexistent");
    Places {
        resolv_conf: none(),
        bound: Arc::default(),
        nsswitch: none(),
        state: none(),
        interface_order: none(),
        resolvconf: none(),
        no_stub: none(),
        resolvers: none(),
        programs: Vec::new(),
        bus: None,
    }
}
