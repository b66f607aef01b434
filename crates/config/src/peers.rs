//! The peers in the text of a file, disabled ones too, and edits of one of them. Every other byte stays.

use std::ops::Range;
use std::time::SystemTime;

use ipnet::IpNet;
use weft_tunnel::PublicKey;
use zeroize::Zeroizing;

use super::Expiry;
use super::edit::{self, Kind, Line, Section, line_end};
use super::keys::PeerSetting;
use super::lexer::{self, DISABLED, Header};

/// Why a text cannot be the name of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It is empty, too long, or has characters that are not shown.
    #[error("a peer's name has 1 to 64 characters that can be printed, and no space at either end")]
    Characters,
    /// Commands take a name or a key.
    #[error("a key cannot be the name of a peer")]
    Key,
}

/// Checks that a peer can have this name: a file gives it back as it is.
pub fn check_name(name: &str) -> Result<(), InvalidName> {
    if name.parse::<PublicKey>().is_ok() {
        return Err(InvalidName::Key);
    }
    if lexer::keeps_name(name) { Ok(()) } else { Err(InvalidName::Characters) }
}

/// A peer in the text of a file.
#[derive(Clone, Debug)]
pub struct PeerText {
    /// The name, if it has one.
    pub name: Option<String>,
    /// The public key; `None` only in a disabled section: its lines are not checked.
    pub public_key: Option<PublicKey>,
    /// The allowed-ips, host bits cleared, sorted.
    pub allowed_ips: Vec<IpNet>,
    /// When the peer ends, if its text says so.
    pub expires: Option<Expiry>,
    /// Whether each line of the peer is a comment.
    pub is_disabled: bool,
    /// Where the section is, with the comments above it that belong to it.
    range: Range<usize>,
}

/// Returns the peers of a file in its order.
pub fn peers(text: &str) -> Vec<PeerText> {
    let content = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut end = text.len() - content.len();
    let mut lines = content.split_inclusive('\n');
    let mut found = Vec::new();
    for section in edit::split(content) {
        let begin = end;
        end += lines.by_ref().take(section.lines.len()).map(str::len).sum::<usize>();
        if matches!(section.kind, Kind::Peer | Kind::Disabled) {
            found.push(read(&text[begin..end], section.kind == Kind::Disabled, begin..end));
        }
    }
    found
}

/// Returns the peers of a file that have ended: an interface does not let them in.
pub fn ended(text: &str, now: SystemTime) -> Vec<PeerText> {
    let is_over = |peer: &PeerText| peer.expires.is_some_and(|expiry| expiry.is_over(now));
    peers(text).into_iter().filter(|peer| !peer.is_disabled && is_over(peer)).collect()
}

fn read(text: &str, is_disabled: bool, range: Range<usize>) -> PeerText {
    let lines = text.lines().map(|line| lexer::Line::new(0, line));
    let lines = lines.filter_map(|line| if is_disabled { line.disabled() } else { Some(line.whole()) });
    let section = Section { kind: Kind::Peer, lines: lines.clone().map(Line::Kept).collect() };
    PeerText {
        name: lines.filter_map(|line| lexer::Line::new(0, line).friendly_name()).next_back(),
        public_key: section.public_key(),
        allowed_ips: section.allowed_ips().into_iter().collect(),
        expires: section.expiry(),
        is_disabled,
        range,
    }
}

/// A peer that is added to a file.
#[derive(Clone, Debug)]
pub struct NewPeer {
    /// The name, see [`check_name`].
    pub name: String,
    /// The public key, which no other peer of the file has.
    pub public_key: PublicKey,
    /// The allowed-ips.
    pub allowed_ips: Vec<IpNet>,
    /// Further lines of the section, such as settings of weft.
    pub more: Vec<String>,
}

/// Returns the text with a further peer behind the last section: above the comments with which the file ends.
pub fn with_peer(text: &str, peer: &NewPeer) -> Zeroizing<String> {
    let NewPeer { name, public_key, allowed_ips, more } = peer;
    let mut added = vec!["[Peer]".to_owned(), lexer::line_of_name(name)];
    added.extend(more.iter().cloned());
    added.push(format!("PublicKey = {public_key}"));
    let list: Vec<String> = allowed_ips.iter().map(IpNet::to_string).collect();
    added.push(format!("AllowedIPs = {}", list.join(", ")));
    let line_end = line_end(text);
    let (above, below) = text.split_at(end_of_sections(text));
    let mut section = String::new();
    if !above.is_empty() && !above.ends_with('\n') {
        section += line_end;
    }
    // Above comments at the end there is an empty line.
    if !above.is_empty() && below.is_empty() {
        section += line_end;
    }
    for line in &added {
        section.extend([line.as_str(), line_end]);
    }
    if !below.is_empty() {
        section += line_end;
    }
    concat(&[above, &section, below])
}

/// Returns the text without the peer and its comments.
pub fn without_peer(text: &str, peer: &PeerText) -> Zeroizing<String> {
    let (mut above, below) = (&text[..peer.range.start], &text[peer.range.end..]);
    if below.is_empty() {
        // The empty line between the section and the one above it goes too.
        above = above.strip_suffix("\r\n\r\n").map_or(above, |rest| &above[..rest.len() + 2]);
        above = above.strip_suffix("\n\n").map_or(above, |rest| &above[..rest.len() + 1]);
    }
    concat(&[above, below])
}

/// Returns the text without sections of the peer that are disabled, where another one is in force.
pub fn without_disabled_copies(text: &str, key: &PublicKey) -> Zeroizing<String> {
    let mut text = Zeroizing::new(text.to_owned());
    loop {
        let mut copies: Vec<PeerText> = peers(&text);
        copies.retain(|peer| peer.public_key.as_ref() == Some(key));
        let is_in_force = copies.iter().any(|peer| !peer.is_disabled);
        let Some(copy) = copies.iter().find(|peer| peer.is_disabled && is_in_force) else { return text };
        text = without_peer(&text, copy);
    }
}

/// Returns the text with another name of the peer.
pub fn renamed(text: &str, peer: &PeerText, name: &str) -> Zeroizing<String> {
    with_line(text, peer, &lexer::line_of_name(name), |line| line.friendly_name().is_some())
}

/// Returns the text with another moment at which the peer ends; `None`: never.
pub fn ending(text: &str, peer: &PeerText, expiry: Option<Expiry>) -> Zeroizing<String> {
    with_line(text, peer, &expiry_line(expiry), |line| {
        let key = line.weft_setting().and_then(|setting| setting.split_once('='));
        key.is_some_and(|(key, _)| key.trim().eq_ignore_ascii_case(PeerSetting::Expires.text()))
    })
}

/// Returns the line that says when a peer ends.
pub fn expiry_line(expiry: Option<Expiry>) -> String {
    let value = expiry.map_or_else(|| "never".to_owned(), |expiry| expiry.to_string());
    format!("# weft: {} = {value}", PeerSetting::Expires.text())
}

/// Returns the text with this line in place of the last one of the peer that `is_it`, or below its header.
fn with_line(
    text: &str,
    peer: &PeerText,
    new: &str,
    is_it: impl Fn(&lexer::Line<'_>) -> bool,
) -> Zeroizing<String> {
    let mark = if peer.is_disabled { DISABLED } else { "" };
    let lines: Vec<&str> = text[peer.range.clone()].split_inclusive('\n').collect();
    let inner = lines.iter().map(|line| lexer::Line::new(0, line.strip_prefix(mark).unwrap_or_default()));
    let inner: Vec<lexer::Line<'_>> = inner.collect();
    let named = inner.iter().rposition(&is_it);
    let header = inner.iter().position(|line| matches!(line.header(), Some(Header::Known(_))));
    let place = named.or(header.map(|header| header + 1)).unwrap_or_default();
    let kept = if named.is_some() { place + 1 } else { place };
    let above = lines[..place].concat();
    let separator = if above.is_empty() || above.ends_with('\n') { "" } else { line_end(text) };
    // The last line of a file may have no end.
    let is_last = named.is_some() && lines.get(place).is_some_and(|line| !line.ends_with('\n'));
    let end = if is_last { "" } else { line_end(text) };
    let line = format!("{separator}{mark}{new}{end}");
    let below = lines[kept..].concat();
    concat(&[&text[..peer.range.start], &above, &line, &below, &text[peer.range.end..]])
}

/// Returns the text with each line of the peer as a comment that [`enabled`] takes back.
pub fn disabled(text: &str, peer: &PeerText) -> Zeroizing<String> {
    let lines: Vec<&str> = text[peer.range.clone()].split_inclusive('\n').collect();
    let is_header = |line: &&str| lexer::Line::new(0, line).header().is_some();
    let first = lines.iter().position(is_header).unwrap_or_default();
    let last = lines.iter().rposition(|line| !line.trim().is_empty()).unwrap_or_default();
    let marked = lines.iter().enumerate().map(|(place, line)| {
        if (first..=last).contains(&place) { format!("{DISABLED}{line}") } else { (*line).to_owned() }
    });
    // A line may be the preshared key.
    let marked = Zeroizing::new(marked.collect::<String>());
    concat(&[&text[..peer.range.start], &marked, &text[peer.range.end..]])
}

/// Returns the text with the peer in force again.
pub fn enabled(text: &str, peer: &PeerText) -> Zeroizing<String> {
    let lines = text[peer.range.clone()].split_inclusive('\n');
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix(DISABLED).unwrap_or(line)).collect();
    let section = Zeroizing::new(lines.concat());
    concat(&[&text[..peer.range.start], &section, &text[peer.range.end..]])
}

/// Returns the lines of the peer as they would be in force, without its preshared key.
pub fn shown(text: &str, peer: &PeerText) -> String {
    let lines = text[peer.range.clone()].lines().map(|line| line.strip_prefix(DISABLED).unwrap_or(line));
    let is_secret = |line: &str| {
        let key = lexer::Line::new(0, line).key_value().map(|(key, _)| lexer::compact(key).into_owned());
        key.is_some_and(|key| key.eq_ignore_ascii_case("PresharedKey"))
    };
    let lines = lines.map(|line| if is_secret(line) { "PresharedKey = (hidden)" } else { line });
    let lines: Vec<&str> = lines.collect();
    lines.join("\n").trim().to_owned()
}

/// Returns where the sections end: comments below them, behind an empty line, belong to none.
fn end_of_sections(text: &str) -> usize {
    let content = text.strip_prefix('\u{feff}').unwrap_or(text);
    let sections = edit::split(content);
    let Some(last) = sections.last().filter(|last| last.kind == Kind::Other) else { return text.len() };
    let is_loose = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let count = last.lines.len();
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    let loose = &lines[lines.len() - count..];
    let length = loose.iter().map(|line| line.len()).sum::<usize>();
    if loose.iter().all(|line| is_loose(line)) { text.len() - length } else { text.len() }
}

/// The capacity is reserved at once: a string that grows leaves copies of the keys in memory.
fn concat(parts: &[&str]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(parts.iter().map(|part| part.len()).sum()));
    for part in parts {
        text.push_str(part);
    }
    text
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
