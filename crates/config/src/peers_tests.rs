//! Tests of edits of one peer: what they change, and that nothing else changes.

use super::*;
use crate::parse;

const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const OTHER: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";
const NEW: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";
const INTERFACE: &str = "# Mine\n[Interface]\nPrivateKey = 8Bs6yhh8GDqAgnjIJ8dHqBnOoGV8zPTVUuGm8YQ5Zmw= # kept\n\
                         Address=10.9.0.1/24\n";

fn new(name: &str) -> NewPeer {
    let allowed_ips = vec!["10.9.0.9/32".parse().unwrap(), "fd09::9/128".parse().unwrap()];
    NewPeer { name: name.to_owned(), public_key: NEW.parse().unwrap(), allowed_ips, more: Vec::new() }
}

fn named(text: &str, name: &str) -> PeerText {
    let mut peers = peers(text).into_iter().filter(|peer| peer.name.as_deref() == Some(name));
    peers.next().unwrap_or_else(|| panic!("{name} in:\n{text}"))
}

/// Files with two peers, as people write them.
fn files() -> Vec<String> {
    let peer =
        format!("[Peer]\n# friendly_name = office\nPublicKey = {PEER}\nAllowedIPs=10.9.0.2/32,fd09::2");
    let other = format!(
        "# Behind a router.\n[Peer]\n#friendly_name=home\nPublicKey = {OTHER}\nPresharedKey = {PEER}"
    );
    let files = vec![
        format!("{INTERFACE}\n{peer}\n\n{other}\n"),
        format!("{INTERFACE}{peer}\n{other}"),
        format!("{INTERFACE}\n\n{peer}\n\n\n{other}\n\n\n"),
        format!("{INTERFACE}\n{peer}\n# weft: RateToPeer = 5Mbit\n\n{other}\n\n# vim: ft=conf\n"),
        format!("{INTERFACE}\n{peer} # inside\n\n  \n{other}\n# The end."),
    ];
    let with_crlf: Vec<String> = files.iter().map(|file| file.replace('\n', "\r\n")).collect();
    files.into_iter().chain(with_crlf).collect()
}

#[test]
fn peers_are_found_with_what_they_have() {
    for text in files() {
        let peers = peers(&text);
        let found: Vec<_> = peers.iter().map(|peer| (peer.name.as_deref(), peer.public_key)).collect();
        assert_eq!(
            found,
            [(Some("office"), PEER.parse().ok()), (Some("home"), OTHER.parse().ok())],
            "{text}"
        );
        let nets = ["10.9.0.2/32".parse().unwrap(), "fd09::2/128".parse().unwrap()];
        assert_eq!((&*peers[0].allowed_ips, &*peers[1].allowed_ips), (&nets[..], &[][..]), "{text}");
        assert!(shown(&text, &peers[1]).contains("(hidden)") && !shown(&text, &peers[1]).contains(PEER));
    }
}

#[test]
fn an_added_peer_stands_at_the_end_and_its_removal_gives_the_file_back() {
    for text in files() {
        let added = with_peer(&text, &new("new one"));
        let parsed = parse(&added, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap();
        let last = parsed.config.peers.last().unwrap();
        assert_eq!(last.report.friendly_name.as_deref(), Some("new one"));
        assert_eq!((last.public_key.to_string().as_str(), last.allowed_ips.len()), (NEW, 2));
        let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
        assert_eq!(added.matches('\n').count(), added.matches(end).count(), "{added:?}");
        let removed = without_peer(&added, &named(&added, "new one"));
        let ended = if text.ends_with('\n') { text.clone() } else { format!("{text}{end}") };
        assert_eq!(*removed, ended);
    }
}

#[test]
fn a_removed_peer_takes_its_comments_along_and_nothing_else() {
    let text = &files()[3];
    let without_office = without_peer(text, &named(text, "office"));
    assert!(!without_office.contains("RateToPeer") && without_office.contains("# Behind a router."));
    let without_home = without_peer(text, &named(text, "home"));
    assert_eq!(*without_home, text[..text.find("# Behind").unwrap()].to_owned() + "# vim: ft=conf\n");
}

#[test]
fn a_name_changes_in_its_line_or_gets_one() {
    for text in files() {
        let renamed_text = renamed(&text, &named(&text, "home"), "Anna's phone #2");
        let line =
            if text.contains("#friendly_name=home") { "#friendly_name=home" } else { panic!("{text}") };
        assert_eq!(*renamed_text, text.replace(line, "# friendly_name = Anna's phone #2"));
        let nameless = text.replace("#friendly_name=home\n", "").replace("#friendly_name=home\r\n", "");
        let peer = peers(&nameless).pop().unwrap();
        let renamed_text = renamed(&nameless, &peer, "home");
        assert_eq!(*renamed_text, text.replace("#friendly_name=home", "# friendly_name = home"));
    }
    let header_alone = "[Peer]";
    assert_eq!(*renamed(header_alone, &peers(header_alone)[0], "a"), "[Peer]\n# friendly_name = a\n");
}

#[test]
fn a_disabled_peer_is_a_comment_that_comes_back_as_it_was() {
    for text in files() {
        for name in ["office", "home"] {
            let off = disabled(&text, &named(&text, name));
            let parsed = parse(&off, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap();
            assert_eq!(parsed.config.peers.len(), 1, "{}", *off);
            let all: Vec<_> =
                peers(&off).into_iter().map(|peer| (peer.name.unwrap(), peer.is_disabled)).collect();
            let expected = [("office".to_owned(), name == "office"), ("home".to_owned(), name == "home")];
            assert_eq!(all, expected, "{}", *off);
            assert_eq!(named(&off, name).allowed_ips, named(&text, name).allowed_ips);
            let renamed_text = renamed(&off, &named(&off, name), "other");
            assert!(named(&renamed_text, "other").is_disabled, "{}", *renamed_text);
            assert_eq!(*enabled(&off, &named(&off, name)), text);
            let without = without_peer(&off, &named(&off, name));
            assert!(!without.contains(DISABLED.trim()) && peers(&without).len() == 1, "{}", *without);
        }
    }
}

#[test]
fn a_line_below_a_disabled_peer_stays_with_the_peer_above() {
    let text = format!(
        "{INTERFACE}[Peer]\nPublicKey = {PEER}\n#[disabled] [Peer]\n#[disabled] # friendly_name = off\nAllowedIPs = 10.9.0.7\n"
    );
    let without = without_peer(&text, &named(&text, "off"));
    assert_eq!(*without, format!("{INTERFACE}[Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.9.0.7\n"));
}

#[test]
fn a_name_is_what_the_file_gives_back() {
    let long = "x".repeat(64);
    for name in ["laptop", "Anna's phone", "a # b", "= x", "ü", "[Peer]", &long] {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    let longer = "x".repeat(65);
    for name in [
        "",
        " ",
        " a",
        "a ",
        "a\nb",
        "a\tb",
        "a\u{1b}[2J",
        "\u{202e}a",
        "a\u{200b}",
        "\u{2060}a",
        "a\0",
        &longer,
    ] {
        assert_eq!(check_name(name), Err(InvalidName::Characters), "{name:?}");
    }
    assert_eq!(check_name(PEER), Err(InvalidName::Key));
}
