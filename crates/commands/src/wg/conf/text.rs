//! Reads the configuration format of wg(8): that of wg-quick without the keys of wg-quick. Nothing is required but the
//! public key of a peer.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use weft_config::device::{AllowedIpChange, PeerChange};
use weft_config::keys::{InterfaceKey, Origin, PeerKey};
use weft_config::lexer::{self, Header, Line, Section};
use weft_config::{Location, Notice, Problem, Warning, shown_key, values};
use weft_tunnel::PublicKey;

use crate::wg::draft::{Draft, PeerDraft, add_allowed_ips};

/// How keys that wg-quick defines and wg(8) rejects are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WgQuickKeys {
    Refuse,
    PassOver,
}

/// A parsed file with its warnings.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) draft: Draft,
    pub(super) warnings: Vec<Warning>,
}

/// All errors of a file, in the order of its lines.
#[derive(Debug, Default)]
pub(super) struct ConfErrors {
    errors: Vec<(Location, ConfProblem)>,
    more: usize,
}

/// An error of one line.
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

/// Where a line stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Above the first section.
    Above,
    In(Section),
    /// In an unknown section: its keys are skipped without further errors.
    Unknown,
}

/// Reads the text of a file that messages call `file`.
pub(super) fn parse(text: &str, file: &Path, wg_quick_keys: WgQuickKeys) -> Result<Parsed, ConfErrors> {
    let mut reader = Reader::new(file, wg_quick_keys);
    for line in lexer::lines(text).filter(|line| !line.text().is_empty()) {
        reader.line(line);
    }
    reader.finish()
}

struct Reader {
    file: Arc<Path>,
    wg_quick_keys: WgQuickKeys,
    place: Place,
    /// Line number of each single-valued key of the present section.
    seen: HashMap<&'static str, usize>,
    draft: Draft,
    /// The peer of the present section, with the line of its header.
    peer: Option<(usize, OpenPeer)>,
    /// Line number of each peer's public key.
    peers: HashMap<PublicKey, usize>,
    /// Peer and line number of each prefix.
    owners: HashMap<IpNet, (usize, usize)>,
    errors: ConfErrors,
    warnings: Vec<Warning>,
}

/// A peer whose section is being read. Its public key may follow other keys.
struct OpenPeer {
    has_key: bool,
    /// Whether the public key was rejected.
    wrong_key: bool,
    draft: PeerDraft,
}

impl Reader {
    /// Limits the errors that are kept: a file that is not a configuration must not fill the memory.
    const MAX_ERRORS: usize = 100;

    fn new(file: &Path, wg_quick_keys: WgQuickKeys) -> Self {
        Self {
            file: file.into(),
            wg_quick_keys,
            place: Place::Above,
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

    fn line(&mut self, line: Line<'_>) {
        let number = line.number;
        if let Some(header) = line.header() {
            return self.open(header, line);
        }
        let Some((written, value)) = line.key_value() else {
            return self.error(number, None, Problem::NotALine);
        };
        match self.place {
            Place::Unknown => {}
            Place::Above => self.error(number, shown_key(written), Problem::OutsideSection),
            Place::In(Section::Interface) => match InterfaceKey::find(written) {
                Some(key) if key.origin() == Origin::Wg => self.interface_key(number, key, value),
                key => self.unknown(number, Section::Interface, written, key),
            },
            Place::In(Section::Peer) => match PeerKey::find(written) {
                Some(key) if key.origin() == Origin::Wg => self.peer_key(number, key, value),
                _ => self.unknown(number, Section::Peer, written, InterfaceKey::find(written)),
            },
        }
    }

    fn open(&mut self, header: Header<'_>, line: Line<'_>) {
        let number = line.number;
        self.close_peer();
        self.seen.clear();
        self.place = match header {
            Header::Known(section) => Place::In(section),
            Header::Unknown(_) | Header::Unclosed => Place::Unknown,
        };
        match header {
            Header::Known(Section::Peer) => {
                // The public key is set when it is read.
                let no_key = PublicKey::from_bytes([0; 32]);
                let change = PeerChange { replace_allowed_ips: true, ..PeerChange::new(no_key) };
                let draft = PeerDraft { change, endpoint: None };
                self.peer = Some((number, OpenPeer { has_key: false, wrong_key: false, draft }));
            }
            Header::Known(Section::Interface) => {}
            Header::Unknown(name) => {
                self.error(number, shown_key(name).map(|_| line.text()), Problem::UnknownSection);
            }
            Header::Unclosed => self.error(number, None, Problem::NotALine),
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

    /// Warns if a single-valued key is repeated: the last value is in effect.
    fn note(&mut self, number: usize, key: &'static str) {
        if let Some(first) = self.seen.insert(key, number) {
            self.warning(number, key, Notice::Repeated { first });
        }
    }

    fn interface_key(&mut self, number: usize, key: InterfaceKey, value: &str) {
        self.note(number, key.text());
        let draft = &mut self.draft;
        let result = match key {
            InterfaceKey::PrivateKey => {
                values::private_key(value).map(|key| draft.private_key = Some(Some(key)))
            }
            InterfaceKey::ListenPort => values::listen_port(value).map(|port| draft.listen_port = Some(port)),
            InterfaceKey::FwMark => values::fw_mark(value).map(|mark| draft.fw_mark = Some(mark)),
            // wg(8) does not define these.
            InterfaceKey::PrivateKeyFile
            | InterfaceKey::Address
            | InterfaceKey::Mtu
            | InterfaceKey::Table
            | InterfaceKey::Dns
            | InterfaceKey::SaveConfig
            | InterfaceKey::PreUp
            | InterfaceKey::PostUp
            | InterfaceKey::PreDown
            | InterfaceKey::PostDown => Ok(()),
        };
        if let Err(problem) = result {
            self.error(number, Some(key.text()), problem);
        }
    }

    fn peer_key(&mut self, number: usize, key: PeerKey, value: &str) {
        if key != PeerKey::AllowedIps {
            self.note(number, key.text());
        }
        let Some((_, peer)) = &mut self.peer else { return };
        let PeerDraft { change, endpoint } = &mut peer.draft;
        let result = match key {
            PeerKey::PublicKey => return self.public_key(number, value),
            PeerKey::AllowedIps => return self.allowed_ips(number, value),
            PeerKey::PresharedKey => {
                values::preshared_key(value).map(|key| change.settings.preshared_key = Some(key))
            }
            PeerKey::Endpoint => values::endpoint(value).map(|written| *endpoint = Some(written)),
            PeerKey::PersistentKeepalive => values::persistent_keepalive(value)
                .map(|interval| change.settings.persistent_keepalive = Some(interval)),
            // wg(8) does not define this.
            PeerKey::PresharedKeyFile => Ok(()),
        };
        if let Err(problem) = result {
            return self.error(number, Some(key.text()), problem);
        }
        let notice = endpoint.as_ref().filter(|_| key == PeerKey::Endpoint);
        if let Some(notice) = notice.and_then(|endpoint| values::unbracketed(value, endpoint)) {
            self.warning(number, key.text(), notice);
        }
    }

    fn public_key(&mut self, number: usize, value: &str) {
        let Some((_, peer)) = &mut self.peer else { return };
        let problem = match values::public_key(value) {
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
        // A list of changes remains one, whatever lines follow.
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

    /// Reports a key that wg(8) does not define in this section. `interface_key` is the key of [Interface]
    /// with the same spelling.
    fn unknown(
        &mut self,
        number: usize,
        section: Section,
        written: &str,
        interface_key: Option<InterfaceKey>,
    ) {
        let wg_quick = interface_key.filter(|key| key.origin() == Origin::WgQuick).map(InterfaceKey::text);
        let wg = |key: InterfaceKey| Some(key.text()).filter(|_| key.origin() == Origin::Wg);
        let (elsewhere, names) = match section {
            Section::Interface => {
                match wg_quick {
                    Some(_) if self.wg_quick_keys == WgQuickKeys::PassOver => return,
                    Some(key) => return self.error(number, Some(key), ConfProblem::WgQuick),
                    None => {}
                }
                let peer_key = PeerKey::find(written).filter(|key| key.origin() == Origin::Wg);
                (peer_key.map(PeerKey::text), ("Interface", "Peer"))
            }
            Section::Peer => (interface_key.and_then(wg).or(wg_quick), ("Peer", "Interface")),
        };
        let (section, belongs) = names;
        match elsewhere {
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

#[cfg(test)]
mod tests;
