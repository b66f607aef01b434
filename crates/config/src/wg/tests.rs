//! Texts and their meaning.

use super::*;
use crate::device::AllowedIpChange;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn read(text: &str) -> Result<(DeviceChange<Endpoint>, Vec<Warning>), ConfigErrors> {
    parse_change(text, Path::new("wg.conf"), WgQuickKeys::Refuse)
}

#[test]
fn every_key_is_read_whatever_its_case() {
    let (draft, warnings) = read(&format!(
        "\u{feff}[interface] # ours\r\nprivatekey={KEY}\r\nLISTENPORT = 5\r\nFwMark = 0x10\r\n[PEER]\r\n\
         AllowedIPs = 10.0.0.1/8, fd00::1\r\nallowedips=\r\nPublicKey = {PEER}#comment\r\nPresharedKey = {KEY}\r\n\
         Endpoint = vpn.example:1\r\nPersistentKeepalive = off\r\n"
    ))
    .unwrap();
    assert_eq!(draft.settings.private_key, Some(Some(KEY.parse().unwrap())));
    assert_eq!((draft.settings.listen_port, draft.settings.fw_mark), (Some(5), Some(16)));
    let [peer] = &draft.peers[..] else { panic!("{:?}", draft.peers) };
    assert_eq!(peer.public_key.to_string(), PEER);
    assert_eq!(peer.settings.preshared_key, Some(Some(KEY.parse().unwrap())));
    assert_eq!(peer.settings.persistent_keepalive, Some(None));
    assert!(peer.replace_allowed_ips);
    assert_eq!(peer.allowed_ips.len(), 2);
    assert_eq!(peer.endpoint.as_ref().unwrap().to_string(), "vpn.example:1");
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["wg.conf:6: AllowedIPs: 10.0.0.1/8 has host bits, 10.0.0.0/8 is used; write that"]);
}

#[test]
fn nothing_is_required_and_what_is_absent_is_none() {
    let draft = read("# nothing\n").unwrap().0;
    assert!(
        draft.settings.private_key.is_none()
            && draft.settings.listen_port.is_none()
            && draft.settings.fw_mark.is_none()
    );
    let draft = read(&format!("[Peer]\nPublicKey={PEER}\n")).unwrap().0;
    let change = &draft.peers[0];
    assert!(change.replace_allowed_ips && change.allowed_ips.is_empty());
    assert!(change.settings.preshared_key.is_none() && change.settings.persistent_keepalive.is_none());
}

#[test]
fn the_keys_of_wg_quick_are_refused_or_passed_over() {
    let text = "[Interface]\nAddress = 10.0.0.1\nPostUp = x = y # z\nSaveConfig=true\n";
    let errors = read(text).unwrap_err().to_string();
    assert_eq!(errors.lines().count(), 3, "{errors}");
    assert!(errors.starts_with("wg.conf:2: Address: this key is wg-quick's"), "{errors}");
    assert!(parse_change(text, Path::new("f"), WgQuickKeys::PassOver).is_ok());
    let wrong = format!("{text}[Peer]\nPublicKey={PEER}\nAddress=1\n");
    let errors = parse_change(&wrong, Path::new("f"), WgQuickKeys::PassOver).unwrap_err().to_string();
    assert_eq!(
        errors,
        "f:7: Address: this key belongs into [Interface], not into [Peer]; move the line there"
    );
}

#[test]
fn every_wrong_line_is_named() {
    for (text, error) in [
        ("ListenPort = 5".to_owned(), "wg.conf:1: ListenPort: a key before the first section"),
        ("[Interface]\nListenPort = x".to_owned(), "wg.conf:2: ListenPort: `x` is not valid"),
        ("[Interface]\nFwMark =".to_owned(), "wg.conf:2: FwMark: there is no value"),
        ("[Interface]\nEndpoint = a:1".to_owned(), "wg.conf:2: Endpoint: this key belongs into [Peer]"),
        ("[Interface]\nwords".to_owned(), "wg.conf:2: this line is neither"),
        ("[Interface]\nBogus = 1".to_owned(), "wg.conf:2: Bogus: unknown key in [Interface]"),
        ("[Peers]\nx = 1".to_owned(), "wg.conf:1: [Peers]: unknown section"),
        ("[Peer\n".to_owned(), "wg.conf:1: this line is neither"),
        ("\n[Peer]\nAllowedIPs=".to_owned(), "wg.conf:2: PublicKey: is missing"),
        ("[Peer]\nPublicKey = x".to_owned(), "wg.conf:2: PublicKey: a key is 44"),
        (format!("[Peer]\nPublicKey={PEER}\nAllowedIPs=10.0.0"), "wg.conf:3: AllowedIPs: `10.0.0`"),
        (
            format!("[Peer]\nPublicKey={PEER}\n[Peer]\nPublicKey={PEER}"),
            "wg.conf:4: PublicKey: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg= is the peer of line 2",
        ),
    ] {
        let errors = read(&text).unwrap_err().to_string();
        assert!(errors.starts_with(error) && errors.lines().count() == 1, "{text}: {errors}");
    }
    for text in [KEY.to_owned(), format!("[{KEY}]"), format!("[Interface]\n{KEY} = 1\nListenPort = {KEY}")] {
        assert!(!read(&text).unwrap_err().to_string().contains(&KEY[..20]), "{text}");
    }
    let many = read(&"x\n".repeat(1000)).unwrap_err().to_string();
    assert!(many.ends_with("and 900 more"), "{many}");
}

#[test]
fn what_is_odd_is_told() {
    let (draft, warnings) = read(&format!(
        "[Interface]\nListenPort=1\nListenPort=2\n[Peer]\nPublicKey={PEER}\nAllowedIPs=10.0.0.0/8\n\
         [Peer]\nPublicKey={KEY}\nAllowedIPs=10.0.0.0/8,10.0.0.0/8\n"
    ))
    .unwrap();
    assert_eq!(draft.settings.listen_port, Some(2));
    let at: Vec<String> = warnings.iter().map(|warning| warning.at.to_string()).collect();
    assert_eq!(at, ["wg.conf:3: ListenPort", "wg.conf:9: AllowedIPs", "wg.conf:9: AllowedIPs"]);
}

#[test]
fn a_list_with_signs_is_a_list_of_changes() {
    let text = format!("[Peer]\nPublicKey={PEER}\nAllowedIPs=+10.0.0.0/8,-11.0.0.0/8\nAllowedIPs=12.0.0.0/8");
    let change = &read(&text).unwrap().0.peers[0];
    assert!(!change.replace_allowed_ips);
    assert_eq!(change.allowed_ips.len(), 3);
}

fn list(text: &str) -> Result<(bool, Vec<String>), Problem> {
    let mut change = PeerChange::<Endpoint>::new(PEER.parse().unwrap());
    let mut warnings = 0;
    add_allowed_ips(&mut change, text, |_| warnings += 1)?;
    let shown = |change: &AllowedIpChange| match change {
        AllowedIpChange::Add(prefix) => prefix.to_string(),
        AllowedIpChange::Remove(prefix) => format!("-{prefix}"),
    };
    assert_eq!(warnings > 0, text.contains("/8"), "{text}");
    Ok((change.replace_allowed_ips, change.allowed_ips.iter().map(shown).collect()))
}

#[test]
fn a_list_replaces_unless_it_has_signs() {
    let of = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect::<Vec<_>>();
    assert_eq!(list(""), Ok((true, vec![])));
    assert_eq!(list("10.0.0.1/8, fd00::1"), Ok((true, of(&["10.0.0.0/8", "fd00::1/128"]))));
    assert_eq!(list("+10.0.0.1,-fd00::/64"), Ok((false, of(&["10.0.0.1/32", "-fd00::/64"]))));
    assert_eq!(list("10.0.0.1,- 10.0.0.2"), Ok((false, of(&["10.0.0.1/32", "-10.0.0.2/32"]))));
    for wrong in ["10.0.0", "10.0.0.1,", ",", "+", "--10.0.0.1", "10.0.0.1/33", "10.0.0.1 10.0.0.2"] {
        assert!(list(wrong).is_err(), "{wrong}");
    }
}
