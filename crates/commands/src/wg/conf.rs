//! `weft setconf`, `weft addconf`, `weft syncconf`: apply the configuration in a file to a running interface.

use std::path::Path;

use weft_config as config;
use weft_config::exit::{Code, Error};
use weft_uapi::client;

use crate::args::ConfArgs;
use crate::output;
use crate::wg::draft::Draft;
use crate::wg::file;

mod sync;
pub(super) mod text;

use text::WgQuickKeys;

/// Replaces the configuration of the interface: settings and peers that are not in the file are removed.
pub fn setconf(args: &ConfArgs) -> Result<(), Error> {
    let mut draft = read(&args.file, WgQuickKeys::Refuse)?;
    draft.private_key.get_or_insert(None);
    draft.listen_port.get_or_insert(0);
    draft.fw_mark.get_or_insert(0);
    let mut change = draft.resolve()?;
    change.replace_peers = true;
    Ok(client::set(&args.interface, &change)?)
}

/// Adds the configuration in the file to that of the interface.
pub fn addconf(args: &ConfArgs) -> Result<(), Error> {
    let draft = read(&args.file, WgQuickKeys::Refuse)?;
    let change = draft.resolve()?;
    Ok(client::set(&args.interface, &change)?)
}

/// Changes what differs from the file. Peers that do not differ keep their sessions. Also accepts a file of
/// wg-quick.
pub fn syncconf(args: &ConfArgs) -> Result<(), Error> {
    let draft = read(&args.file, WgQuickKeys::PassOver)?;
    // Names are resolved first, because the interface may change while that takes time.
    let wanted = draft.resolve()?;
    let current = client::get(&args.interface)?;
    match sync::difference(&current, wanted) {
        Some(change) => Ok(client::set(&args.interface, &change)?),
        None => Ok(()),
    }
}

fn read(file: &Path, wg_quick_keys: WgQuickKeys) -> Result<Draft, Error> {
    let text = config::with_all_keys_in_place(&file::read(file)?, file)?;
    let parsed = text::parse(&text, file, wg_quick_keys);
    let parsed = parsed.map_err(|errors| Error::new(Code::Configuration, errors))?;
    for warning in &parsed.warnings {
        output::warning(warning);
    }
    Ok(parsed.draft)
}
