//! Tests of what is saved into a file, and what stays unchanged.

use std::num::NonZeroU16;

use weft_tunnel::{PeerSettings, PrivateKey};

use super::*;
use crate::{Config, parse};

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const OTHER: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

const TEXT: &str = "# My tunnel
[Interface]
PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk= # keep me
address = 10.0.0.1/24
Address = fd00::1/64
DNS = 192.0.2.53, corp.example
ListenPort = 51820
Table = auto
SaveConfig = true
PostUp = echo up # %i
# weft: KillSwitch = on

# The office.
[Peer]
PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
# friendly_name = office
AllowedIPs = 10.0.0.2, 10.1.2.3/16
AllowedIPs = fd00::2
Endpoint = office.example:51820

# At home.
[Peer]
PublicKey = TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=
Endpoint = 192.0.2.1:1
PersistentKeepalive = 25
";

fn parsed(text: &str) -> Config {
    parse(text, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config
}

/// The state of an interface that was just brought up by this configuration.
fn state_of(config: &Config) -> DeviceState {
    let peers = config.peers.iter().map(|peer| PeerState {
        endpoint: match peer.endpoint {
            Some(Endpoint::Address(address)) => Some(address),
            Some(Endpoint::Name { port, .. }) => Some(([203, 0, 113, 9], port).into()),
            None => None,
        },
        allowed_ips: peer.allowed_ips.clone(),
        settings: peer.settings.clone(),
        ..PeerState::new(peer.public_key)
    });
    DeviceState { settings: config.interface.settings.clone(), peers: peers.collect() }
}

fn saved<'a>(device: &'a DeviceState, addresses: &'a [IpNet]) -> Saved<'a> {
    let file = Path::new("wg0.conf");
    Saved { file, device, addresses: Some(addresses), mtu: Some(1420), chosen_mark: 51_820, comments: &[] }
}

#[test]
fn what_did_not_change_stays_as_it_is_written() {
    let config = parsed(TEXT);
    let mut device = state_of(&config);
    assert_eq!(*edit(TEXT, &saved(&device, &config.interface.addresses)), TEXT);
    device.settings.fw_mark = 51_820;
    let edited = edit(TEXT, &saved(&device, &config.interface.addresses));
    assert_eq!(*edited, TEXT, "a mark that was chosen for a default route is chosen again");
}

#[test]
fn what_changed_is_written_where_it_stood() {
    let config = parsed(TEXT);
    let mut device = state_of(&config);
    device.settings.listen_port = 1234;
    device.settings.fw_mark = 7;
    device.peers[0].allowed_ips = vec!["10.9.0.0/16".parse().unwrap()];
    device.peers[0].settings.preshared_key = Some(OTHER.parse().unwrap());
    device.peers[1].endpoint = Some("198.51.100.7:9".parse().unwrap());
    device.peers[1].settings.persistent_keepalive = None;
    let addresses = ["10.0.0.9/24".parse().unwrap()];
    let edited = edit(TEXT, &saved(&device, &addresses));
    let expected = TEXT
        .replace("address = 10.0.0.1/24\nAddress = fd00::1/64\n", "Address = 10.0.0.9/24\n")
        .replace("ListenPort = 51820", "ListenPort = 1234")
        .replace("KillSwitch = on\n", "KillSwitch = on\nFwMark = 0x7\n")
        .replace("AllowedIPs = 10.0.0.2, 10.1.2.3/16\nAllowedIPs = fd00::2\n", "AllowedIPs = 10.9.0.0/16\n")
        .replace("office.example:51820\n", &format!("office.example:51820\nPresharedKey = {OTHER}\n"))
        .replace("192.0.2.1:1\nPersistentKeepalive = 25\n", "198.51.100.7:9\n");
    assert_eq!(*edited, expected);
    let again = parsed(&edited);
    assert_eq!(again.interface.settings.fw_mark, 7);
}

#[test]
fn peers_come_and_go_with_their_comments() {
    let config = parsed(TEXT);
    let mut device = state_of(&config);
    device.peers.remove(0);
    device.peers.push(PeerState {
        public_key: PrivateKey::from_bytes([9; 32]).public_key(),
        settings: PeerSettings { persistent_keepalive: NonZeroU16::new(5), ..PeerSettings::default() },
        allowed_ips: vec!["10.3.0.0/16".parse().unwrap(), "fd03::/64".parse().unwrap()],
        ..device.peers[0].clone()
    });
    let edited = edit(TEXT, &saved(&device, &config.interface.addresses));
    assert!(!edited.contains("office") && !edited.contains(PEER), "{}", *edited);
    assert!(edited.contains("# At home.\n[Peer]\n") && edited.contains(OTHER), "{}", *edited);
    let key = device.peers[1].public_key;
    let added = format!(
        "\n[Peer]\nPublicKey = {key}\nAllowedIPs = 10.3.0.0/16, fd03::/64\nEndpoint = 192.0.2.1:1\nPersistentKeepalive = 5\n"
    );
    assert!(edited.ends_with(&added), "{}", *edited);
    assert_eq!(parsed(&edited).peers.len(), 2);
    device.peers.clear();
    let edited = edit(TEXT, &saved(&device, &config.interface.addresses));
    assert_eq!(parsed(&edited).peers.len(), 0);
    assert!(edited.contains(KEY) && edited.contains("PostUp = echo up # %i"), "{}", *edited);
}

#[test]
fn comments_that_another_program_has_wiped_come_back_and_those_that_are_there_stay() {
    let text = format!(
        "[Interface]\nPrivateKey = {KEY}\n\n[Peer]\nPublicKey = {PEER}\n\n[Peer]\n# friendly_name = new\n\
         # weft: RateToPeer = off\nPublicKey = {OTHER}\n"
    );
    let device = state_of(&parsed(&text));
    let comments = |key: &str, name: &str| PeerComments {
        public_key: key.parse().unwrap(),
        report: ReportSettings {
            expected: Some(false),
            expires: values::expiry("2031-01-02").unwrap(),
            ..ReportSettings::named(name)
        },
        limits: PeerLimits { to_peer: values::parse_rate("5Mbit"), from_peer: None },
    };
    let edited = |name| {
        let comments = [comments(PEER, name), comments(OTHER, "old")];
        edit(&text, &Saved { comments: &comments, ..saved(&device, &[]) }).to_string()
    };
    let ends = "# weft: Expected = off\n# weft: Expires = 2031-01-02T23:59:59Z\n";
    let expected = text
        .replacen(
            "[Peer]\n",
            &format!("[Peer]\n# friendly_name = office\n# weft: RateToPeer = 5Mbit\n{ends}"),
            1,
        )
        .replace("[Peer]\n# friendly_name = new\n", &format!("[Peer]\n{ends}# friendly_name = new\n"));
    assert_eq!(edited("office"), expected);
    assert!(!edited("x\nEndpoint = 192.0.2.9:9").contains("192.0.2.9"));
}

#[test]
fn a_setting_goes_with_the_peer_that_it_is_about() {
    let text = format!(
        "[Interface]\nPrivateKey = {KEY}\n# weft: MssClamp = on\n[Peer]\nPublicKey = {PEER}\n\
         # weft: RateToPeer = 5Mbit\n# weft: RateFromPeer = 1Mbit\n# At home.\n[Peer]\nPublicKey = {OTHER}\n"
    );
    let config = parsed(&text);
    let mut device = state_of(&config);
    assert_eq!(*edit(&text, &saved(&device, &[])), text);
    device.peers.remove(0);
    let edited = edit(&text, &saved(&device, &[]));
    let expected = format!(
        "[Interface]\nPrivateKey = {KEY}\n# weft: MssClamp = on\n# At home.\n[Peer]\nPublicKey = {OTHER}\n"
    );
    assert_eq!(*edited, expected);
}

#[test]
fn the_comment_behind_a_list_stays_when_the_list_changes() {
    let text = TEXT
        .replace("10.1.2.3/16\nAllowedIPs = fd00::2\n", "10.1.2.3/16 # phones\nAllowedIPs = fd00::2\n")
        .replace("address = 10.0.0.1/24", "address = 10.0.0.1/24 # ours");
    let config = parsed(&text);
    let mut device = state_of(&config);
    device.peers[0].allowed_ips = vec!["10.9.0.0/16".parse().unwrap()];
    let edited = edit(&text, &saved(&device, &["10.0.0.9/24".parse().unwrap()]));
    let expected = text
        .replace("address = 10.0.0.1/24 # ours\nAddress = fd00::1/64\n", "Address = 10.0.0.9/24 # ours\n")
        .replace("10.0.0.2, 10.1.2.3/16 # phones\nAllowedIPs = fd00::2\n", "10.9.0.0/16 # phones\n");
    assert_eq!(*edited, expected);
}

#[test]
fn a_comment_below_an_empty_line_stays_when_the_peer_above_it_goes() {
    let interface = format!("[Interface]\nPrivateKey = {KEY}\n\n");
    let first = format!("[Peer]\nPublicKey = {PEER}\n# friendly_name = office\n# No key yet.\n\n");
    let rest = format!("# Phones\n# ------\n\n# At home.\n\n[Peer]\nPublicKey = {OTHER}\n");
    let end = "\n# [Peer]\n# PublicKey = to come\n";
    let text = format!("{interface}{first}{rest}{end}");
    let mut device = state_of(&parsed(&text));
    assert_eq!(*edit(&text, &saved(&device, &[])), text);
    device.peers.remove(0);
    assert_eq!(*edit(&text, &saved(&device, &[])), format!("{interface}{rest}{end}"));
    device.peers.clear();
    let edited = edit(&text, &saved(&device, &[]));
    assert_eq!(*edited, format!("{interface}{}", end.trim_start()));
    // A comment that describes a peer is removed with it.
    let named = format!(
        "{interface}[Peer]\nPublicKey = {PEER}\n# friendly_name = office\n[Peer]\nPublicKey = {OTHER}\n"
    );
    let mut device = state_of(&parsed(&named));
    device.peers.remove(0);
    assert_eq!(*edit(&named, &saved(&device, &[])), format!("{interface}[Peer]\nPublicKey = {OTHER}\n"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_link_local_endpoint_has_the_name_of_its_interface_and_follows_a_peer_that_roams() {
    let text = TEXT.replace("192.0.2.1:1", "[fe80::1%lo]:1 # by cable");
    let config = parsed(&text);
    let mut device = state_of(&config);
    let mut edited = |endpoint: &str| {
        device.peers[1].endpoint = Some(endpoint.parse().unwrap());
        edit(&text, &saved(&device, &config.interface.addresses)).to_string()
    };
    assert_eq!(edited("[fe80::1%1]:1"), text);
    assert_eq!(edited("[fe80::2%1]:9"), text.replace("[fe80::1%lo]:1", "[fe80::2%lo]:9"));
    assert_eq!(edited("192.0.2.7:9"), text.replace("[fe80::1%lo]:1", "192.0.2.7:9"));
}

#[test]
fn a_second_interface_section_and_loose_lists_are_understood() {
    let second = "\n[Interface]\nListenPort = 51820 # ours\nMTU =\n";
    let text = TEXT.replace("ListenPort = 51820\n", "").replace("24\nAddress = fd", "24,, fd") + second;
    let config = parsed(&text);
    let mut device = state_of(&config);
    let merged = edit(&text, &saved(&device, &config.interface.addresses));
    let expected = text
        .replace(second, "\n")
        .replace("KillSwitch = on\n\n", "KillSwitch = on\n\nListenPort = 51820 # ours\nMTU =\n");
    assert_eq!(merged.trim_end(), expected.trim_end());
    device.settings.listen_port = 7;
    let changed = edit(&text, &saved(&device, &config.interface.addresses));
    assert_eq!(*changed, merged.replace("51820 # ours", "7 # ours"));
    assert_eq!(parsed(&changed).interface.settings.listen_port, 7);
}

#[test]
fn a_link_local_address_of_the_file_stays() {
    let text = TEXT.replace("10.0.0.1/24", "10.0.0.1/24, fe80::7/64");
    let config = parsed(&text);
    let device = state_of(&config);
    let addresses = ["10.0.0.1/24", "fd00::1/64"].map(|net| net.parse().unwrap());
    assert_eq!(*edit(&text, &saved(&device, &addresses)), text);
    let edited = edit(&text, &saved(&device, &addresses[..1]));
    assert!(edited.contains("\nAddress = 10.0.0.1/24, fe80::7/64\nDNS"), "{}", *edited);
}

#[test]
fn line_breaks_of_another_system_stay() {
    let text = TEXT.replace('\n', "\r\n");
    let config = parsed(&text);
    let mut state = state_of(&config);
    assert_eq!(*edit(&text, &saved(&state, &config.interface.addresses)), text);
    state.peers.push(PeerState::new(KEY.parse().unwrap()));
    let edited = edit(&text, &saved(&state, &config.interface.addresses));
    assert_eq!(*edited, format!("{text}\r\n[Peer]\r\nPublicKey = {KEY}\r\n"));
}

#[test]
fn a_key_in_a_file_of_its_own_stays_there_until_it_is_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wg0.conf");
    std::fs::write(directory.path().join("own.key"), format!("{KEY}\n")).unwrap();
    std::fs::write(directory.path().join("peer.psk"), format!("{OTHER}\n")).unwrap();
    let text = format!(
        "[Interface]\nPrivateKeyFile = own.key\n\n[Peer]\nPublicKey = {PEER}\nPresharedKeyFile = peer.psk # ours\n"
    );
    let config = parse(&text, &file, "wg0".parse().unwrap()).unwrap().config;
    let mut device = state_of(&config);
    let edited = |device: &DeviceState| {
        edit(&text, &Saved { file: &file, device, addresses: None, mtu: None, chosen_mark: 0, comments: &[] })
    };
    assert_eq!(*edited(&device), text);
    device.peers[0].settings.preshared_key = Some(KEY.parse().unwrap());
    let changed = text.replace("PresharedKeyFile = peer.psk # ours", &format!("PresharedKey = {KEY} # ours"));
    assert_eq!(*edited(&device), changed);
    std::fs::remove_file(directory.path().join("peer.psk")).unwrap();
    assert_eq!(*edited(&device), text, "what cannot be read stays as it is");
}

#[test]
fn a_disabled_peer_stays_where_it_is() {
    let marked: String = TEXT
        .split_inclusive('\n')
        .skip_while(|line| *line != "# The office.\n")
        .skip(1)
        .take_while(|line| *line != "\n")
        .map(|line| format!("{}{line}", lexer::DISABLED))
        .collect();
    let (above, below) = TEXT.split_once("# The office.\n").unwrap();
    let (_, below) = below.split_once("\n\n").unwrap();
    let text = format!("{above}# The office.\n{marked}\n{below}");
    let config = parsed(&text);
    let mut state = state_of(&config);
    assert_eq!(state.peers.len(), 1);
    assert_eq!(*edit(&text, &saved(&state, &config.interface.addresses)), text);
    // One that was let in at run time is in force again, with its name and settings, and once.
    let running = state_of(&parsed(TEXT));
    assert_eq!(*edit(&text, &saved(&running, &config.interface.addresses)), TEXT);
    let odd = text.replace(&marked, &format!("{marked}{}Nonsense = 1\n", lexer::DISABLED));
    let kept = edit(&odd, &saved(&running, &config.interface.addresses));
    assert!(kept.contains("Nonsense = 1") && parsed(&kept).peers.len() == 2, "{}", *kept);
    // The peer below it goes, and its comment with it.
    state.peers.clear();
    let gone = edit(&text, &saved(&state, &config.interface.addresses));
    assert!(gone.contains(&marked) && !gone.contains("At home"), "{}", *gone);
    assert!(gone.contains("# The office.\n"), "{}", *gone);
}
