//! What manual pages have beside the command line: weft.conf(5), from the keys that the parser knows, and
//! what users of wg(8) look for in weft(1).

use clap_mangen::roff::{Roff, bold, italic, roman};
use weft_config::keys::{InterfaceKey, InterfaceSetting, PeerKey, PeerSetting};

/// What another program does, and what does it here.
const IN_PLACE_OF: &[(&str, &str)] = &[
    ("wg-quick up NAME", "weft up -d NAME, with the same file"),
    ("wg-quick down NAME", "weft down NAME"),
    ("wg-quick save NAME, strip NAME", "weft save NAME, weft strip NAME"),
    ("wg show", "weft show, in the same words; weft status also says what is wrong"),
    ("wg set, setconf, addconf, syncconf, showconf", "the same commands of weft; wg itself works too"),
    ("wg syncconf NAME <(wg-quick strip NAME)", "weft reload NAME, with addresses, routes and name servers"),
    ("wg genkey, genpsk, pubkey", "the same commands of weft"),
    ("wireguard-go NAME, boringtun-cli NAME", "weft NAME, or weft run NAME"),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/wireguard/NAME.conf", "the configuration of the interface NAME: weft.conf(5)"),
    ("/run/weft/NAME/", "the control socket of a running interface, and what a crash left to take back"),
    ("/var/run/wireguard/NAME.sock", "the socket for wg(8)"),
];

/// Appends the sections of weft(1) that the command line does not give.
pub(super) fn add_to_weft(page: &mut Roff) {
    for (title, entries) in [("IN PLACE OF OTHER PROGRAMS", IN_PLACE_OF), ("FILES", FILES)] {
        page.control("SH", [title]);
        for (name, text) in entries {
            page.control("TP", []).text([bold(*name)]).text([roman(*text)]);
        }
    }
}

/// Returns weft.conf(5).
pub(super) fn of_configuration(version: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["weft.conf", "5", "", &format!("weft {version}"), "weft"]);
    page.control("SH", ["NAME"]).text([roman("weft.conf - configuration of an interface of weft")]);
    page.control("SH", ["DESCRIPTION"]).text([
        roman("The file "),
        italic("/etc/wireguard/NAME.conf"),
        roman(
            " describes the interface NAME, in the format of wg-quick(8). It has one section [Interface] and a \
             section [Peer] for each peer. Settings of weft alone stand in comments, so that wg-quick(8) reads \
             the same file. The comment # friendly_name = NAME gives a peer a name. weft check says what a file \
             means. Each key is shown with an example.",
        ),
    ]);
    let of_interface = InterfaceKey::MANUAL.iter().map(|(key, example, text)| (key.text(), *example, *text));
    let set_interface =
        InterfaceSetting::MANUAL.iter().map(|(key, example, text)| (key.text(), *example, *text));
    let of_peer = PeerKey::MANUAL.iter().map(|(key, example, text)| (key.text(), *example, *text));
    let set_peer = PeerSetting::MANUAL.iter().map(|(key, example, text)| (key.text(), *example, *text));
    keys(&mut page, "KEYS OF [Interface]", "", of_interface);
    keys(&mut page, "SETTINGS OF WEFT IN [Interface]", "# weft: ", set_interface);
    keys(&mut page, "KEYS OF [Peer]", "", of_peer);
    keys(&mut page, "SETTINGS OF WEFT IN [Peer]", "# weft: ", set_peer);
    page.control("SH", ["SEE ALSO"])
        .text([roman("weft(1), weft-up(1), weft-check(1), weft-peer(1), wg(8), wg-quick(8)")]);
    page
}

fn keys<'a>(
    page: &mut Roff,
    title: &str,
    prefix: &str,
    keys: impl Iterator<Item = (&'a str, &'a str, &'a str)>,
) {
    page.control("SH", [title]);
    for (key, example, text) in keys {
        page.control("TP", [])
            .text([roman(prefix), bold(key), roman(format!(" = {example}"))])
            .text([roman(text)]);
    }
}
