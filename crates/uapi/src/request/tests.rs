use std::net::SocketAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;
use weft_config::device::AllowedIpChange;
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};

use super::*;
use crate::Errno;

fn scope_of(name: &str) -> Option<u32> {
    (name == "eth0").then_some(3)
}

/// Parses the lines of `text`; the last line ends the request.
fn parse(text: &str) -> Result<Request, Problem> {
    let mut parser = RequestParser::new(scope_of);
    for line in text.strip_suffix('\n').unwrap().split('\n') {
        match parser.line(line.as_bytes()) {
            Step::More => {}
            Step::Complete(request) => return Ok(request),
            Step::Rejected(problem) => return Err(problem),
            Step::Foreign => panic!("foreign: {text:?}"),
        }
    }
    panic!("{text:?} is not complete");
}

fn parse_set(lines: &str) -> Result<DeviceChange, Problem> {
    match parse(&format!("set=1\n{lines}\n"))? {
        Request::Set(change) => Ok(change),
        Request::Get => panic!("get"),
    }
}

fn errno(lines: &str) -> i32 {
    parse_set(lines).as_ref().map_or_else(Errno::from, |_| Errno::Success).number()
}

fn hex_of(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

#[test]
fn get_is_two_lines() {
    assert!(matches!(parse("get=1\n\n"), Ok(Request::Get)));
    assert_eq!(parse("get=1\nlisten_port=1\n").unwrap_err(), Problem::Trailing);
}

#[test]
fn what_begins_no_request_is_foreign() {
    for line in ["", "get=2", "get=1\r", "set=0", "GET / HTTP/1.1", " set=1", "listen_port=1"] {
        let mut parser = RequestParser::new(scope_of);
        assert!(matches!(parser.line(line.as_bytes()), Step::Foreign), "{line:?}");
        assert!(parser.is_idle());
    }
}

#[test]
fn every_key_of_an_interface_is_understood() {
    let change = parse_set(&format!(
        "private_key={}\nlisten_port=51820\nfwmark=4294967295\nreplace_peers=true\n",
        hex_of(0x48)
    ))
    .unwrap();
    assert_eq!(change.settings.private_key, Some(Some(PrivateKey::from_bytes([0x48; 32]))));
    assert_eq!((change.settings.listen_port, change.settings.fw_mark), (Some(51820), Some(u32::MAX)));
    assert!(change.replace_peers && change.peers.is_empty());
}

#[test]
fn what_is_not_said_stays() {
    let change = parse_set("").unwrap();
    assert!(
        change.settings.private_key.is_none()
            && change.settings.listen_port.is_none()
            && change.settings.fw_mark.is_none()
    );
    assert!(!change.replace_peers && change.peers.is_empty());
    let change = parse_set(&format!("public_key={}\n", hex_of(1))).unwrap();
    let [peer] = &change.peers[..] else { panic!("{change:?}") };
    assert_eq!(peer.public_key, PublicKey::from_bytes([1; 32]));
    assert!(!peer.remove && !peer.update_only && !peer.replace_allowed_ips && peer.allowed_ips.is_empty());
    assert!(
        peer.settings.preshared_key.is_none()
            && peer.endpoint.is_none()
            && peer.settings.persistent_keepalive.is_none()
    );
}

#[test]
fn every_key_of_a_peer_is_understood() {
    let change = parse_set(&format!(
        "public_key={}\nupdate_only=true\npreshared_key={}\nendpoint=192.0.2.1:51820\n\
         persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.0.0.0/8\nallowed_ip=-fd00::/64\n\
         allowed_ip=0.0.0.0/0\nprotocol_version=1\npublic_key={}\nremove=true\n",
        hex_of(1),
        hex_of(2).to_uppercase(),
        hex_of(3)
    ))
    .unwrap();
    let [first, second] = &change.peers[..] else { panic!("{change:?}") };
    assert!(first.update_only && first.replace_allowed_ips && !first.remove);
    assert_eq!(first.settings.preshared_key, Some(Some(PresharedKey::from_bytes([2; 32]))));
    assert_eq!(first.endpoint, Some("192.0.2.1:51820".parse().unwrap()));
    assert_eq!(first.settings.persistent_keepalive, Some(NonZeroU16::new(25)));
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    assert_eq!(
        first.allowed_ips,
        [
            AllowedIpChange::Add(net("10.0.0.0/8")),
            AllowedIpChange::Remove(net("fd00::/64")),
            AllowedIpChange::Add(net("0.0.0.0/0"))
        ]
    );
    assert_eq!((second.public_key, second.remove), (PublicKey::from_bytes([3; 32]), true));
}

#[test]
fn zeros_clear() {
    let zero = hex_of(0);
    let change = parse_set(&format!(
        "private_key={zero}\nlisten_port=0\nfwmark=0\npublic_key={}\npreshared_key={zero}\n\
         persistent_keepalive_interval=0\n",
        hex_of(1)
    ))
    .unwrap();
    assert_eq!(change.settings.private_key, Some(None));
    assert_eq!((change.settings.listen_port, change.settings.fw_mark), (Some(0), Some(0)));
    assert_eq!(change.peers[0].settings.preshared_key, Some(None));
    assert_eq!(change.peers[0].settings.persistent_keepalive, Some(None));
}

#[test]
fn a_peer_that_is_taken_away_has_nothing_else() {
    let change = parse_set(&format!(
        "public_key={}\nallowed_ip=10.0.0.0/8\nremove=true\npreshared_key={}\nallowed_ip=10.0.0.1/32\n",
        hex_of(1),
        hex_of(2)
    ))
    .unwrap();
    let peer = &change.peers[0];
    assert!(peer.remove && peer.allowed_ips.is_empty() && peer.settings.preshared_key.is_none());
    // Ignored lines are checked, too.
    assert_eq!(
        errno(&format!("public_key={}\nremove=true\nallowed_ip=x\n", hex_of(1))),
        Errno::Invalid.number()
    );
}

#[test]
fn endpoints_have_scopes_and_ipv4_is_ipv4() {
    let endpoint = |text: &str| values::endpoint(text.as_bytes(), scope_of);
    let v6 = |text: &str| Ok(text.parse::<SocketAddr>().unwrap());
    assert_eq!(endpoint("[fe80::1%eth0]:7"), v6("[fe80::1%3]:7"));
    assert_eq!(endpoint("[fe80::1%9]:7"), v6("[fe80::1%9]:7"));
    assert_eq!(endpoint("[::ffff:192.0.2.1]:7"), v6("192.0.2.1:7"));
    assert_eq!(endpoint("[2001:db8::1]:65535"), v6("[2001:db8::1]:65535"));
    for wrong in ["", "192.0.2.1", "example.com:1", "2001:db8::1:1", "[fe80::1%eth1]:7", "192.0.2.1:65536"] {
        assert!(endpoint(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn host_bits_of_allowed_ips_are_cut_off() {
    let change = values::allowed_ip(b"10.1.2.3/8").unwrap();
    assert_eq!(change, AllowedIpChange::Add("10.0.0.0/8".parse().unwrap()));
}

/// The numbers are those that wireguard-go answers with.
#[test]
fn what_is_wrong_has_the_errno_of_wireguard_go() {
    let key = hex_of(1);
    let peer = format!("public_key={key}\n");
    for line in ["private_key", "listen_port 1", " ", "true"] {
        assert_eq!(errno(&format!("{line}\n")), Errno::Protocol.number(), "{line}");
    }
    for line in [
        "=",
        "colour=blue",
        "set=1",
        "errno=0",
        "private_key=",
        "private_key=00",
        "private_key=yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=",
        "listen_port=",
        "listen_port=65536",
        "listen_port=-1",
        "listen_port=+1",
        "listen_port= 1",
        "listen_port=0x10",
        "fwmark=4294967296",
        "fwmark=0xca6c",
        "fwmark=off",
        "replace_peers=false",
        "replace_peers=",
        "replace_peers=1",
        "public_key=",
        "public_key=zz",
        "preshared_key=00",
        "allowed_ip=10.0.0.0/8",
        "protocol_version=1",
        "Listen_Port=1",
    ] {
        assert_eq!(errno(&format!("{line}\n")), Errno::Invalid.number(), "{line}");
    }
    for line in [
        "listen_port=1",
        "private_key=00",
        "replace_peers=true",
        "remove=false",
        "update_only=",
        "preshared_key=",
        "endpoint=",
        "endpoint=example.com:1",
        "persistent_keepalive_interval=65536",
        "persistent_keepalive_interval=off",
        "replace_allowed_ips=yes",
        "allowed_ip=",
        "allowed_ip=10.0.0.1",
        "allowed_ip=10.0.0.0/33",
        "allowed_ip=10.0.0.0/08",
        "allowed_ip=010.0.0.0/8",
        "allowed_ip=--10.0.0.0/8",
        "allowed_ip=10.0.0.0/255.0.0.0",
        "allowed_ip=fd00::/129",
        "protocol_version=2",
        "tx_bytes=1",
    ] {
        assert_eq!(errno(&format!("{peer}{line}\n")), Errno::Invalid.number(), "{line}");
    }
}

#[test]
fn the_first_error_counts_and_the_request_is_read_to_its_end() {
    let mut parser = RequestParser::new(scope_of);
    for line in ["set=1", "listen_port=1", "nonsense", "fwmark=x"] {
        assert!(matches!(parser.line(line.as_bytes()), Step::More), "{line}");
    }
    let Step::Rejected(problem) = parser.line(b"") else { panic!("not rejected") };
    assert_eq!(problem, Problem::NoEquals { line: 3 });
    // The next request is parsed as usual.
    assert!(matches!(parser.line(b"get=1"), Step::More));
    assert!(matches!(parser.line(b""), Step::Complete(Request::Get)));
}

#[test]
fn errors_say_what_to_write_and_show_no_value() {
    let secret = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0e";
    let problem = parse_set(&format!("private_key={secret}\n")).unwrap_err().to_string();
    assert_eq!(problem, "line 2: private_key is not 64 hexadecimal digits");
    let problem = parse_set(&format!("{secret}\n")).unwrap_err().to_string();
    assert_eq!(problem, "line 2 has no `=`");
    let problem = parse_set(&format!("{secret}\u{7}=1\n")).unwrap_err().to_string();
    assert_eq!(problem, "line 2: an interface has no key of this name");
    let problem = parse_set("colour=red\n").unwrap_err().to_string();
    assert_eq!(problem, "line 2: an interface has no key `colour`");
}

#[test]
fn windows_line_ends_are_taken_as_wireguard_go_takes_them() {
    let mut parser = RequestParser::new(scope_of);
    for line in ["set=1", "listen_port=7\r"] {
        assert!(matches!(parser.line(line.as_bytes()), Step::More));
    }
    let Step::Complete(Request::Set(change)) = parser.line(b"\r") else { panic!("not complete") };
    assert_eq!(change.settings.listen_port, Some(7));
}

#[test]
fn a_request_that_never_ends_is_bounded() {
    let mut parser = RequestParser::new(scope_of);
    assert!(matches!(parser.line(b"set=1"), Step::More));
    let line = vec![b'0'; 60_000];
    let line = [b"listen_port=".as_slice(), &line].concat();
    for _ in 0..MAX_REQUEST / line.len() + 1 {
        assert!(matches!(parser.line(&line), Step::More));
    }
    let Step::Rejected(problem) = parser.line(b"") else { panic!("not rejected") };
    assert_eq!(problem, Problem::TooLong);
    assert_eq!(Errno::from(&problem).number(), Errno::Io.number());
}

#[test]
fn a_request_that_breaks_off_counts_for_nothing() {
    let mut parser = RequestParser::new(scope_of);
    assert_eq!(parser.end(), None);
    assert!(matches!(parser.line(b"set=1"), Step::More));
    assert!(matches!(parser.line(b"listen_port=1"), Step::More));
    assert_eq!(parser.end(), Some(Problem::Unfinished));
    assert!(parser.is_idle());
}
