//! Requests and answers as text.

use std::time::{Duration, SystemTime};

use weft_config::device::{AllowedIpChange, PeerChange};
use weft_config::settings::{InterfaceSettingsChange, PeerSettingsChange};
use weft_tunnel::{PresharedKey, PrivateKey};

use super::answer::{AnswerProblem, parse_get, parse_set};
use super::*;
use crate::Key;

const PRIVATE: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PRIVATE_HEX: &str = "c809f3e5317e9575c9b5ed78b638b7ce530dabe85ddab614220241801ddf0669";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const PEER_HEX: &str = "c53201039adba14be71f886da1d8dbe9eebded08cb111b75340078999aa9f038";
const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

fn request(change: &DeviceChange) -> String {
    String::from_utf8(request::set(change).to_vec()).unwrap()
}

#[test]
fn a_change_of_everything_is_written_in_the_order_of_wg() {
    let key: PresharedKey = PRIVATE.parse().unwrap();
    let change = DeviceChange {
        settings: InterfaceSettingsChange {
            private_key: Some(Some(PRIVATE.parse().unwrap())),
            listen_port: Some(5),
            fw_mark: Some(0xca6c),
        },
        replace_peers: true,
        peers: vec![
            PeerChange {
                endpoint: Some("[2001:db8::1]:80".parse().unwrap()),
                settings: PeerSettingsChange {
                    preshared_key: Some(Some(key)),
                    persistent_keepalive: Some(25.try_into().ok()),
                    limits: None,
                },
                replace_allowed_ips: true,
                update_only: true,
                allowed_ips: vec![
                    AllowedIpChange::Add("10.0.0.0/8".parse().unwrap()),
                    AllowedIpChange::Remove("fd00::1/128".parse().unwrap()),
                ],
                ..PeerChange::new(PEER.parse().unwrap())
            },
            PeerChange { remove: true, ..PeerChange::new(PRIVATE.parse().unwrap()) },
        ],
    };
    let expected = format!(
        "set=1\nprivate_key={PRIVATE_HEX}\nlisten_port=5\nfwmark=51820\nreplace_peers=true\n\
         public_key={PEER_HEX}\nupdate_only=true\npreshared_key={PRIVATE_HEX}\nendpoint=[2001:db8::1]:80\n\
         persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.0.0.0/8\n\
         allowed_ip=-fd00::1/128\npublic_key={PRIVATE_HEX}\nremove=true\n\n"
    );
    assert_eq!(request(&change), expected);
}

#[test]
fn what_does_not_change_is_not_written_and_none_is_zero() {
    assert_eq!(request(&DeviceChange::default()), "set=1\n\n");
    let change = DeviceChange {
        settings: InterfaceSettingsChange { private_key: Some(None), ..Default::default() },
        peers: vec![PeerChange {
            settings: PeerSettingsChange {
                preshared_key: Some(None),
                persistent_keepalive: Some(None),
                limits: None,
            },
            ..PeerChange::new(PEER.parse().unwrap())
        }],
        ..DeviceChange::default()
    };
    assert_eq!(
        request(&change),
        format!(
            "set=1\nprivate_key={ZEROS}\npublic_key={PEER_HEX}\npreshared_key={ZEROS}\n\
             persistent_keepalive_interval=0\n\n"
        )
    );
}

#[test]
fn an_answer_becomes_the_state() {
    let answer = format!(
        "private_key={PRIVATE_HEX}\nlisten_port=51820\nfwmark=7\nnew_key=whatever\npublic_key={PEER_HEX}\n\
         preshared_key={ZEROS}\nprotocol_version=1\nendpoint=192.0.2.1:5\nlast_handshake_time_sec=100\n\
         last_handshake_time_nsec=5\ntx_bytes=18446744073709551615\nrx_bytes=2\n\
         persistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\nallowed_ip=fd00::/64\n\
         public_key={PRIVATE_HEX}\npreshared_key={PRIVATE_HEX}\nlast_handshake_time_sec=0\n\
         last_handshake_time_nsec=0\npersistent_keepalive_interval=0\nerrno=0\n\n"
    );
    let Reported { state, public_key } = parse_get(answer.as_bytes()).unwrap().unwrap();
    let own: PrivateKey = PRIVATE.parse().unwrap();
    assert_eq!((state.settings.listen_port, state.settings.fw_mark), (51820, 7));
    assert_eq!((state.settings.private_key.as_ref(), public_key), (Some(&own), Some(own.public_key())));
    let [first, second] = &state.peers[..] else { panic!("{state:?}") };
    assert_eq!(first.public_key.to_string(), PEER);
    assert_eq!((first.settings.preshared_key.as_ref(), first.tx_bytes, first.rx_bytes), (None, u64::MAX, 2));
    assert_eq!(first.endpoint, Some("192.0.2.1:5".parse().unwrap()));
    assert_eq!(first.last_handshake, Some(SystemTime::UNIX_EPOCH + Duration::new(100, 5)));
    assert_eq!(first.settings.persistent_keepalive.map(u16::from), Some(25));
    assert_eq!(first.allowed_ips, ["10.0.0.0/8", "fd00::/64"].map(|prefix| prefix.parse().unwrap()));
    assert_eq!(second.settings.preshared_key, Some(PRIVATE.parse().unwrap()));
    assert_eq!(
        (second.last_handshake, second.settings.persistent_keepalive, second.endpoint),
        (None, None, None)
    );
}

#[test]
fn a_daemon_that_keeps_its_private_key_to_itself_tells_the_public_one() {
    let answer = format!("own_public_key={PEER_HEX}\nlisten_port=1\nerrno=0\n\n");
    let reported = parse_get(answer.as_bytes()).unwrap().unwrap();
    assert_eq!(reported.public_key.unwrap().to_string(), PEER);
    assert_eq!(reported.state.settings.private_key, None);
}

#[test]
fn what_is_no_answer_is_refused_without_repeating_it() {
    let problem = |answer: &str| parse_get(answer.as_bytes()).unwrap_err();
    assert_eq!(problem("\n\n"), AnswerProblem::NoErrno);
    assert_eq!(problem("listen_port=1\n\n"), AnswerProblem::NoErrno);
    assert_eq!(problem("hello\n\n"), AnswerProblem::NotALine { line: 1 });
    assert_eq!(problem("listen_port=x\n\n"), AnswerProblem::Value { key: Key::ListenPort, line: 1 });
    assert_eq!(problem("rx_bytes=1\n\n"), AnswerProblem::NoPeer { key: Key::RxBytes, line: 1 });
    for value in [&PRIVATE_HEX[1..], PRIVATE, &"g".repeat(64), &"é".repeat(32)] {
        let problem = problem(&format!("private_key={value}\n\n"));
        assert_eq!(problem, AnswerProblem::Value { key: Key::PrivateKey, line: 1 });
    }
    assert_eq!(parse_get(b"\xff\n\n").unwrap_err(), AnswerProblem::NotText);
    assert_eq!(parse_get(b"errno=-5\n\n").unwrap().unwrap_err(), -5);
    assert_eq!(parse_set(b"errno=-98\n\n"), Ok(-98));
    assert_eq!(parse_set(b"errno=x\n\n"), Err(AnswerProblem::NoErrno));
    assert_eq!(parse_set(b"\n\n"), Err(AnswerProblem::NoErrno));
}

#[test]
fn times_that_no_clock_has_do_no_harm() {
    let huge = u64::MAX;
    let answer = format!(
        "public_key={PEER_HEX}\nlast_handshake_time_sec={huge}\nlast_handshake_time_sec={huge}\n\
         last_handshake_time_nsec={huge}\nerrno=0\n\n"
    );
    assert_eq!(parse_get(answer.as_bytes()).unwrap().unwrap().state.peers[0].last_handshake, None);
}

#[test]
#[cfg(target_os = "linux")]
fn a_refusal_says_what_to_do() {
    let interface: InterfaceName = "wg0".parse().unwrap();
    for (errno, words) in
        [(-98, "choose another one"), (98, "choose another one"), (-22, "invalid"), (-71, "refused")]
    {
        let error = refused(&interface, errno);
        assert!(error.to_string().contains(words) && error.to_string().starts_with("wg0: "), "{error}");
        assert_eq!(error.exit_code(), Code::Failure);
    }
    assert_eq!(refused(&interface, -1).exit_code(), Code::Permission);
}

#[test]
fn a_long_request_may_take_longer_than_a_short_one() {
    let first = |bytes: usize| Limits::of(&vec![0; bytes]).first;
    assert_eq!(first(b"get=1\n\n".len()), SHORT_PATIENCE);
    // Ten thousand peers, and more.
    assert!((PATIENCE - SHORT_PATIENCE..=PATIENCE).contains(&first(2_000_000)));
    assert_eq!(first(64 << 20), PATIENCE);
}

#[cfg(unix)]
#[test]
fn an_answer_that_does_not_begin_or_does_not_end_is_not_waited_for() {
    use std::io::Write as _;

    const HOUR: Duration = Duration::from_secs(3600);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    for (first, whole, says) in [(Duration::ZERO, HOUR, ""), (HOUR, Duration::from_millis(50), "x")] {
        let connection = Connection::connect(&path, Instant::now() + HOUR).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let silent = stream.try_clone().unwrap();
        let daemon =
            std::thread::spawn(
                move || {
                    while !says.is_empty() && stream.write_all(says.as_bytes()).is_ok() {}
                },
            );
        let limits = Limits { begin: Instant::now(), first, whole };
        let error = converse(&connection, b"get=1\n\n", &limits).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{says:?}");
        drop((connection, silent));
        daemon.join().unwrap();
    }
}
