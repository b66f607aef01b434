//! `weft setconf`, `weft addconf`, `weft syncconf`: give a running interface the configuration in a file.

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

/// The interface becomes what the file says: what is not in it goes.
pub fn setconf(args: &ConfArgs) -> Result<(), Error> {
    let mut draft = read(&args.file, WgQuickKeys::Refuse)?;
    draft.private_key.get_or_insert(None);
    draft.listen_port.get_or_insert(0);
    draft.fw_mark.get_or_insert(0);
    let mut change = draft.resolve()?;
    change.replace_peers = true;
    Ok(client::set(&args.interface, &change)?)
}

/// What the file says is added to what there is.
pub fn addconf(args: &ConfArgs) -> Result<(), Error> {
    let draft = read(&args.file, WgQuickKeys::Refuse)?;
    let change = draft.resolve()?;
    Ok(client::set(&args.interface, &change)?)
}

/// What differs from the file is changed; peers that do not are left alone, with their sessions. A file of wg-quick will
/// do as well.
pub fn syncconf(args: &ConfArgs) -> Result<(), Error> {
    let draft = read(&args.file, WgQuickKeys::PassOver)?;
    // Names are looked up first: it may take a while, in which the interface may change.
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
