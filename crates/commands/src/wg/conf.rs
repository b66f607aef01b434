//! `weft setconf`, `weft addconf`, `weft syncconf`: apply the configuration in a file to a running interface.

use std::path::Path;
use std::time::SystemTime;

use weft_config::device::DeviceChange;
use weft_config::exit::{Code, Error};
use weft_config::{self as config, Endpoint, InterfaceName, WgQuickKeys, peers};
use weft_uapi::client;

use crate::args::ConfArgs;
use crate::output;
use crate::wg::{endpoints, file};

mod sync;

/// Replaces the configuration of the interface: settings and peers that are not in the file are removed.
pub fn setconf(args: &ConfArgs) -> Result<(), Error> {
    let mut change = read(&args.file, WgQuickKeys::Refuse)?;
    // A setting that the file does not give is removed.
    change.settings = change.settings.applied().into();
    change.replace_peers = true;
    let change = resolved(change, &args.interface)?;
    Ok(client::set(&args.interface, &change)?)
}

/// Adds the configuration in the file to that of the interface.
pub fn addconf(args: &ConfArgs) -> Result<(), Error> {
    let change = resolved(read(&args.file, WgQuickKeys::Refuse)?, &args.interface)?;
    Ok(client::set(&args.interface, &change)?)
}

/// Changes what differs from the file. Peers that do not differ keep their sessions. Also accepts a file of
/// wg-quick.
pub fn syncconf(args: &ConfArgs) -> Result<(), Error> {
    // Names are resolved first, because the interface may change while that takes time.
    let wanted = resolved(read(&args.file, WgQuickKeys::PassOver)?, &args.interface)?;
    let current = client::get(&args.interface)?;
    match sync::difference(&current, wanted) {
        Some(change) => Ok(client::set(&args.interface, &change)?),
        None => Ok(()),
    }
}

/// Resolves the names of endpoints. That may take long, and is of no use where the interface cannot be asked.
fn resolved(change: DeviceChange<Endpoint>, interface: &InterfaceName) -> Result<DeviceChange, Error> {
    if change.peers.iter().any(|peer| matches!(peer.endpoint, Some(Endpoint::Name { .. }))) {
        client::get(interface)?;
    }
    Ok(endpoints::resolve(change, interface)?)
}

fn read(file: &Path, wg_quick_keys: WgQuickKeys) -> Result<DeviceChange<Endpoint>, Error> {
    let text = config::with_all_keys_in_place(&file::read(file)?, file)?;
    let parsed = config::parse_change(&text, file, wg_quick_keys);
    let (mut change, warnings) = parsed.map_err(|errors| Error::new(Code::Configuration, errors))?;
    for warning in &warnings {
        output::warning(warning);
    }
    for peer in peers::ended(&text, SystemTime::now()) {
        change.peers.retain(|change| Some(change.public_key) != peer.public_key);
        let label = peer.name.or(peer.public_key.map(|key| key.to_string())).unwrap_or_default();
        output::warning(&format_args!("{}: the peer {label} has ended and is left out", file.display()));
    }
    Ok(change)
}
