//! The same requests over UAPI: the same error numbers, and the same configuration afterwards.

use std::fmt::Write as _;
use std::net::UdpSocket;

use weft_lab::Namespace;
use weft_tunnel::PrivateKey;

use super::{Random, WEFT, can_compare, hex, seeds};
use crate::wireguard_go::{WireguardGo, program};

/// A port that another program has.
const TAKEN: u16 = 4000;
/// weft takes it for the IPv4 address that is in it.
const MAPPED: &str = "[::ffff:192.0.2.1]:5";
const EIO: i32 = libc::EIO;
const EADDRINUSE: i32 = libc::EADDRINUSE;

/// A daemon in its namespace, where a port is taken.
struct Daemon {
    program: WireguardGo,
    _namespace: Namespace,
    _taken: UdpSocket,
}

impl Daemon {
    fn start(program: &str) -> Self {
        let namespace = Namespace::new("uapi").unwrap();
        let taken = namespace.bind_udp(("::", TAKEN));
        let program = WireguardGo::start_program(program, &namespace);
        Self { program, _namespace: namespace, _taken: taken }
    }

    /// Returns the error number of the answer to a request, or `None` where it has no answer.
    fn set(&self, request: &[u8], pieces: &[usize]) -> Option<i32> {
        let answer = self.program.uapi(request, pieces);
        let number = answer.strip_prefix("errno=").and_then(|rest| rest.strip_suffix("\n\n"));
        assert!(number.is_some() || answer.is_empty(), "{answer:?}");
        number.map(|number| number.parse().unwrap())
    }

    fn get(&self) -> State {
        State::read(&self.program.uapi(b"get=1\n\n", &[]))
    }
}

/// What `get=1` says, without counters and times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    interface: Vec<String>,
    /// Each with the line of its key first, the others sorted.
    peers: Vec<Vec<String>>,
}

impl State {
    fn read(answer: &str) -> Self {
        let lines = answer.strip_suffix("errno=0\n\n").unwrap_or_else(|| panic!("{answer:?}"));
        let (mut interface, mut peers) = (Vec::new(), Vec::<Vec<String>>::new());
        for line in lines.lines() {
            let (key, value) = line.split_once('=').unwrap();
            match key {
                "last_handshake_time_sec" | "last_handshake_time_nsec" | "tx_bytes" | "rx_bytes" => {}
                "endpoint" if value == MAPPED => {
                    peers.last_mut().unwrap().push("endpoint=192.0.2.1:5".to_owned());
                }
                "public_key" => peers.push(vec![line.to_owned()]),
                // As if it was not said.
                "private_key" | "preshared_key" if value.bytes().all(|digit| digit == b'0') => {}
                _ => peers.last_mut().unwrap_or(&mut interface).push(line.to_owned()),
            }
        }
        interface.sort();
        peers.iter_mut().for_each(|peer| peer[1..].sort());
        peers.sort();
        Self { interface, peers }
    }

    /// The port is one that the system chose.
    fn with_any_port(mut self) -> Self {
        self.interface.retain(|line| !line.starts_with("listen_port="));
        self
    }

    /// Peers that were there before keep their endpoints, where `ours` keeps them. Returns whether any does.
    fn keep_endpoints(&mut self, before: &Self, ours: &Self) -> bool {
        let mut any = false;
        for peer in &mut self.peers {
            let of = |state: &Self| {
                let same = state.peers.iter().find(|other| other[0] == peer[0])?;
                same.iter().find(|line| line.starts_with("endpoint=")).cloned()
            };
            if !peer.iter().any(|line| line.starts_with("endpoint=")) && of(before) == of(ours) {
                any |= of(ours).is_some();
                peer.extend(of(ours));
                peer[1..].sort();
            }
        }
        any
    }

    /// The request that makes this of any other state.
    fn request(&self) -> String {
        let all_zero = "0".repeat(64);
        let mut text = format!("set=1\nprivate_key={all_zero}\nfwmark=0\nreplace_peers=true\n");
        for line in self.interface.iter().chain(self.peers.iter().flatten()) {
            writeln!(text, "{line}").unwrap();
        }
        text + "\n"
    }
}

#[derive(Default)]
struct Request {
    text: String,
    /// Of which sizes it is sent.
    pieces: Vec<usize>,
    /// The empty line at its end is missing.
    is_cut_off: bool,
}

struct Generator {
    random: Random,
    private_keys: Vec<String>,
    public_keys: Vec<String>,
    knows_minus: bool,
}

impl Generator {
    fn new(seed: u64, knows_minus: bool) -> Self {
        let mut random = Random::new(seed);
        let mut private_keys = vec!["0".repeat(64)];
        let mut public_keys = private_keys.clone();
        for _ in 0..5 {
            let bytes: [u8; 32] = std::array::from_fn(|_| random.below(256) as u8);
            private_keys.push(hex(&bytes));
            public_keys.push(hex(PrivateKey::from_bytes(bytes).public_key().as_bytes()));
        }
        Self { random, private_keys, public_keys, knows_minus }
    }

    /// What a peer gives back in the request in which it took it comes first, here: a prefix that it takes
    /// before is gone for its owner with wireguard-go, and not with weft.
    fn request(&mut self) -> Request {
        let mut request = Request { text: "set=1\n".to_owned(), ..Request::default() };
        let mut keys = ["private_key", "listen_port", "fwmark", "replace_peers"];
        keys.rotate_left(self.random.below(4));
        for key in keys {
            if self.random.percent(25) {
                let value = self.value(key);
                self.line(&mut request.text, key, &value);
            }
        }
        for _ in 0..self.random.below(4) {
            let value = self.value("public_key");
            self.line(&mut request.text, "public_key", &value);
            for key in ["update_only", "remove"] {
                if self.random.percent(12) {
                    self.line(&mut request.text, key, "true");
                }
            }
            let mut has_prefix = false;
            for _ in 0..self.random.below(6) {
                let keys = [
                    "preshared_key",
                    "endpoint",
                    "persistent_keepalive_interval",
                    "replace_allowed_ips",
                    "allowed_ip",
                    "allowed_ip",
                    "allowed_ip",
                    "protocol_version",
                ];
                let key = self.random.pick(&keys);
                let mut value = self.value(key);
                if key == "allowed_ip" && self.knows_minus && !has_prefix && self.random.percent(15) {
                    value.insert(0, '-');
                } else if key == "allowed_ip" {
                    has_prefix = true;
                } else if key == "replace_allowed_ips" && has_prefix {
                    continue;
                }
                self.line(&mut request.text, key, &value);
            }
        }
        if self.random.percent(5) {
            request.is_cut_off = true;
            let keep = self.random.below(request.text.len() + 1).max("set=1\n".len());
            request.text.truncate(keep);
        } else {
            request.text.push('\n');
        }
        if self.random.percent(10) {
            request.pieces = (0..8).map(|_| 1 + self.random.below(40)).collect();
        }
        request
    }

    /// A line, which may be wrong.
    fn line(&mut self, text: &mut String, key: &str, value: &str) {
        let line = format!("{key}={value}");
        let line = match self.random.below(250) {
            0 => key.to_owned(),
            1 => format!("{key}="),
            2 => format!("{key}= {value}"),
            3 => format!(" {line}"),
            4 => format!("{line} "),
            5 => format!("{line}\r"),
            6 => format!("{line}x"),
            7 => format!("{line}={value}"),
            8 => format!("{}={value}", key.to_uppercase()),
            9 => format!("colour={value}"),
            10 => format!("{key}=-1"),
            11 => format!("{key}=+1"),
            12 => format!("{key}=4294967296"),
            13 => format!("{key}=true"),
            14 => format!("{key}=false"),
            15 => line[..line.len() - 1].to_owned(),
            16 => format!("{key}={value}{}", "0".repeat(70_000)),
            17 => format!("{key}\0={value}"),
            18 => {
                let keys =
                    ["private_key", "listen_port", "fwmark", "replace_peers", "remove", "endpoint", "errno"];
                let other = self.random.pick(&keys);
                format!("{other}={value}")
            }
            _ => line,
        };
        text.push_str(&line);
        text.push('\n');
    }

    fn value(&mut self, key: &str) -> String {
        let random = &mut self.random;
        match key {
            "private_key" => self.private_keys[random.below(self.private_keys.len())].clone(),
            "public_key" => self.public_keys[random.below(self.public_keys.len())].clone(),
            "preshared_key" => {
                let digit = random.pick(&["0", "1", "f", "A"]);
                digit.repeat(64)
            }
            "listen_port" => {
                random.pick(&["0", "4000", "5000", "5001", "05002", "65535", "65536"]).to_owned()
            }
            "fwmark" => random.pick(&["0", "1", "51820", "007", "4294967295", "0x10"]).to_owned(),
            "persistent_keepalive_interval" => {
                random.pick(&["0", "1", "25", "0025", "65535", "65536"]).to_owned()
            }
            "protocol_version" => random.pick(&["1", "1", "1", "1", "1", "1", "1", "2", "01"]).to_owned(),
            "endpoint" => random
                .pick(&[
                    "192.0.2.1:1",
                    "192.0.2.1:00080",
                    "[2001:db8::1]:51820",
                    "[2001:0DB8:0::1]:51820",
                    "[::]:9",
                    MAPPED,
                    "0.0.0.0:0",
                    "224.0.0.1:5",
                    "255.255.255.255:65535",
                    "192.0.2.1",
                    "192.0.2.01:1",
                    "192.0.2.1:65536",
                    "2001:db8::1:51820",
                    "[192.0.2.1]:80",
                    "[2001:db8::1]",
                    "host:80",
                    ":80",
                ])
                .to_owned(),
            "allowed_ip" => self.allowed_ip(),
            _ => "true".to_owned(),
        }
    }

    /// Of few networks, so that they overlap.
    fn allowed_ip(&mut self) -> String {
        let random = &mut self.random;
        if random.percent(4) {
            let wrong = ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "fd00::1%lo/64"];
            return random.pick(&wrong).to_owned();
        }
        random.prefix()
    }
}

/// Sends a request to both, and returns what they make of it differently.
fn compare(weft: &Daemon, go: &Daemon, request: &Request, any_port: &mut bool) -> Option<String> {
    let before = weft.get();
    let numbers = [weft, go].map(|daemon| daemon.set(request.text.as_bytes(), &request.pieces));
    let after = weft.get();
    match numbers {
        [Some(0), Some(0)] => {
            let port = request.text.lines().rev().find_map(|line| line.strip_prefix("listen_port="));
            *any_port = port.map_or(*any_port, |port| port.trim_end().parse() == Ok(0_u16));
        }
        [ours, theirs] => {
            // Cut off: weft applies none of it. Several faults: weft reads all of it before it binds a port.
            let is_cut_off = request.is_cut_off && ours == Some(-EIO);
            let has_faults = matches!(ours, Some(number) if number < 0) && theirs == Some(-EADDRINUSE);
            if ours != theirs && !is_cut_off && !has_faults {
                return Some(format!("error {ours:?}, wireguard-go has {theirs:?}"));
            }
            if after != before {
                return Some(format!("refused, it leaves {after:#?}"));
            }
            // wireguard-go has applied what comes before the wrong line.
            go.set(after.request().as_bytes(), &[]);
        }
    }
    let (mut ours, mut theirs) = (after, go.get());
    if request.text.contains("\nreplace_peers=true\n") && theirs.keep_endpoints(&before, &ours) {
        go.set(theirs.request().as_bytes(), &[]);
    }
    if *any_port {
        (ours, theirs) = (ours.with_any_port(), theirs.with_any_port());
    }
    (ours != theirs).then(|| format!("{ours:#?}, wireguard-go has {theirs:#?}\nbefore it {before:#?}"))
}

#[test]
fn the_same_requests_have_the_same_outcome() {
    if !can_compare(false) {
        return;
    }
    let (weft, go) = (Daemon::start(WEFT), Daemon::start(&program()));
    let minus = format!("set=1\npublic_key={}\nallowed_ip=-10.0.0.0/8\n\n", "1".repeat(64));
    let knows_minus = go.set(minus.as_bytes(), &[]) == Some(0);
    let empty = State { interface: vec!["listen_port=0".to_owned()], peers: Vec::new() };
    for seed in seeds(0..60) {
        let mut generator = Generator::new(seed, knows_minus);
        for daemon in [&weft, &go] {
            assert_eq!(daemon.set(empty.request().as_bytes(), &[]), Some(0), "seed {seed}");
        }
        let (mut requests, mut any_port) = (String::new(), true);
        for _ in 0..1 + generator.random.below(8) {
            let request = generator.request();
            requests.push_str(&request.text);
            if let Some(difference) = compare(&weft, &go, &request, &mut any_port) {
                panic!("seed {seed}: {difference}\nafter {requests}");
            }
        }
    }
}
