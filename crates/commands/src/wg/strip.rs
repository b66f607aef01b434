//! `weft strip`: prints a wg-quick file without the settings that only wg-quick and `weft up` support, and
//! without peers that have ended.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use weft_config as config;
use weft_config::exit::{Code, Error};
use weft_config::keys::{InterfaceKey, Origin};
use weft_config::lexer::{self, Header, Section};
use weft_config::peers;
use zeroize::Zeroizing;

use super::file;
use crate::args::StripArgs;
use crate::{output, own_file};

/// Prints the rest of the file.
pub fn run(args: &StripArgs) -> Result<(), Error> {
    // Standard input is no file of /etc/wireguard.
    let file = match args.target.as_str() {
        "-" => PathBuf::from("-"),
        target => config::path_of(&own_file::file_of(target)?),
    };
    // wg(8) does not support key files.
    let mut text = config::with_all_keys_in_place(&file::read(&file)?, &file)?;
    if let Some(error) = config::foreign(&text, &Arc::from(&*file)) {
        return Err(Error::new(Code::Configuration, error));
    }
    // Nothing but `weft up` would know the end of a peer. From the last one: the others stay where they are.
    for peer in peers::ended(&text, SystemTime::now()).iter().rev() {
        text = peers::without_peer(&text, peer);
    }
    output::print(strip(&text).as_bytes())
}

/// Strips a file as `wg-quick strip` does: keeps comments and unknown lines, removes indentation and the keys
/// of wg-quick, and appends an empty line.
fn strip(text: &str) -> Zeroizing<String> {
    let mut stripped = Zeroizing::new(String::with_capacity(text.len() + 2));
    let mut is_interface = false;
    for line in lexer::lines(text) {
        if let Some(header) = line.header() {
            is_interface = header == Header::Known(Section::Interface);
        }
        let key = line.text().split('=').next().unwrap_or_default().trim();
        let is_wg_quick = InterfaceKey::find(key).is_some_and(|key| key.origin() == Origin::WgQuick);
        if !(is_interface && is_wg_quick) {
            stripped.push_str(line.whole().trim());
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
