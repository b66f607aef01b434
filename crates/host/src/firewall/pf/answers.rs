//! Reads what pfctl(8) writes.

use weft_config::InterfaceName;

use super::super::program::Ended;
use super::ruleset::{BLOCKED, TOKEN};

/// What the labels of an anchor's rules tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels {
    /// The token that keeps pf enabled.
    pub(super) token: Option<u64>,
    /// How many packets the kill switch has blocked; `None`: there is none.
    pub(super) blocked: Option<u64>,
}

/// Reads `pfctl -s labels`: a label, how often its rule was evaluated, its packets, and more.
pub(super) fn labels(said: &str) -> Labels {
    let mut labels = Labels::default();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        let Some(label) = words.next() else { continue };
        if let Some(token) = label.strip_prefix(TOKEN) {
            labels.token = token.parse().ok();
        } else if label == BLOCKED {
            let packets: u64 = words.nth(1).and_then(|packets| packets.parse().ok()).unwrap_or_default();
            *labels.blocked.get_or_insert(0) += packets;
        }
    }
    labels
}

/// Reports whether the main ruleset (`pfctl -s rules`) has this line, for all packets.
pub(super) fn has_line(main: &str, line: &str) -> bool {
    main.lines().any(|found| is_line(found, line))
}

/// Returns the first rule before this line of the main ruleset by which packets leave without being seen by
/// what follows.
pub(super) fn passes_before<'a>(main: &'a str, line: &str) -> Option<&'a str> {
    let before = main.lines().take_while(|found| !is_line(found, line)).map(str::trim);
    let mut passes = before.filter(|rule| {
        let words: Vec<&str> = rule.split_whitespace().collect();
        let is_on_loopback = words.windows(2).any(|pair| pair[0] == "on" && is_loopback(pair[1]));
        words.first() == Some(&"pass")
            && words.get(1) != Some(&"in")
            && words.contains(&"quick")
            && !is_on_loopback
    });
    passes.next()
}

fn is_line(found: &str, line: &str) -> bool {
    // scrub-anchor has its options behind it.
    let rest = found.trim().strip_prefix(line);
    rest.is_some_and(|rest| rest.trim() == "all" || (line.starts_with("scrub") && rest.starts_with(" all ")))
}

/// Returns the first interface that pf does not filter on (`pfctl -v -s Interfaces`), but the loopback and
/// the tunnel.
pub(super) fn skipped<'a>(interfaces: &'a str, tunnel: &InterfaceName) -> Option<&'a str> {
    let mut skipped = interfaces.lines().filter_map(|line| line.trim().strip_suffix("(skip)")).map(str::trim);
    skipped.find(|name| !is_loopback(name) && *name != tunnel.as_str())
}

/// Reports whether this is the loopback or the group of it.
fn is_loopback(name: &str) -> bool {
    name.strip_prefix("lo").is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Reads `pfctl -s info`.
pub(super) fn is_enabled(info: &str) -> bool {
    info.lines().any(|line| line.trim_start().starts_with("Status: Enabled"))
}

/// Returns the number of states from `pfctl -s info`.
pub(super) fn states(info: &str) -> Option<u64> {
    let entries = info.lines().find_map(|line| line.trim().strip_prefix("current entries"))?;
    entries.split_whitespace().next()?.parse().ok()
}

/// Reads the token from `pfctl -E`.
pub(super) fn token(said: &str) -> Option<u64> {
    let token = said.lines().find_map(|line| line.trim().strip_prefix("Token"))?;
    token.trim_start_matches([' ', ':']).trim().parse().ok()
}

/// Reports whether `pfctl -s References` has a token.
pub(super) fn has_token(references: &str, token: u64) -> bool {
    references.split_whitespace().any(|word| word.parse() == Ok(token))
}

/// What pfctl writes whatever happens: about a kernel without ALTQ, and a warning about the main ruleset.
const WITHOUT_NEED: [&str; 4] =
    ["ALTQ", "Use of -f option", "present in the main ruleset added by the system", "See /etc/pf.conf for"];

/// Returns the error message of pfctl.
pub(super) fn complaint(ended: &Ended) -> String {
    let text = String::from_utf8_lossy(&ended.complaint);
    let lines: Vec<&str> =
        text.lines().filter(|line| !WITHOUT_NEED.iter().any(|needless| line.contains(needless))).collect();
    let message = Ended { complaint: lines.join("\n").into(), ..Ended::default() }.message();
    if message.is_empty() { "nothing, but it fails".to_owned() } else { message }
}

pub(super) fn is_without_permission(message: &str) -> bool {
    ["ermission denied", "Operation not permitted"].iter().any(|text| message.contains(text))
}

/// Reports whether there is no such anchor.
pub(super) fn is_without_anchor(message: &str) -> bool {
    ["does not exist", "not found", "Invalid argument"].iter().any(|text| message.contains(text))
}

/// Reports whether the module of pf is not loaded.
pub(super) fn is_without_pf(message: &str) -> bool {
    message.contains("/dev/pf") && message.contains("No such file")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACOS: &str = "scrub-anchor \"com.apple/*\" all fragment reassemble\nanchor \"com.apple/*\" all\n";
    const ANCHOR: &str = "anchor \"com.apple/*\"";

    #[test]
    fn an_anchor_counts_as_evaluated_only_if_all_packets_get_there() {
        assert!(has_line(MACOS, ANCHOR) && has_line(MACOS, "scrub-anchor \"com.apple/*\""));
        for main in [
            "",
            "anchor \"com.apple\" all",
            "anchor \"com.apple/*\" in all",
            "nat-anchor \"com.apple/*\" all",
        ] {
            assert!(!has_line(main, ANCHOR), "{main}");
        }
        for before in [
            "pass quick all flags S/SA keep state",
            "pass out quick on em0 inet from any to 192.0.2.1 flags S/SA keep state",
        ] {
            assert_eq!(passes_before(&format!("block drop all\n{before}\n{MACOS}"), ANCHOR), Some(before));
            assert_eq!(passes_before(&format!("{MACOS}{before}\n"), ANCHOR), None);
        }
        let harmless = "block drop quick from <bad> to any\npass quick on lo0 all no state\npass in quick on em0 all\n\
                        pass out all flags S/SA keep state\n";
        assert_eq!(passes_before(&format!("{harmless}{MACOS}"), ANCHOR), None);
    }

    #[test]
    fn an_interface_without_filter_is_seen() {
        let tunnel = "utun7".parse().unwrap();
        let shown =
            |skipped: &str| format!("all\negress\nem0\nlo (skip)\nlo0 (skip)\nutun7 (skip)\n{skipped}\n");
        assert_eq!(skipped(&shown("em1"), &tunnel), None);
        assert_eq!(skipped(&shown("em1 (skip)"), &tunnel), Some("em1"));
        assert_eq!(skipped(&shown("low0 (skip)"), &tunnel), Some("low0"));
        assert_eq!(skipped(&shown("utun70 (skip)"), &tunnel), Some("utun70"));
    }

    #[test]
    fn tokens_status_and_counters_are_read() {
        let said = "No ALTQ support in kernel\nALTQ related functions disabled\npf enabled\nToken : 17296549721543521\n";
        assert_eq!(token(said), Some(17_296_549_721_543_521));
        assert_eq!(token("pf enabled\n"), None);
        let references = "TOKENS:\nPID      Process Name                 TOKEN                    TIMESTAMP\n\
                          123      pfctl                        17296549721543521        0 days 00:00:05\n";
        assert!(has_token(references, 17_296_549_721_543_521) && !has_token(references, 1_729_654));
        let info = "Status: Enabled for 0 days 00:01:02           Debug: Urgent\n\nState Table    Total   Rate\n  \
                    current entries                       17               \n  searches   5   0.1/s\n";
        assert_eq!((is_enabled(info), states(info)), (true, Some(17)));
        assert!(!is_enabled("Status: Disabled for 0 days 00:01:02   Debug: Urgent\n"));
        let shown = "weft-token-42 7 0 0 0 0 0 0\nweft-blocked 10 3 180 0 0 3 180\nother 9 9 9 9 9 9 9\n\
                     weft-blocked 20 4 240 0 0 4 240\n";
        assert_eq!(labels(shown), Labels { token: Some(42), blocked: Some(7) });
        assert_eq!(labels("weft-token-42 7 0 0 0 0 0 0\n").blocked, None);
    }

    #[test]
    fn what_pfctl_says_without_need_is_not_its_error() {
        let complaint = |text: &str| super::complaint(&Ended { complaint: text.into(), ..Ended::default() });
        let text = "pfctl: Use of -f option, could result in flushing of rules\npresent in the main ruleset added by \
                    the system at startup.\nSee /etc/pf.conf for further details.\n\nNo ALTQ support in kernel\n\
                    ALTQ related functions disabled\nstdin:3: syntax error\n";
        assert_eq!(complaint(text), "stdin:3: syntax error");
        assert_eq!(complaint(""), "nothing, but it fails");
    }
}
