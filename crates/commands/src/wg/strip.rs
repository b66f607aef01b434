//! `weft strip`: a wg-quick file without what only wg-quick and `weft up` know.

use weft_config as config;
use weft_config::exit::Error;
use zeroize::Zeroizing;

use super::conf::text::{Section, is_wg_quick_key};
use super::file;
use crate::args::StripArgs;
use crate::output;

/// Prints what is left.
pub fn run(args: &StripArgs) -> Result<(), Error> {
    let file = config::path_of(&args.target);
    // wg(8) knows no files of keys.
    let text = config::with_all_keys_in_place(&file::read(&file)?, &file)?;
    output::print(strip(&text).as_bytes())
}

/// As `wg-quick strip` does: comments and what nobody knows stay, indentation and the keys of wg-quick go, and an empty
/// line ends it.
fn strip(text: &str) -> Zeroizing<String> {
    let mut stripped = Zeroizing::new(String::with_capacity(text.len() + 2));
    let mut section = Section::None;
    for line in text.strip_prefix('\u{feff}').unwrap_or(text).lines() {
        let line = line.trim();
        let meaning = line.split('#').next().unwrap_or_default().trim();
        if let Some(opened) = Section::opened_by(meaning) {
            section = opened;
        }
        let key = meaning.split('=').next().unwrap_or_default().trim();
        if section != Section::Interface || !is_wg_quick_key(key) {
            stripped.push_str(line);
            stripped.push('\n');
        }
    }
    stripped.push('\n');
    stripped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keys_of_wg_quick_go_and_only_from_the_interface() {
        let text = "# ours\n[INTERFACE] # c\n\tAddress = 10.0.0.1\nPrivateKey = x # mine\n#MTU = 1\nPostUp = echo # [Peer]\n\
                    mtu=5\n\nBogus = 1\n[peer]\r\nMTU = 5\nAllowedIPs =";
        let expected = "# ours\n[INTERFACE] # c\nPrivateKey = x # mine\n#MTU = 1\n\nBogus = 1\n[peer]\nMTU = 5\n\
                        AllowedIPs =\n\n";
        assert_eq!(*strip(text), expected);
        assert_eq!(*strip(""), "\n");
    }
}
