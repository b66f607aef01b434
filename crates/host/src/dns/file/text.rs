//! The lines of /etc/resolv.conf (resolv.conf(5)).

use std::path::Path;

use weft_config::Domain;

use super::super::super::list;
use super::layers::Layers;
use super::state::{AND_COMES_BACK, BACKUP_IS, FileState, MARK, WHEN};

/// How many servers the C library asks (resolv.h, MAXNS).
pub(super) const MAX_SERVERS: usize = 3;

/// Composes the file from what was there before and the layers. The servers are those of the topmost layer
/// that has servers. The search domains are those of all layers; the former search domains are kept only if
/// the former servers are.
pub(super) fn compose(backup: &Path, original: &FileState, layers: &Layers) -> FileState {
    let text = String::from_utf8_lossy(original.content()).into_owned();
    let interfaces = list(layers.top_down().map(|layer| &layer.interface));
    let mut lines = vec![
        format!("{MARK}{interfaces}. Changes made here are lost."),
        format!("{BACKUP_IS}{}{AND_COMES_BACK}", backup.display()),
        WHEN.to_owned(),
    ];
    let top = layers.top_down().find(|layer| !layer.settings.servers.is_empty());
    match top {
        Some(layer) => {
            let servers = &layer.settings.servers;
            lines.extend(servers.iter().map(|server| format!("nameserver {server}")));
        }
        None => lines.extend(of_keyword(&text, "nameserver").map(str::to_owned)),
    }

    let mut domains: Vec<&str> = Vec::new();
    let ours = layers.top_down().flat_map(|layer| &layer.settings.search).map(Domain::as_str);
    // The last such line is in effect.
    let last = text.lines().rfind(|line| matches!(keyword(line), "search" | "domain"));
    let theirs = last.filter(|_| top.is_none()).into_iter().flat_map(|line| line.split_whitespace().skip(1));
    for domain in ours.chain(theirs) {
        if !domains.contains(&domain) {
            domains.push(domain);
        }
    }
    if !domains.is_empty() {
        lines.push(format!("search {}", domains.join(" ")));
    }

    lines.extend(of_keyword(&text, "sortlist").map(str::to_owned));
    // `trust-ad` was meant for the former servers, not for the new ones.
    let trusted = |word: &&str| top.is_none() || *word != "trust-ad";
    for line in of_keyword(&text, "options") {
        let words: Vec<_> = line.split_whitespace().filter(trusted).collect();
        if words.len() > 1 {
            lines.push(words.join(" "));
        }
    }
    original.with_content((lines.join("\n") + "\n").into_bytes())
}

/// Reports whether a file has all servers and search domains of one that weft composed, by which it is known
/// where its comments were removed.
pub(super) fn has_servers_of(present: &FileState, composed: &FileState) -> bool {
    let FileState::File { content, .. } = present else { return false };
    let (present, composed) = (String::from_utf8_lossy(content), String::from_utf8_lossy(composed.content()));
    let words = |line: &'_ str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let wanted = composed.lines().filter(|line| matches!(keyword(line), "nameserver" | "search")).map(words);
    let wanted: Vec<_> = wanted.collect();
    !wanted.is_empty() && wanted.iter().all(|wanted| present.lines().any(|line| words(line) == *wanted))
}

/// Returns the servers that a file names, for people.
pub(super) fn servers(state: &FileState) -> String {
    let text = String::from_utf8_lossy(state.content());
    let servers = of_keyword(&text, "nameserver").filter_map(|line| line.split_whitespace().nth(1));
    let servers = list(servers);
    if servers.is_empty() { "no DNS server".to_owned() } else { servers }
}

fn keyword(line: &str) -> &str {
    // A keyword is at the beginning of its line.
    line.split([' ', '\t']).next().unwrap_or_default()
}

fn of_keyword<'a>(text: &'a str, wanted: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter(move |line| keyword(line) == wanted)
}

#[cfg(test)]
mod tests {
    use weft_config::Dns;

    use super::super::layers::Layer;
    use super::*;

    const BEFORE: &str = "# by dhcp\ndomain old.example\nnameserver 192.0.2.1\nsearch a.example b.example\n\
                          options ndots:5 trust-ad\nsortlist 10.0.0.0\noptions trust-ad\n";

    fn composed(layers: &[(&str, &[&str], &[&str])]) -> String {
        let mut all = Layers::default();
        for (interface, servers, search) in layers {
            let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
            let search = search.iter().map(|domain| domain.parse().unwrap()).collect();
            all.put(Layer::ours(interface, &Dns { servers, search, routing: Vec::new() }));
        }
        let original = FileState::file(BEFORE.as_bytes().to_vec());
        let backup = Path::new("/var/lib/weft/dns/in-8:1-2/resolv.conf.before");
        let composed = compose(backup, &original, &all);
        assert!(composed.is_marked());
        assert_eq!(composed.named_backup().as_deref(), Some(backup));
        String::from_utf8(composed.without_mark().content().to_vec()).unwrap()
    }

    #[test]
    fn servers_of_a_layer_replace_those_from_before_and_options_stay() {
        let text = composed(&[("wg0", &["10.0.0.1", "fd00::1"], &["corp.example"])]);
        assert_eq!(
            text,
            "nameserver 10.0.0.1\nnameserver fd00::1\nsearch corp.example\nsortlist 10.0.0.0\noptions ndots:5\n"
        );
    }

    #[test]
    fn search_domains_alone_are_added_to_what_was_there() {
        let text = composed(&[("wg0", &[], &["corp.example", "b.example"])]);
        assert!(text.contains("nameserver 192.0.2.1\nsearch corp.example b.example a.example\n"), "{text}");
        assert!(text.contains("options ndots:5 trust-ad"), "{text}");
    }

    #[test]
    fn the_latest_interface_with_servers_wins_and_all_domains_are_searched() {
        let text = composed(&[
            ("wg0", &["10.0.0.1"], &["zero.example"]),
            ("wg1", &["10.1.0.1"], &["one.example"]),
            ("wg2", &[], &["two.example"]),
        ]);
        assert!(
            text.starts_with("nameserver 10.1.0.1\nsearch two.example one.example zero.example\n"),
            "{text}"
        );
    }
}
