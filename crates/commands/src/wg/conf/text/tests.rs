//! Texts and what they mean.

use super::*;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn read(text: &str) -> Result<Parsed, ConfErrors> {
    parse(text, Path::new("wg.conf"), WgQuickKeys::Refuse)
}

#[test]
fn every_key_is_read_whatever_its_case() {
    let parsed = read(&format!(
        "\u{feff}[interface] # ours\r\nprivatekey={KEY}\r\nLISTENPORT = 5\r\nFwMark = 0x10\r\n[PEER]\r\n\
         AllowedIPs = 10.0.0.1/8, fd00::1\r\nallowedips=\r\nPublicKey = {PEER}#comment\r\nPresharedKey = {KEY}\r\n\
         Endpoint = vpn.example:1\r\nPersistentKeepalive = off\r\n"
    ))
    .unwrap();
    let draft = parsed.draft;
    assert_eq!(draft.private_key, Some(Some(KEY.parse().unwrap())));
    assert_eq!((draft.listen_port, draft.fw_mark), (Some(5), Some(16)));
    let [peer] = &draft.peers[..] else { panic!("{:?}", draft.peers) };
    assert_eq!(peer.change.public_key.to_string(), PEER);
    assert_eq!(peer.change.settings.preshared_key, Some(Some(KEY.parse().unwrap())));
    assert_eq!(peer.change.settings.persistent_keepalive, Some(None));
    assert!(peer.change.replace_allowed_ips);
    assert_eq!(peer.change.allowed_ips.len(), 2);
    assert_eq!(peer.endpoint.as_ref().unwrap().to_string(), "vpn.example:1");
    let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["wg.conf:6: AllowedIPs: 10.0.0.1/8 has host bits, 10.0.0.0/8 is used; write that"]);
}

#[test]
fn nothing_is_required_and_what_is_absent_is_none() {
    let draft = read("# nothing\n").unwrap().draft;
    assert!(draft.private_key.is_none() && draft.listen_port.is_none() && draft.fw_mark.is_none());
    let draft = read(&format!("[Peer]\nPublicKey={PEER}\n")).unwrap().draft;
    let change = &draft.peers[0].change;
    assert!(change.replace_allowed_ips && change.allowed_ips.is_empty());
    assert!(change.settings.preshared_key.is_none() && change.settings.persistent_keepalive.is_none());
}

#[test]
fn the_keys_of_wg_quick_are_refused_or_passed_over() {
    let text = "[Interface]\nAddress = 10.0.0.1\nPostUp = x = y # z\nSaveConfig=true\n";
    let errors = read(text).unwrap_err().to_string();
    assert_eq!(errors.lines().count(), 3, "{errors}");
    assert!(errors.starts_with("wg.conf:2: Address: this key is wg-quick's"), "{errors}");
    assert!(parse(text, Path::new("f"), WgQuickKeys::PassOver).is_ok());
    let wrong = format!("{text}[Peer]\nPublicKey={PEER}\nAddress=1\n");
    let errors = parse(&wrong, Path::new("f"), WgQuickKeys::PassOver).unwrap_err().to_string();
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
    let parsed = read(&format!(
        "[Interface]\nListenPort=1\nListenPort=2\n[Peer]\nPublicKey={PEER}\nAllowedIPs=10.0.0.0/8\n\
         [Peer]\nPublicKey={KEY}\nAllowedIPs=10.0.0.0/8,10.0.0.0/8\n"
    ))
    .unwrap();
    assert_eq!(parsed.draft.listen_port, Some(2));
    let at: Vec<String> = parsed.warnings.iter().map(|warning| warning.at.to_string()).collect();
    assert_eq!(at, ["wg.conf:3: ListenPort", "wg.conf:9: AllowedIPs", "wg.conf:9: AllowedIPs"]);
}

#[test]
fn a_list_with_signs_is_a_list_of_changes() {
    let parsed =
        read(&format!("[Peer]\nPublicKey={PEER}\nAllowedIPs=+10.0.0.0/8,-11.0.0.0/8\nAllowedIPs=12.0.0.0/8"));
    let change = &parsed.unwrap().draft.peers[0].change;
    assert!(!change.replace_allowed_ips);
    assert_eq!(change.allowed_ips.len(), 3);
}
