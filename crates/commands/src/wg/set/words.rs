//! The words of `weft set`, which are those of wg(8): settings of the interface, then peers with their
//! settings.

use std::path::Path;

use weft_config::device::PeerChange;
use weft_config::exit::{Code, Error};
use weft_config::{Notice, Problem, values};

use crate::wg::draft::{Draft, PeerDraft, add_allowed_ips};
use crate::wg::key_file::{self, KeyFileError};

/// The parsed words, and warnings about them.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) draft: Draft,
    pub(super) warnings: Vec<String>,
}

/// Why the words are invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum WordsError {
    #[error(
        "`{0}` is no setting of an interface; they are listen-port, fwmark and private-key, and `peer KEY` begins a peer"
    )]
    Interface(String),
    #[error(
        "`{0}` is no setting of a peer; they are remove, preshared-key, endpoint, persistent-keepalive and allowed-ips"
    )]
    Peer(String),
    #[error("{0}: this setting belongs to the interface; write it before the first peer")]
    TooLate(&'static str),
    #[error("{0}: this setting belongs to a peer; write `peer KEY` before it")]
    NoPeer(&'static str),
    #[error("{0}: its value is missing")]
    NoValue(&'static str),
    #[error("{0}: {1}")]
    Value(&'static str, Problem),
    #[error("{0}: {1}")]
    Key(&'static str, KeyFileError),
}

impl From<WordsError> for Error {
    fn from(error: WordsError) -> Self {
        let code = match &error {
            WordsError::Key(_, KeyFileError::Read { error, .. })
                if error.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Code::Permission
            }
            WordsError::Key(..) => Code::Failure,
            _ => Code::Usage,
        };
        Self::new(code, error)
    }
}

const INTERFACE_WORDS: [&str; 3] = ["listen-port", "fwmark", "private-key"];
const PEER_WORDS: [&str; 5] = ["remove", "preshared-key", "endpoint", "persistent-keepalive", "allowed-ips"];

fn known(words: &[&'static str], word: &str) -> Option<&'static str> {
    words.iter().copied().find(|&known| known == word)
}

/// Parses the words, and reads the key files that they name.
pub(super) fn parse(given: &[String]) -> Result<Parsed, WordsError> {
    let mut draft = Draft::default();
    let mut warnings = Vec::new();
    let mut given = given.iter().map(String::as_str);
    while let Some(word) = given.next() {
        let mut value = |word| given.next().ok_or(WordsError::NoValue(word));
        if word == "peer" {
            let key =
                values::public_key(value("peer")?).map_err(|problem| WordsError::Value("peer", problem))?;
            draft.peers.push(PeerDraft { change: PeerChange::new(key), endpoint: None });
            continue;
        }
        match draft.peers.last_mut() {
            None => {
                let word = known(&INTERFACE_WORDS, word).ok_or_else(|| unknown(word, false))?;
                set_interface(&mut draft, word, value(word)?)?;
            }
            Some(peer) => {
                let word = known(&PEER_WORDS, word).ok_or_else(|| unknown(word, true))?;
                let value = if word == "remove" { "" } else { value(word)? };
                set_peer(peer, word, value, &mut warnings)?;
            }
        }
    }
    Ok(Parsed { draft, warnings })
}

fn unknown(word: &str, in_peer: bool) -> WordsError {
    match (in_peer, known(&INTERFACE_WORDS, word), known(&PEER_WORDS, word)) {
        (true, Some(word), _) => WordsError::TooLate(word),
        (false, _, Some(word)) => WordsError::NoPeer(word),
        // The word may be a key, if the user forgot the word before it.
        (true, ..) => WordsError::Peer(shown(word)),
        (false, ..) => WordsError::Interface(shown(word)),
    }
}

fn shown(word: &str) -> String {
    const LONGEST: usize = 24;
    let fine = word.len() <= LONGEST && word.bytes().all(|byte| byte.is_ascii_graphic());
    if fine { word.to_owned() } else { "…".to_owned() }
}

fn set_interface(draft: &mut Draft, word: &'static str, value: &str) -> Result<(), WordsError> {
    let wrong = |problem| WordsError::Value(word, problem);
    match word {
        "listen-port" => draft.listen_port = Some(values::listen_port(value).map_err(wrong)?),
        "fwmark" => draft.fw_mark = Some(values::fw_mark(value).map_err(wrong)?),
        _ => draft.private_key = Some(read_key(word, value)?),
    }
    Ok(())
}

fn set_peer(
    peer: &mut PeerDraft,
    word: &'static str,
    value: &str,
    warnings: &mut Vec<String>,
) -> Result<(), WordsError> {
    let wrong = |problem| WordsError::Value(word, problem);
    let change = &mut peer.change;
    match word {
        "remove" => change.remove = true,
        "preshared-key" => change.settings.preshared_key = Some(read_key(word, value)?),
        "endpoint" => {
            let endpoint = values::endpoint(value).map_err(wrong)?;
            let notice = values::unbracketed(value, &endpoint);
            warnings.extend(notice.map(|notice| format!("{word}: {notice}")));
            peer.endpoint = Some(endpoint);
        }
        "persistent-keepalive" => {
            change.settings.persistent_keepalive = Some(values::persistent_keepalive(value).map_err(wrong)?);
        }
        _ => {
            let warn = |given| warnings.push(format!("{word}: {}", Notice::HostBits { given }));
            add_allowed_ips(change, value, warn).map_err(wrong)?;
        }
    }
    Ok(())
}

fn read_key<K>(word: &'static str, file: &str) -> Result<Option<K>, WordsError>
where
    K: std::str::FromStr<Err = weft_tunnel::InvalidKey>,
{
    key_file::read(Path::new(file)).map_err(|error| WordsError::Key(word, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

    fn draft(words: &str) -> Result<Draft, WordsError> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        parse(&words).map(|parsed| parsed.draft)
    }

    #[test]
    fn settings_go_to_the_interface_and_then_to_the_peer_before_them() {
        let draft = draft(&format!(
            "listen-port 5 fwmark 0x10 private-key /dev/null peer {PEER} endpoint vpn.example:1 \
             persistent-keepalive off preshared-key /dev/null allowed-ips 10.0.0.0/8 peer {PEER} remove"
        ))
        .unwrap();
        assert_eq!((draft.listen_port, draft.fw_mark, draft.private_key), (Some(5), Some(16), Some(None)));
        let [first, second] = &draft.peers[..] else { panic!("{:?}", draft.peers) };
        assert_eq!(first.endpoint.as_ref().unwrap().to_string(), "vpn.example:1");
        assert_eq!(
            (first.change.settings.persistent_keepalive, &first.change.settings.preshared_key),
            (Some(None), &Some(None))
        );
        assert!(
            first.change.replace_allowed_ips && first.change.allowed_ips.len() == 1 && !first.change.remove
        );
        assert!(second.change.remove && !second.change.replace_allowed_ips);
    }

    #[test]
    fn the_last_value_counts_and_lists_add_up() {
        let draft = draft(&format!(
            "listen-port 5 listen-port 6 peer {PEER} allowed-ips 10.0.0.0/8 allowed-ips 11.0.0.0/8"
        ))
        .unwrap();
        assert_eq!(draft.listen_port, Some(6));
        assert_eq!(draft.peers[0].change.allowed_ips.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named) in [
            ("bogus 1".to_owned(), "`bogus` is no setting of an interface"),
            ("listen-port".to_owned(), "listen-port: its value is missing"),
            ("listen-port 65536".to_owned(), "listen-port: `65536`"),
            ("fwmark on".to_owned(), "fwmark: `on`"),
            ("private-key /nonexistent".to_owned(), "private-key: /nonexistent: cannot read"),
            ("endpoint 192.0.2.1:1".to_owned(), "endpoint: this setting belongs to a peer"),
            ("peer short".to_owned(), "peer: a key is 44 characters"),
            (format!("peer {PEER} fwmark 1"), "fwmark: this setting belongs to the interface"),
            (format!("peer {PEER} bogus"), "`bogus` is no setting of a peer"),
            (format!("peer {PEER} endpoint"), "endpoint: its value is missing"),
            (format!("peer {PEER} endpoint 192.0.2.1"), "endpoint: `192.0.2.1`"),
            (format!("peer {PEER} persistent-keepalive 70000"), "persistent-keepalive: `70000`"),
            (format!("peer {PEER} allowed-ips 10.0.0"), "allowed-ips: `10.0.0`"),
        ] {
            let error = draft(&words).unwrap_err().to_string();
            assert!(error.contains(named), "{words}: {error}");
        }
        for words in [PEER.to_owned(), format!("peer {PEER} {PEER}")] {
            assert!(!draft(&words).unwrap_err().to_string().contains(PEER));
        }
    }
}
