//! Properties that hold for every text given to the parser.

use proptest::prelude::*;
use weft_tunnel::PrivateKey;

use super::*;

fn parse_text(text: &str) -> Result<Parsed, ConfigErrors> {
    parse(text, "wg0.conf".as_ref(), "wg0".parse().unwrap())
}

/// Returns everything that a user sees of a result.
fn told(result: &Result<Parsed, ConfigErrors>) -> String {
    match result {
        Ok(parsed) => format!("{parsed:?}{}", list(&parsed.warnings)),
        Err(errors) => format!("{errors}{errors:?}{}", list(&errors.warnings)),
    }
}

fn list(warnings: &[Warning]) -> String {
    warnings.iter().map(ToString::to_string).collect()
}

/// Lines that are nearly a configuration; `{key}` is where a private key may have been put by mistake.
fn line() -> impl Strategy<Value = String> {
    let keys = prop::sample::select(vec![
        "PrivateKey",
        "privatekey",
        "ListenPort",
        "FwMark",
        "Address",
        "MTU",
        "Table",
        "DNS",
        "PostUp",
        "PublicKey",
        "PresharedKey",
        "AllowedIPs",
        "AllowedIps",
        "Endpoint",
        "PersistentKeepalive",
        "Adress",
        "{key}",
        "",
    ]);
    let values = prop_oneof![
        Just("{key}".to_owned()),
        Just("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=".to_owned()),
        Just("10.0.0.1/24, fd00::1/64".to_owned()),
        Just("10.0.0.0/{key}, {key}/8, [{key}]:1".to_owned()),
        Just("[fe80::1%eth0]:1".to_owned()),
        Just("auto".to_owned()),
        "[0-9]{1,6}",
        "[ -~]{0,20}",
        "\\PC{0,20}",
    ];
    prop_oneof![
        4 => (keys, values).prop_map(|(key, value)| format!("{key} = {value}")),
        1 => Just("[Interface]".to_owned()),
        1 => Just("[Peer]".to_owned()),
        1 => prop::sample::select(vec!["[{key}]", "{key}", "PrivateKey: {key}", "{key}{key} # {key}", "[{key}"])
            .prop_map(str::to_owned),
        1 => "\\PC{0,40}",
    ]
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = told(&parse_text(&text));
    }

    #[test]
    fn no_message_holds_a_private_key(lines in prop::collection::vec(line(), 0..30), seed in any::<[u8; 32]>()) {
        let key = PrivateKey::from_bytes(seed).to_base64();
        // As a PublicKey, a private key cannot be told from a public key.
        let lines: Vec<_> = lines.into_iter().filter(|line| line != "PublicKey = {key}").collect();
        let text = lines.join("\n").replace("{key}", &key);
        let told = told(&parse_text(&text));
        prop_assert!(!told.contains(&key[..43]), "{told}");
    }

    #[test]
    fn what_is_accepted_keeps_its_promises(lines in prop::collection::vec(line(), 0..30)) {
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        let text = format!("[Interface]\nPrivateKey = {key}\n{}", lines.join("\n").replace("{key}", key));
        if let Ok(Parsed { config, .. }) = parse_text(&text) {
            let mut prefixes: Vec<_> = config.peers.iter().flat_map(|peer| &peer.allowed_ips).collect();
            prop_assert!(prefixes.iter().all(|prefix| prefix.addr() == prefix.network()));
            let count = prefixes.len();
            prefixes.sort();
            prefixes.dedup();
            prop_assert_eq!(prefixes.len(), count);
        }
    }
}

#[test]
fn a_long_file_that_is_no_configuration_keeps_few_errors() {
    let errors = parse_text(&"nonsense\n".repeat(5000)).unwrap_err();
    assert_eq!((errors.errors.len(), errors.more), (100, 4901));
    assert!(errors.to_string().ends_with("and 4901 more"));
}

#[test]
fn what_is_wrong_in_every_line_is_said_of_some_and_counted() {
    let key = PrivateKey::generate().unwrap().to_base64();
    let (address, mtu) = ("Address = 10.0.0.1/24\n".repeat(1001), "MTU = 1400\n".repeat(22));
    let parsed = parse_text(&format!("[Interface]\nPrivateKey = {}\n{address}{mtu}", *key)).unwrap();
    let told: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 42, "{told:#?}");
    assert!(told[19].starts_with("wg0.conf:23: Address: 10.0.0.1/24 stands in line 3"), "{}", told[19]);
    assert_eq!(told[20], "wg0.conf:23: Address: and 980 more like this");
    assert_eq!(told[41], "wg0.conf:1024: MTU: and 1 more like this");
}

#[test]
fn sections_of_a_file_that_is_no_configuration_are_not_kept() {
    let text = "[Peer]\n".repeat(5000);
    let mut reports = reports::Reports::new(std::path::Path::new("wg0.conf").into());
    let drafts = wg_quick::read(&text, wg_quick::Format::WgQuick, &mut reports);
    assert!(drafts.peers.is_empty(), "{}", drafts.peers.len());
    let errors = parse_text(&text).unwrap_err();
    assert_eq!((errors.errors.len(), errors.more), (100, 4901));
}

#[test]
fn ten_thousand_peers_are_parsed_in_no_time() {
    let mut text = "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n".to_owned();
    for number in 0..10_000u16 {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        let [high, low] = number.to_be_bytes();
        let key = PublicKey::from_bytes(bytes);
        text +=
            &format!("[Peer]\nPublicKey = {key}\nAllowedIPs = 10.{high}.{low}.0/24, fd00:{number:x}::/64\n");
    }
    let started = std::time::Instant::now();
    let parsed = parse_text(&text).unwrap();
    assert_eq!(parsed.config.peers.len(), 10_000);
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}
