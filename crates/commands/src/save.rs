//! `weft save`: writes the state of a running interface into its file.

use std::path::Path;

use weft_config::PeerComments;
use weft_config::exit::{Code, Error};
use weft_host as host;
use weft_ipc::runtime_dir::runtime_dir;
use weft_report::control_socket::{Client, ClientError, Reload};
use weft_report::{LimitReport, PeerReport};
use weft_tunnel::{PeerLimits, Rate};
use weft_uapi::client::{self, UapiError};

use crate::args::SaveArgs;
use crate::own_file::{file_of, interface_of};
use crate::reload;

/// Reads the state from the daemon, and writes it into the file that the interface was brought up from.
///
/// # Errors
/// When no daemon of `weft up` answers, when it does not report the private key, or when the file cannot be
/// replaced.
pub fn run(args: &SaveArgs) -> Result<(), Error> {
    // What was brought up from a pipe has no file, and cannot be reloaded either.
    file_of(&args.target)?;
    let interface = interface_of(&args.target)?;
    let (mut client, unconnected) = match Client::connect(&interface) {
        Ok(client) => (Some(client), None),
        Err(error) => (None, Some(error)),
    };
    let state = || {
        let reported = client::get(&interface).map_err(|error| match (error, unconnected) {
            (UapiError::NotRunning { .. }, Some(error @ ClientError::NotRunning { .. })) => error.into(),
            (error, _) => Error::new(error.exit_code(), error),
        })?;
        if reported.state.settings.private_key.is_none() {
            let reason = match reported.public_key {
                Some(_) => {
                    format!("{interface}: its daemon does not reveal the private key, which the file needs")
                }
                None => format!(
                    "{interface} has no private key, which the file needs: `weft set {interface} private-key FILE` \
                     gives it one"
                ),
            };
            return Err(Error::new(Code::Failure, reason));
        }
        let status = client.as_mut().and_then(|client| client.status().ok());
        let status = status.unwrap_or_default();
        let known = status.file_hash.and_then(|hash| u64::from_str_radix(&hash, 16).ok());
        Ok((reported.state, status.peers.iter().filter_map(comments).collect(), known))
    };
    let file = host::save_running(&runtime_dir(), &interface, state)?;
    tracing::info!(%interface, file = %file.display(), "the state of the interface is saved");
    // A command of the interface itself may save it, and not load it again.
    if let Some(client) = &mut client
        && let Err(error) = settle(client, &file)
    {
        tracing::debug!("{interface} does not take over what was saved: {error}");
    }
    Ok(())
}

fn comments(peer: &PeerReport) -> Option<PeerComments> {
    let rate = |limit: &Option<LimitReport>| Rate::from_bits_per_second(limit.as_ref()?.bits_per_second);
    let limits = PeerLimits { to_peer: rate(&peer.limit_to_peer), from_peer: rate(&peer.limit_from_peer) };
    let public_key = peer.public_key.parse().ok()?;
    Some(PeerComments { public_key, report: peer.settings.clone(), limits })
}

/// Tells the daemon that its file has the endpoints from which peers were heard, so that a peer that moves
/// later is no difference. An edit of the file that was not loaded yet stays for `weft reload`.
fn settle(client: &mut Client, file: &Path) -> Result<(), Error> {
    let text = weft_config::read_regular_text(file)?;
    let saved = Reload { dry_run: true, is_saved: true, ..reload::request(client.name(), file, &text) };
    if client.reload(&saved)?.steps.is_empty() {
        client.reload(&Reload { dry_run: false, ..saved })?;
    }
    Ok(())
}
