//! Finds the peer that a user names: by its public key, by the beginning of it that `weft status` shows, or
//! by what the configuration calls it. One rule for all commands.

use weft_config::near;

use crate::format::SHORT_KEY;

/// The length from which a word is taken for the beginning of a key, which is too short to be accepted.
const PART_OF_KEY: usize = 3;
/// The number of names that an error lists.
const LISTED: usize = 5;
/// The maximum length of what is repeated in an error: a private key that was pasted here is longer.
const LONGEST: usize = 40;

/// Why no peer was found. Prints as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerNameError {
    /// No peer has the name.
    #[error("{interface}: no peer has the key or the name {wanted}; {advice}")]
    Unknown {
        /// The interface that was looked at.
        interface: String,
        /// What the user wrote.
        wanted: String,
        /// The names that come near, or what there is else.
        advice: String,
    },
    /// The peer has ended.
    #[error("{interface}: {wanted} has ended; `weft peer extend {wanted} 30d` lets it in again")]
    Ended {
        /// The interface that was looked at.
        interface: String,
        /// What the user wrote.
        wanted: String,
    },
    /// Several peers have it.
    #[error("{interface}: several peers are called {wanted}; give the public key of one: {}", keys.join(", "))]
    Ambiguous {
        /// The interface that was looked at.
        interface: String,
        /// What the user wrote.
        wanted: String,
        /// The keys of these peers.
        keys: Vec<String>,
    },
}

/// Returns the position of the peer that `wanted` names among the peers of an interface, each with its public
/// key and its name. `lister` is the command that lists them.
///
/// # Errors
/// None has the key or the name, or several have it.
pub fn find_peer(
    interface: &str,
    wanted: &str,
    peers: &[(String, Option<&str>)],
    lister: &str,
) -> Result<usize, PeerNameError> {
    let beginning = wanted.trim_end_matches(['…', '.']);
    // A name comes before the beginning of another peer's key.
    let rank = |(key, name): &(String, Option<&str>)| match () {
        () if key == wanted => Some(0),
        () if *name == Some(wanted) => Some(1),
        () if beginning.len() >= SHORT_KEY && key.starts_with(beginning) => Some(2),
        () => None,
    };
    let ranks: Vec<Option<u8>> = peers.iter().map(rank).collect();
    let best = ranks.iter().flatten().min();
    let found: Vec<usize> =
        (0..peers.len()).filter(|peer| best.is_some() && ranks[*peer].as_ref() == best).collect();
    let (interface, shown) = (interface.to_owned(), shown(wanted));
    match found[..] {
        [peer] => Ok(peer),
        [] => {
            let names: Vec<&str> = peers.iter().filter_map(|(_, name)| *name).collect();
            let is_of_key =
                beginning.len() >= PART_OF_KEY && peers.iter().any(|(key, _)| key.starts_with(beginning));
            let advice = match is_of_key {
                true => format!("a key begins so, and needs its first {SHORT_KEY} characters"),
                false => advice(wanted, &names, lister),
            };
            Err(PeerNameError::Unknown { interface, wanted: shown, advice })
        }
        _ => {
            let keys = found.iter().map(|peer| peers[*peer].0.clone()).collect();
            Err(PeerNameError::Ambiguous { interface, wanted: shown, keys })
        }
    }
}

fn shown(wanted: &str) -> String {
    if wanted.len() <= LONGEST { wanted.to_owned() } else { "…".to_owned() }
}

/// Returns what to do about a name that no peer has.
fn advice(wanted: &str, names: &[&str], lister: &str) -> String {
    let near = near(wanted, names.iter().copied());
    let list = |names: &[&str]| names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    match (&near[..], names) {
        ([], []) => {
            "no peer has a name: a line `# friendly_name = NAME` in its [Peer] gives it one".to_owned()
        }
        ([], [_, ..]) if names.len() <= LISTED => format!("the names are {}", list(names)),
        ([], _) => format!("`{lister}` shows the {} names, such as {}", names.len(), list(names)),
        (near, _) => format!("similar names are {}", list(near)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_found_by_name_by_key_and_by_the_beginning_that_status_shows() {
        let peers = [
            ("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=".to_owned(), Some("laptop")),
            ("TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=".to_owned(), None),
            ("HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=".to_owned(), Some("twice")),
            ("yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=".to_owned(), Some("twice")),
        ];
        let find =
            |wanted: &str| find_peer("wg0", wanted, &peers, "weft status").map_err(|error| error.to_string());
        assert_eq!(find("laptop"), Ok(0));
        for wanted in [&peers[1].0, "TrMvSoP4jY…", "TrMvSoP4jY", &peers[1].0[..43]] {
            assert_eq!(find(wanted), Ok(1), "{wanted}");
        }
        for (wanted, told) in [
            ("laptpo", "wg0: no peer has the key or the name laptpo; similar names are laptop"),
            ("Laptop", "similar names are laptop"),
            ("lap", "similar names are laptop"),
            ("TrMvSoP4j", "a key begins so, and needs its first 10 characters"),
            ("TrM…", "a key begins so"),
            ("Tr", "the names are laptop, twice, twice"),
            ("", "the names are"),
            ("twice", "several peers are called twice; give the public key of one: HIgo9xNzJ"),
            ("aAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=", "the name …;"),
        ] {
            let error = find(wanted).unwrap_err();
            assert!(error.contains(told), "{wanted}: {error}");
        }
        // A name comes before the beginning of a key.
        let named = [peers[1].clone(), (peers[0].0.clone(), Some("TrMvSoP4jY"))];
        assert_eq!(find_peer("wg0", "TrMvSoP4jY", &named, "weft status"), Ok(1));
        let error =
            find_peer("wg0", "laptop", &[(peers[1].0.clone(), None)], "weft status").unwrap_err().to_string();
        assert!(error.contains("`# friendly_name = NAME`"), "{error}");
    }
}
