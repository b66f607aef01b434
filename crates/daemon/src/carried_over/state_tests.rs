use weft_config::device::PeerState;
use weft_config::settings::InterfaceSettings;

use super::*;

fn key(seed: u8) -> PrivateKey {
    PrivateKey::from_bytes([seed; 32])
}

fn config(text: &str) -> Config {
    let file = std::path::Path::new("wg0.conf");
    weft_config::parse(text, file, "wg0".parse().unwrap()).unwrap().config
}

fn state(given: &PrivateKey) -> State {
    let file = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nEndpoint = vpn.example:1\n\
         AllowedIPs = 10.1.0.0/16, 10.0.0.0/16\n",
        *key(1).to_base64(),
        key(2).public_key()
    );
    let peer = PeerState {
        public_key: key(2).public_key(),
        endpoint: Some("[2001:db8::1]:5".parse().unwrap()),
        is_endpoint_set: true,
        last_handshake: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(2_000_000_000_250)),
        tx_bytes: 7,
        rx_bytes: u64::MAX,
        settings: PeerSettings {
            preshared_key: Some(PresharedKey::from_bytes([9; 32])),
            persistent_keepalive: NonZeroU16::new(25),
            ..PeerSettings::default()
        },
        allowed_ips: vec!["10.0.0.0/16".parse().unwrap()],
    };
    let settings = InterfaceSettings { private_key: Some(given.clone()), listen_port: 4242, fw_mark: 5 };
    let device = DeviceState { settings, peers: vec![peer] };
    let rest = AtHandover {
        latest_stamp: SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_100),
        sources: HashMap::from([(key(2).public_key(), "192.0.2.9".parse().unwrap())]),
    };
    State::of("wg0".parse().unwrap(), Base::of(&config(&file), 0), device, &rest)
}

#[test]
fn what_is_left_comes_back() {
    let text = state(&key(3)).to_bytes().unwrap();
    assert_eq!(text.len(), text.capacity(), "it was never moved");
    let read = State::from_bytes(&text).unwrap();
    assert_eq!(read.to_bytes().unwrap(), text);
    assert!(matches!(&read.private_key, OwnKey::Given(Some(given)) if *given == key(3)));
    assert_eq!(read.base.public_key, Some(key(1).public_key()));
    assert_eq!(read.base.peers[0].endpoint.as_deref(), Some("vpn.example:1"));
    let peer = &read.peers[0];
    assert_eq!(peer.preshared_key, Some(PresharedKey::from_bytes([9; 32])));
    assert_eq!((peer.endpoint, peer.received_bytes), (Some("[2001:db8::1]:5".parse().unwrap()), u64::MAX));
    assert!(peer.is_endpoint_set);
}

#[test]
fn the_key_of_the_file_is_not_written_down() {
    let left = state(&key(1));
    assert!(matches!(left.private_key, OwnKey::OfTheFile));
    let text = String::from_utf8(left.to_bytes().unwrap().to_vec()).unwrap();
    assert!(!text.contains(key(1).to_base64().as_str()), "{text}");
}

#[test]
fn another_version_is_named_and_what_is_malformed_is_never_shown() {
    assert!(matches!(State::from_bytes(b"{\"version\":2}"), Err(FormatError::Version(2))));
    let text = String::from_utf8(state(&key(3)).to_bytes().unwrap().to_vec()).unwrap();
    let secret = key(3).to_base64();
    for broken in [
        String::new(),
        "[1".to_owned(),
        text[..text.len() / 2].to_owned(),
        text.replace("4242", &format!("\"{}\"", *secret)),
        text.replace(secret.as_str(), "not a key at all, but of forty-four letters."),
        text.replace("10.0.0.0/16", "10.0.0.0/99"),
    ] {
        let error = State::from_bytes(broken.as_bytes()).unwrap_err();
        assert!(matches!(error, FormatError::Malformed { .. }), "{error}");
        let told = format!("{error} {error:?}");
        assert!(!told.contains(secret.as_str()) && !told.contains("forty-four"), "{told}");
    }
    assert!(!format!("{:?}", state(&key(3))).contains(secret.as_str()));
}

#[test]
fn a_session_is_remembered_for_as_long_as_the_peer_has_it() {
    let left = state(&key(1));
    let shook = left.peers[0].last_handshake.unwrap();
    // An instant long after the machine's start, so that the handshake's instant can be computed.
    let now = Instant::now() + Duration::from_secs(10_000);
    let remembered = |wall_clock| left.remembered(now, wall_clock)[0].1;
    let second = Duration::from_secs(1);
    let fresh = remembered(shook + 179 * second);
    assert!(fresh.has_session);
    assert_eq!(fresh.last_handshake, Some(now - 179 * second));
    assert_eq!((fresh.source, fresh.sent_bytes), (Some("192.0.2.9".parse().unwrap()), 7));
    assert!(!remembered(shook + 180 * second).has_session);
    let set_back = remembered(shook - 3600 * second);
    assert_eq!((set_back.last_handshake, set_back.has_session), (Some(now), true));
}

#[test]
fn a_clock_that_was_set_back_is_noticed() {
    let left = state(&key(1));
    assert_eq!(left.clock_set_back(left.latest_stamp), None);
    assert_eq!(left.clock_set_back(left.latest_stamp + Duration::from_secs(1)), None);
    let minute = Duration::from_secs(60);
    assert_eq!(left.clock_set_back(left.latest_stamp - minute), Some(minute));
}
