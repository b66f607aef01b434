//! `weft show`: prints running interfaces for people, for scripts, or as JSON.

use std::time::SystemTime;

use clap::ValueEnum as _;
use weft_config::exit::{Code, Error};
use weft_config::{InterfaceName, near};
use weft_report::{PeerNameError, find_peer};
use weft_uapi::client::{self, Reported, UapiError};
use zeroize::Zeroizing;

use crate::args::{Field, Part, ShowArgs, Subject};
use crate::output;

mod fields;
mod json;
mod pretty;
mod style;
mod units;

use style::Style;

/// An interface, as its daemon reports it.
struct Device {
    name: InterfaceName,
    reported: Reported,
}

/// Prints the interfaces or fields that the arguments select.
pub fn run(args: &ShowArgs) -> Result<(), Error> {
    if args.json && matches!(args.part, Some(Part::Field(_))) {
        return Err(Error::new(Code::Usage, "`weft show --json` has every field: leave out FIELD"));
    }
    match &args.what {
        Subject::Interfaces => {
            if args.part.is_some() {
                return Err(Error::new(Code::Usage, "`weft show interfaces` takes no FIELD or PEER"));
            }
            let names = client::interfaces()?;
            let text = if args.json { json::names(&names)? } else { fields::names(&names) };
            output::print(text.as_bytes())
        }
        Subject::One(name) => {
            let mut device = Device { name: name.clone(), reported: client::get(name)? };
            if let Some(Part::Peer(wanted)) = &args.part {
                keep_alone(&mut device, wanted)?;
            }
            print(args, &[device], false)
        }
        Subject::All => {
            if let Some(Part::Peer(word)) = &args.part {
                let reason = format!("`{word}` is no FIELD; for a peer write `weft show NAME {word}`");
                return Err(Error::new(Code::Usage, reason));
            }
            let (devices, failed) = ask_all()?;
            print(args, &devices, true)?;
            failed.map_or(Ok(()), |failed| Err(failed.into()))
        }
    }
}

/// Leaves one peer of a device.
fn keep_alone(device: &mut Device, wanted: &str) -> Result<(), Error> {
    let report = super::weft_status(&device.name)?;
    let ended = report.as_ref().and_then(|report| report.peer(wanted).err());
    if let Some(error @ PeerNameError::Ended { .. }) = ended {
        return Err(Error::new(Code::Failure, error));
    }
    let known = report.map(|report| report.peers).unwrap_or_default();
    let name_of =
        |key: &str| known.iter().find(|peer| peer.public_key == key)?.settings.friendly_name.as_deref();
    let peers = &mut device.reported.state.peers;
    let keys = peers.iter().map(|peer| peer.public_key.to_string());
    let named: Vec<_> = keys.map(|key| (key.clone(), name_of(&key))).collect();
    let place = find_peer(device.name.as_str(), wanted, &named, "weft show");
    let place = place.map_err(|error| {
        let fields = Field::value_variants().iter().filter_map(Field::to_possible_value);
        let fields: Vec<String> = fields.map(|field| field.get_name().to_owned()).collect();
        match near(wanted, fields.iter().map(String::as_str))[..] {
            [field, ..] => {
                Error::new(Code::Usage, format!("`{wanted}` is no FIELD; did you mean `{field}`? {error}"))
            }
            [] => Error::new(Code::Failure, error),
        }
    })?;
    let peer = peers.swap_remove(place);
    *peers = vec![peer];
    Ok(())
}

/// Returns all interfaces that answer, and the error of the last one that does not. Prints earlier errors.
fn ask_all() -> Result<(Vec<Device>, Option<UapiError>), UapiError> {
    let mut devices = Vec::new();
    let mut failed: Option<UapiError> = None;
    for name in client::interfaces()? {
        match client::get(&name) {
            Ok(reported) => devices.push(Device { name, reported }),
            // The daemon ended after it was listed.
            Err(UapiError::NotRunning { .. } | UapiError::NotOurs { .. }) => {}
            Err(error) => {
                if let Some(earlier) = failed.replace(error) {
                    output::error(&earlier);
                }
            }
        }
    }
    Ok((devices, failed))
}

fn print(args: &ShowArgs, devices: &[Device], with_names: bool) -> Result<(), Error> {
    let hide_keys = std::env::var_os("WG_HIDE_KEYS").is_none_or(|value| value != "never");
    if args.json {
        return output::print(json::devices(devices, hide_keys)?.as_bytes());
    }
    if let Some(Part::Field(field)) = args.part {
        return print_field(field, devices, with_names);
    }
    let style = Style::of_standard_output();
    let mut text = Zeroizing::new(String::with_capacity(room(devices)));
    let now = SystemTime::now();
    for (index, device) in devices.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        pretty::write(&mut text, device, &pretty::View { style, hide_keys, now });
    }
    if style == Style::Coloured {
        output::print_coloured(text.as_bytes())
    } else {
        output::print(text.as_bytes())
    }
}

fn print_field(field: Field, devices: &[Device], with_names: bool) -> Result<(), Error> {
    let mut text = Zeroizing::new(String::with_capacity(room(devices)));
    for device in devices {
        fields::write(&mut text, field, device, with_names);
    }
    output::print(text.as_bytes())
}

/// Estimates the size of the text of devices, so that the string seldom grows: a string that grows leaves
/// copies of keys behind.
fn room(devices: &[Device]) -> usize {
    let peers = devices.iter().flat_map(|device| &device.reported.state.peers);
    devices.len() * 1024 + peers.map(|peer| 1024 + 80 * peer.allowed_ips.len()).sum::<usize>()
}
