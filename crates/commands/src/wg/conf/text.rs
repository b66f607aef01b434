//! Reads the configuration format of wg(8): that of wg-quick without the keys of wg-quick. Nothing is required but the
//! public key of a peer.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use weft_config::device::{AllowedIpChange, PeerChange};
use weft_config::{Location, Notice, Problem, Warning, words};
use weft_tunnel::PublicKey;

use crate::wg::draft::{Draft, PeerDraft, add_allowed_ips};

/// What is done with keys that wg-quick knows and wg(8) does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WgQuickKeys {
    Refuse,
    PassOver,
}

/// What the file means, and what is odd about it.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) draft: Draft,
    pub(super) warnings: Vec<Warning>,
}

/// All that is wrong with a file, in the order of its lines.
#[derive(Debug, Default)]
pub(super) struct ConfErrors {
    errors: Vec<(Location, ConfProblem)>,
    more: usize,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
enum ConfProblem {
    #[error(transparent)]
    Known(#[from] Problem),
    #[error(
        "this key is wg-quick's; take such lines away with `weft strip FILE | weft … -`, or use `weft syncconf` or \
         `weft up`, which know them"
    )]
    WgQuick,
}

impl fmt::Display for ConfErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (at, problem)) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_char('\n')?;
            }
            write!(f, "{at}: {problem}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfErrors {}

const WG_QUICK_KEYS: [&str; 9] =
    ["Address", "DNS", "MTU", "Table", "PreUp", "PostUp", "PreDown", "PostDown", "SaveConfig"];
const INTERFACE_KEYS: [&str; 3] = ["PrivateKey", "ListenPort", "FwMark"];
const PEER_KEYS: [&str; 5] = ["PublicKey", "PresharedKey", "AllowedIPs", "Endpoint", "PersistentKeepalive"];

/// Whether a key of [Interface] is wg-quick's and not wg's.
pub(in crate::wg) fn is_wg_quick_key(key: &str) -> bool {
    known(&WG_QUICK_KEYS, key).is_some()
}

fn known(keys: &[&'static str], written: &str) -> Option<&'static str> {
    keys.iter().copied().find(|key| key.eq_ignore_ascii_case(written))
}

/// Which section a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wg) enum Section {
    None,
    Interface,
    Peer,
    /// One that nobody knows: its keys are not worth more errors.
    Unknown,
}

impl Section {
    /// The section that a line without its comment begins, if it does.
    pub(in crate::wg) fn opened_by(line: &str) -> Option<Self> {
        let name = line.strip_prefix('[')?;
        Some(match name.strip_suffix(']').map(|name| name.trim().to_ascii_lowercase()).as_deref() {
            Some("interface") => Self::Interface,
            Some("peer") => Self::Peer,
            _ => Self::Unknown,
        })
    }
}

/// Reads the text of a file that messages call `file`.
pub(super) fn parse(text: &str, file: &Path, wg_quick_keys: WgQuickKeys) -> Result<Parsed, ConfErrors> {
    let mut reader = Reader::new(file, wg_quick_keys);
    for (index, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            reader.line(index + 1, line);
        }
    }
    reader.finish()
}

struct Reader {
    file: Arc<Path>,
    wg_quick_keys: WgQuickKeys,
    section: Section,
    /// In which line each single-valued key of the section stood.
    seen: HashMap<&'static str, usize>,
    draft: Draft,
    /// The peer whose section it is, with the line where that begins.
    peer: Option<(usize, OpenPeer)>,
    /// In which line each peer stood.
    peers: HashMap<PublicKey, usize>,
    /// Which peer each prefix belongs to, and in which line.
    owners: HashMap<IpNet, (usize, usize)>,
    errors: ConfErrors,
    warnings: Vec<Warning>,
}

/// A peer whose public key may come further down.
struct OpenPeer {
    has_key: bool,
    /// Whether the key was refused.
    wrong_key: bool,
    draft: PeerDraft,
}

impl Reader {
    /// Enough to work through; a file that is no configuration at all must not fill the memory.
    const MAX_ERRORS: usize = 100;

    fn new(file: &Path, wg_quick_keys: WgQuickKeys) -> Self {
        Self {
            file: file.into(),
            wg_quick_keys,
            section: Section::None,
            seen: HashMap::new(),
            draft: Draft::default(),
            peer: None,
            peers: HashMap::new(),
            owners: HashMap::new(),
            errors: ConfErrors::default(),
            warnings: Vec::new(),
        }
    }

    fn at(&self, line: usize, key: Option<&str>) -> Location {
        Location { file: self.file.clone(), line, key: key.map(str::to_owned) }
    }

    fn error(&mut self, line: usize, key: Option<&str>, problem: impl Into<ConfProblem>) {
        if self.errors.errors.len() < Self::MAX_ERRORS {
            let at = self.at(line, key);
            self.errors.errors.push((at, problem.into()));
        } else {
            self.errors.more += 1;
        }
    }

    fn warning(&mut self, line: usize, key: &'static str, notice: Notice) {
        let at = self.at(line, Some(key));
        self.warnings.push(Warning { at, notice });
    }

    fn line(&mut self, number: usize, text: &str) {
        if let Some(section) = Section::opened_by(text) {
            return self.open(section, number, text);
        }
        let Some((written, value)) = text.split_once('=') else {
            return self.error(number, None, Problem::NotALine);
        };
        let (written, value) = (written.trim(), value.trim());
        let key = match self.section {
            Section::Unknown => return,
            Section::None => return self.error(number, shown_key(written), Problem::OutsideSection),
            Section::Interface => known(&INTERFACE_KEYS, written),
            Section::Peer => known(&PEER_KEYS, written),
        };
        match key {
            Some("AllowedIPs") => self.allowed_ips(number, value),
            Some(key) => self.single(number, key, value),
            None => self.unknown(number, written),
        }
    }

    fn open(&mut self, section: Section, number: usize, text: &str) {
        self.close_peer();
        self.section = section;
        self.seen.clear();
        match section {
            Section::Peer => {
                // Filled in once the key was read.
                let nobody = PublicKey::from_bytes([0; 32]);
                let change = PeerChange { replace_allowed_ips: true, ..PeerChange::new(nobody) };
                let draft = PeerDraft { change, endpoint: None };
                self.peer = Some((number, OpenPeer { has_key: false, wrong_key: false, draft }));
            }
            Section::Unknown if text.ends_with(']') => {
                let name = text.trim_matches(['[', ']']).trim();
                self.error(number, shown_key(name).map(|_| text), Problem::UnknownSection);
            }
            Section::Unknown => self.error(number, None, Problem::NotALine),
            Section::Interface | Section::None => {}
        }
    }

    fn close_peer(&mut self) {
        let Some((line, peer)) = self.peer.take() else { return };
        if peer.has_key {
            self.draft.peers.push(peer.draft);
        } else if !peer.wrong_key {
            self.error(line, Some("PublicKey"), Problem::MissingPublicKey);
        }
    }

    /// A key of which one value counts, the last.
    fn single(&mut self, number: usize, key: &'static str, value: &str) {
        if let Some(first) = self.seen.insert(key, number) {
            self.warning(number, key, Notice::Repeated { first });
        }
        let result = match (&mut self.peer, key) {
            (None, "PrivateKey") => {
                words::private_key(value).map(|key| self.draft.private_key = Some(Some(key)))
            }
            (None, "ListenPort") => words::listen_port(value).map(|port| self.draft.listen_port = Some(port)),
            (None, _) => words::fw_mark(value).map(|mark| self.draft.fw_mark = Some(mark)),
            (Some(_), "PublicKey") => return self.public_key(number, value),
            (Some((_, peer)), _) => peer.set(key, value),
        };
        if key == "Endpoint"
            && let Some(endpoint) = self.peer.as_ref().and_then(|(_, peer)| peer.draft.endpoint.as_ref())
            && let Some(notice) = words::unbracketed(value, endpoint)
            && result.is_ok()
        {
            self.warning(number, key, notice);
        }
        if let Err(problem) = result {
            self.error(number, Some(key), problem);
        }
    }

    fn public_key(&mut self, number: usize, value: &str) {
        let Some((_, peer)) = &mut self.peer else { return };
        let problem = match words::public_key(value) {
            Err(problem) => problem,
            Ok(key) => {
                (peer.has_key, peer.draft.change.public_key) = (true, key);
                match self.peers.insert(key, number) {
                    Some(first) => Problem::PeerTwice { key, first },
                    None => return,
                }
            }
        };
        peer.wrong_key = true;
        self.error(number, Some("PublicKey"), problem);
    }

    fn allowed_ips(&mut self, number: usize, value: &str) {
        const KEY: &str = "AllowedIPs";
        let Some((_, peer)) = &mut self.peer else { return };
        let change = &mut peer.draft.change;
        // A list of changes stays one, whatever lines follow.
        let replaces = change.replace_allowed_ips;
        let known = change.allowed_ips.len();
        let mut odd = Vec::new();
        let result = add_allowed_ips(change, value, |given| odd.push(given));
        change.replace_allowed_ips &= replaces;
        let mut notices: Vec<Notice> = odd.into_iter().map(|given| Notice::HostBits { given }).collect();
        for added in change.allowed_ips.get(known..).unwrap_or_default() {
            let AllowedIpChange::Add(prefix) = *added else { continue };
            match self.owners.insert(prefix, (self.draft.peers.len(), number)) {
                Some((owner, first)) if owner == self.draft.peers.len() => {
                    notices.push(Notice::Duplicate { prefix, first });
                }
                Some((_, first)) => notices.push(Notice::TakenOver { prefix, first }),
                None => {}
            }
        }
        for notice in notices {
            self.warning(number, KEY, notice);
        }
        if let Err(problem) = result {
            self.error(number, Some(KEY), problem);
        }
    }

    fn unknown(&mut self, number: usize, written: &str) {
        let in_peer = self.section == Section::Peer;
        let wg_quick = known(&WG_QUICK_KEYS, written);
        match (in_peer, wg_quick) {
            (false, Some(_)) if self.wg_quick_keys == WgQuickKeys::PassOver => return,
            (false, Some(key)) => return self.error(number, Some(key), ConfProblem::WgQuick),
            _ => {}
        }
        let (others, section, belongs) = if in_peer {
            (&INTERFACE_KEYS[..], "Peer", "Interface")
        } else {
            (&PEER_KEYS[..], "Interface", "Peer")
        };
        match known(others, written).or(wg_quick) {
            Some(key) => self.error(number, Some(key), Problem::WrongSection { section, belongs }),
            None => {
                self.error(number, shown_key(written), Problem::UnknownKey { section, suggestion: None });
            }
        }
    }

    fn finish(mut self) -> Result<Parsed, ConfErrors> {
        self.close_peer();
        if self.errors.errors.is_empty() {
            return Ok(Parsed { draft: self.draft, warnings: self.warnings });
        }
        self.errors.errors.sort_by_key(|(at, _)| at.line);
        Err(self.errors)
    }
}

impl OpenPeer {
    fn set(&mut self, key: &str, value: &str) -> Result<(), Problem> {
        let PeerDraft { change, endpoint } = &mut self.draft;
        match key {
            "PresharedKey" => change.preshared_key = Some(words::preshared_key(value)?),
            "Endpoint" => *endpoint = Some(words::endpoint(value)?),
            _ => change.persistent_keepalive = Some(words::persistent_keepalive(value)?),
        }
        Ok(())
    }
}

/// The name of a key if it may be repeated: shorter than a WireGuard key that was pasted in its place.
fn shown_key(written: &str) -> Option<&str> {
    let valid = (1..=32).contains(&written.len()) && written.bytes().all(|byte| byte.is_ascii_alphanumeric());
    valid.then_some(written)
}

#[cfg(test)]
mod tests;
