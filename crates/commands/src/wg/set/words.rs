//! The words of `weft set`, which are those of wg(8): settings of the interface, then peers with their
//! settings.

use std::path::Path;

use weft_config::device::{DeviceChange, PeerChange};
use weft_config::exit::{Code, Error};
use weft_config::settings::InterfaceSettingsChange;
use weft_config::{Endpoint, Problem, add_allowed_ips, is_of_amnezia_wg, values};
use weft_tunnel::PublicKey;

use crate::wg::key_file::{self, KeyFileError};

weft_config::keys! {
    /// A word that sets something of the interface.
    pub InterfaceWord {
        ListenPort = "listen-port",
        FwMark = "fwmark",
        PrivateKey = "private-key",
    }
}

weft_config::keys! {
    /// A word that sets something of a peer.
    pub PeerWord {
        Remove = "remove",
        PresharedKey = "preshared-key",
        Endpoint = "endpoint",
        PersistentKeepalive = "persistent-keepalive",
        AllowedIps = "allowed-ips",
    }
}

/// A change, and warnings about it.
type Parsed = (DeviceChange<Endpoint>, Vec<String>);

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
    #[error("{0}: this setting is AmneziaWG's, which weft does not speak")]
    Foreign(String),
    #[error("{0}: its value is missing")]
    NoValue(&'static str),
    #[error("{0}: {1}")]
    Value(&'static str, Problem),
    #[error("{0}: {1}")]
    Key(&'static str, KeyFileError),
    #[error("{0}")]
    Name(Error),
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
            WordsError::Name(error) => error.code(),
            _ => Code::Usage,
        };
        Self::new(code, error)
    }
}

/// Parses the words, and reads the key files that they name. `peer_named` returns the key of a peer with a
/// name, `None` if there are no names.
pub(super) fn parse(
    given: &[String],
    peer_named: impl Fn(&str) -> Result<Option<PublicKey>, Error>,
) -> Result<Parsed, WordsError> {
    let mut change = DeviceChange::default();
    let mut warnings = Vec::new();
    let mut given = given.iter().map(String::as_str);
    while let Some(word) = given.next() {
        let mut value = |word| given.next().ok_or(WordsError::NoValue(word));
        if word == "peer" {
            let value = value("peer")?;
            let key = values::public_key(value).or_else(|problem| {
                let named = peer_named(value).map_err(WordsError::Name)?;
                named.ok_or(WordsError::Value("peer", problem))
            })?;
            change.peers.push(PeerChange::new(key));
            continue;
        }
        match change.peers.last_mut() {
            None => {
                let word = InterfaceWord::find(word).ok_or_else(|| unknown(word, false))?;
                set_interface(&mut change.settings, word, value(word.text())?)?;
            }
            Some(peer) => {
                let word = PeerWord::find(word).ok_or_else(|| unknown(word, true))?;
                let value = if word == PeerWord::Remove { "" } else { value(word.text())? };
                set_peer(peer, word, value, &mut warnings)?;
            }
        }
    }
    Ok((change, warnings))
}

fn unknown(word: &str, in_peer: bool) -> WordsError {
    match (in_peer, InterfaceWord::find(word), PeerWord::find(word)) {
        (true, Some(word), _) => WordsError::TooLate(word.text()),
        (false, _, Some(word)) => WordsError::NoPeer(word.text()),
        _ if is_of_amnezia_wg(word) => WordsError::Foreign(word.to_owned()),
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

fn set_interface(
    settings: &mut InterfaceSettingsChange,
    word: InterfaceWord,
    value: &str,
) -> Result<(), WordsError> {
    let wrong = |problem| WordsError::Value(word.text(), problem);
    match word {
        InterfaceWord::ListenPort => settings.listen_port = Some(values::listen_port(value).map_err(wrong)?),
        InterfaceWord::FwMark => settings.fw_mark = Some(values::fw_mark(value).map_err(wrong)?),
        InterfaceWord::PrivateKey => settings.private_key = Some(read_key(word.text(), value)?),
    }
    Ok(())
}

fn set_peer(
    peer: &mut PeerChange<Endpoint>,
    word: PeerWord,
    value: &str,
    warnings: &mut Vec<String>,
) -> Result<(), WordsError> {
    let wrong = |problem| WordsError::Value(word.text(), problem);
    let mut warn = |notice| warnings.push(format!("{}: {notice}", word.text()));
    let settings = &mut peer.settings;
    match word {
        PeerWord::Remove => peer.remove = true,
        PeerWord::PresharedKey => settings.preshared_key = Some(read_key(word.text(), value)?),
        PeerWord::Endpoint => {
            let endpoint = values::endpoint(value).map_err(wrong)?;
            values::unbracketed(value, &endpoint).into_iter().for_each(&mut warn);
            peer.endpoint = Some(endpoint);
        }
        PeerWord::PersistentKeepalive => {
            settings.persistent_keepalive = Some(values::persistent_keepalive(value).map_err(wrong)?);
        }
        PeerWord::AllowedIps => add_allowed_ips(peer, value, warn).map_err(wrong)?,
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

    fn draft(words: &str) -> Result<DeviceChange<Endpoint>, WordsError> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let named = |name: &str| match name {
            "laptop" => Ok(PEER.parse().ok()),
            "gone" => Err(Error::new(Code::Failure, "no peer has the name")),
            _ => Ok(None),
        };
        parse(&words, named).map(|(change, _)| change)
    }

    #[test]
    fn settings_go_to_the_interface_and_then_to_the_peer_before_them() {
        let draft = draft(&format!(
            "listen-port 5 fwmark 0x10 private-key /dev/null peer {PEER} endpoint vpn.example:1 \
             persistent-keepalive off preshared-key /dev/null allowed-ips 10.0.0.0/8 peer {PEER} remove"
        ))
        .unwrap();
        let expected =
            InterfaceSettingsChange { listen_port: Some(5), fw_mark: Some(16), private_key: Some(None) };
        assert_eq!(draft.settings, expected);
        let [first, second] = &draft.peers[..] else { panic!("{:?}", draft.peers) };
        assert_eq!(first.endpoint.as_ref().unwrap().to_string(), "vpn.example:1");
        assert_eq!(
            (first.settings.persistent_keepalive, &first.settings.preshared_key),
            (Some(None), &Some(None))
        );
        assert!(first.replace_allowed_ips && first.allowed_ips.len() == 1 && !first.remove);
        assert!(second.remove && !second.replace_allowed_ips);
    }

    #[test]
    fn a_name_stands_for_the_key_of_its_peer() {
        let named = draft("peer laptop remove").unwrap();
        assert_eq!((named.peers[0].public_key.to_string().as_str(), named.peers[0].remove), (PEER, true));
    }

    #[test]
    fn the_last_value_counts_and_lists_add_up() {
        let draft = draft(&format!(
            "listen-port 5 listen-port 6 peer {PEER} allowed-ips 10.0.0.0/8 allowed-ips 11.0.0.0/8"
        ))
        .unwrap();
        assert_eq!(draft.settings.listen_port, Some(6));
        assert_eq!(draft.peers[0].allowed_ips.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named) in [
            ("bogus 1".to_owned(), "`bogus` is no setting of an interface"),
            ("jc 4".to_owned(), "jc: this setting is AmneziaWG's"),
            ("listen-port".to_owned(), "listen-port: its value is missing"),
            ("listen-port 65536".to_owned(), "listen-port: `65536`"),
            ("fwmark on".to_owned(), "fwmark: `on`"),
            ("private-key /nonexistent".to_owned(), "private-key: /nonexistent: cannot read"),
            ("endpoint 192.0.2.1:1".to_owned(), "endpoint: this setting belongs to a peer"),
            ("peer short".to_owned(), "peer: a key is 44 characters"),
            ("peer gone remove".to_owned(), "no peer has the name"),
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
