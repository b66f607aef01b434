//! `weft peer`: the peers in the file of an interface.

use std::path::Path;
use std::time::SystemTime;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use weft_config::Expiry;
use weft_config::exit::{Code, Error};
use weft_config::peers::{self, PeerText};

use crate::args::{
    GatewayArgs, PeerArgs, PeerCommand, PeerExtendArgs, PeerListArgs, PeerNameArgs, PeerRenameArgs,
};
use crate::output;
use crate::status::left;

mod add;
mod gateway;
mod qr;

use gateway::Gateway;

/// Carries the command out.
///
/// # Errors
/// The file cannot be read or replaced, is no configuration, or has no such peer; the daemon refuses the
/// change. Nothing has changed then.
pub fn run(args: &PeerArgs) -> Result<(), Error> {
    match &args.command {
        PeerCommand::Add(args) => add::run(args),
        PeerCommand::List(args) => list(args),
        PeerCommand::Show(args) => show(args),
        PeerCommand::Rename(args) => rename(args),
        PeerCommand::Extend(args) => extend(args),
        PeerCommand::Disable(args) => disable(args),
        PeerCommand::Enable(args) => enable(args),
        PeerCommand::Remove(args) => remove(args),
    }
}

/// A peer of `weft peer list --json`.
#[derive(Serialize)]
struct Row {
    name: Option<String>,
    public_key: Option<String>,
    allowed_ips: Vec<String>,
    disabled: bool,
    expires: Option<Expiry>,
    expired: bool,
}

impl From<PeerText> for Row {
    fn from(peer: PeerText) -> Self {
        Self {
            name: peer.name,
            public_key: peer.public_key.map(|key| key.to_string()),
            allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
            disabled: peer.is_disabled,
            expires: peer.expires,
            expired: peer.expires.is_some_and(|expiry| expiry.is_over(SystemTime::now())),
        }
    }
}

fn list(args: &PeerListArgs) -> Result<(), Error> {
    let (_, text) = gateway::read(&args.gateway)?;
    let rows: Vec<Row> = peers::peers(&text).into_iter().map(Row::from).collect();
    if args.json {
        return output::print_json(&rows);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["name", "allowed ips", "public key", ""]);
    for row in rows {
        let name = row.name.unwrap_or_else(|| "-".to_owned());
        let ends = if row.expired { "ended" } else { "ends" };
        let ends = row.expires.map(|expiry| format!("{ends} {expiry}"));
        let state: Vec<String> =
            row.disabled.then(|| "disabled".to_owned()).into_iter().chain(ends).collect();
        let state = state.join(", ");
        let ips = row.allowed_ips.join(", ");
        table.add_row([name.as_str(), &ips, row.public_key.as_deref().unwrap_or("-"), &state]);
    }
    let lines: Vec<String> = table.lines().map(|line| format!("{}\n", line.trim())).collect();
    output::print(lines.concat().as_bytes())
}

fn show(args: &PeerNameArgs) -> Result<(), Error> {
    let (file, text) = gateway::read(&args.gateway)?;
    let peer = gateway::find(&text, &file, &args.peer)?;
    let state = if peer.is_disabled { "# disabled\n" } else { "" };
    output::print(format!("{state}{}\n", peers::shown(&text, &peer)).as_bytes())
}

fn rename(args: &PeerRenameArgs) -> Result<(), Error> {
    check_name(&args.name, &args.gateway)?;
    let mut gateway = Gateway::open(&args.gateway)?;
    let peer = gateway.find(&args.peer)?;
    if peer.name.as_deref() == Some(&args.name) {
        return Ok(());
    }
    gateway.refuse_name(&args.name, Some(&peer))?;
    let text = peers::renamed(gateway.text(), &peer, &args.name);
    gateway.apply(text)?;
    output::note(&format!("{} is named {} now", args.peer, args.name));
    Ok(())
}

fn extend(args: &PeerExtendArgs) -> Result<(), Error> {
    let mut gateway = Gateway::open(&args.gateway)?;
    let (text, peer) = gateway.without_copies(gateway.find(&args.peer)?);
    let text = peers::ending(&text, &peer, args.expires.0);
    gateway.apply(text)?;
    let name = peer.name.as_deref().unwrap_or(&args.peer);
    output::note(&match args.expires.0 {
        Some(expiry) => format!("{name} ends {expiry} ({})", left(expiry)),
        None => format!("{name} never ends"),
    });
    Ok(())
}

fn disable(args: &PeerNameArgs) -> Result<(), Error> {
    let mut gateway = Gateway::open(&args.gateway)?;
    let peer = gateway.find(&args.peer)?;
    if peer.is_disabled {
        output::note(&format!("{} is disabled already", args.peer));
        return Ok(());
    }
    let (text, peer) = gateway.without_copies(peer);
    gateway.apply(peers::disabled(&text, &peer))
}

fn enable(args: &PeerNameArgs) -> Result<(), Error> {
    let mut gateway = Gateway::open(&args.gateway)?;
    let peer = gateway.find(&args.peer)?;
    if !peer.is_disabled {
        output::note(&format!("{} is not disabled", args.peer));
        return Ok(());
    }
    let text = peers::enabled(gateway.text(), &peer);
    gateway.apply(text)
}

fn remove(args: &PeerNameArgs) -> Result<(), Error> {
    let mut gateway = Gateway::open(&args.gateway)?;
    let (text, peer) = gateway.without_copies(gateway.find(&args.peer)?);
    gateway.apply(peers::without_peer(&text, &peer))?;
    output::note(&format!("{} is removed", args.peer));
    Ok(())
}

/// Refuses what cannot be a name, and a path or the name of an interface, which is meant as that.
fn check_name(name: &str, gateway: &GatewayArgs) -> Result<(), Error> {
    peers::check_name(name).map_err(|error| Error::new(Code::Usage, format!("{name:?}: {error}")))?;
    let path = weft_config::path_of(name);
    if path == Path::new(name) {
        let reason = format!(
            "{name} is the path of a file (`/`, or .conf at the end), and no name for a peer; `--to FILE` says which \
             interface has the peer"
        );
        return Err(Error::new(Code::Usage, reason));
    }
    let has_device = || cfg!(target_os = "linux") && weft_host::has_device(name);
    // One that is named apart is no mistake.
    if gateway.target.is_none() && (path.exists() || has_device()) {
        let reason = format!(
            "{name} is an interface, and no name for a peer; `weft peer add NAME --to {name}` adds a peer to it"
        );
        return Err(Error::new(Code::Usage, reason));
    }
    Ok(())
}
