//! Implementations as named on the command line.

/// A command, and its name in tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) words: Vec<String>,
}

/// Placeholder for the name of the interface.
const INTERFACE: &str = "{interface}";

impl Named {
    fn new(name: &str, words: &str) -> Self {
        Self { name: name.to_owned(), words: words.split_whitespace().map(str::to_owned).collect() }
    }

    /// Returns the program and its arguments for this interface.
    pub(super) fn for_interface(&self, interface: &str) -> Vec<String> {
        self.words.iter().map(|word| word.replace(INTERFACE, interface)).collect()
    }
}

/// Parses a weft: a path, and more arguments of `weft up`; either may be left out.
pub(crate) fn weft(text: &str) -> Result<Named, &'static str> {
    // An argument may contain `=`; a name contains no space and no slash.
    let is_name = |name: &str| !name.is_empty() && !name.contains(['/', ' ']) && !name.starts_with('-');
    let (name, words) = text.split_once('=').filter(|(name, _)| is_name(name)).unwrap_or(("weft", text));
    let weft = Named::new(name, words);
    let wrong = "write PATH or NAME=PATH, or NAME=ARGUMENTS for another way to run the same weft";
    if weft.words.is_empty() { Err(wrong) } else { Ok(weft) }
}

/// Parses another implementation.
pub(crate) fn other(text: &str) -> Result<Named, &'static str> {
    let (name, words) = text.split_once('=').unwrap_or_default();
    let other = Named::new(name.trim(), words);
    let is_whole = !other.name.is_empty() && other.words.iter().skip(1).any(|word| word.contains(INTERFACE));
    let wrong = "write NAME=COMMAND, with {interface} where the command takes the name of its interface";
    if is_whole { Ok(other) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_implementation_has_a_name_a_program_and_a_place_for_the_interface() {
        let peer = other("other = env THREADS=2 other --foreground {interface}").unwrap();
        assert_eq!(peer.name, "other");
        assert_eq!(peer.for_interface("x"), ["env", "THREADS=2", "other", "--foreground", "x"]);
        for wrong in ["", "other", "=other {interface}", "other=other", "other={interface}", "other="] {
            assert!(other(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_weft_is_a_path_a_named_path_or_named_arguments() {
        for (text, name, words) in [
            ("/a/weft", "weft", "/a/weft"),
            ("/a=b/weft", "weft", "/a=b/weft"),
            ("two=/a/weft --tun-threads 2", "two", "/a/weft --tun-threads 2"),
            ("two=--tun-threads=2", "two", "--tun-threads=2"),
        ] {
            assert_eq!(weft(text), Ok(Named::new(name, words)));
        }
        assert!(weft("old=").is_err() && weft("").is_err());
    }
}
