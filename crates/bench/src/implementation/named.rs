//! Implementations as named on the command line.

use std::path::PathBuf;
use std::str::FromStr;

/// A weft to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WeftCommand {
    /// Name in tables.
    pub(crate) name: String,
    /// The program; `None` for the weft beside this program.
    pub(crate) path: Option<PathBuf>,
    /// More arguments for `weft up`.
    pub(crate) arguments: Vec<String>,
}

impl Default for WeftCommand {
    fn default() -> Self {
        Self { name: "weft".to_owned(), path: None, arguments: Vec::new() }
    }
}

impl FromStr for WeftCommand {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // An argument may contain `=`; a name contains no space and no slash.
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', ' ']) && !name.starts_with('-');
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) if is_name(name) => (name, rest),
            _ => ("weft", text),
        };
        let mut words = rest.split_whitespace().map(str::to_owned).peekable();
        let path = words.next_if(|word| !word.starts_with('-')).map(PathBuf::from);
        let arguments: Vec<String> = words.collect();
        if path.is_none() && arguments.is_empty() {
            return Err("write PATH or NAME=PATH, or NAME=ARGUMENTS for another way to run the same weft");
        }
        Ok(Self { name: name.to_owned(), path, arguments })
    }
}

/// Another implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCommand {
    /// Name in tables.
    pub(crate) name: String,
    /// The program and its arguments.
    words: Vec<String>,
}

const INTERFACE: &str = "{interface}";

impl PeerCommand {
    pub(crate) fn words(&self, interface: &str) -> Vec<String> {
        self.words.iter().map(|word| word.replace(INTERFACE, interface)).collect()
    }
}

impl FromStr for PeerCommand {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str =
            "write NAME=COMMAND, with {interface} where the command takes the name of its interface";
        let (name, command) = text.split_once('=').ok_or(WRONG)?;
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if name.trim().is_empty() || !words.iter().skip(1).any(|word| word.contains(INTERFACE)) {
            return Err(WRONG);
        }
        Ok(Self { name: name.trim().to_owned(), words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_name_a_program_and_a_place_for_the_interface() {
        let peer: PeerCommand = "other = env THREADS=2 other --foreground {interface}".parse().unwrap();
        assert_eq!(peer.name, "other");
        assert_eq!(peer.words("x"), ["env", "THREADS=2", "other", "--foreground", "x"]);
        for wrong in ["", "other", "=other {interface}", "other=other", "other={interface}", "other="] {
            assert!(wrong.parse::<PeerCommand>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_weft_is_a_path_a_named_path_or_named_arguments() {
        let weft = |text: &str| {
            let WeftCommand { name, path, arguments } = text.parse().unwrap();
            (name, path.map(|path| path.to_string_lossy().into_owned()), arguments.join(" "))
        };
        let of = |name: &str, path: Option<&str>, arguments: &str| {
            (name.to_owned(), path.map(str::to_owned), arguments.to_owned())
        };
        assert_eq!(weft("/a/weft"), of("weft", Some("/a/weft"), ""));
        assert_eq!(weft("/a=b/weft"), of("weft", Some("/a=b/weft"), ""));
        assert_eq!(weft("old=/a/weft"), of("old", Some("/a/weft"), ""));
        assert_eq!(weft("two=/a/weft --tun-threads 2"), of("two", Some("/a/weft"), "--tun-threads 2"));
        assert_eq!(weft("two=--tun-threads=2"), of("two", None, "--tun-threads=2"));
        assert!(["old=", ""].iter().all(|wrong| wrong.parse::<WeftCommand>().is_err()));
    }
}
