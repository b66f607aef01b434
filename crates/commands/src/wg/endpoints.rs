//! Resolves the names of endpoints in a change.

use weft_config::device::{DeviceChange, PeerChange};
use weft_config::exit::{Code, Error};
use weft_config::{Endpoint, InterfaceName};
use weft_host::resolve::{self, Cancel, LookUp, ResolveError, Retries, Tunnel};
use weft_ipc::runtime_dir::runtime_dir;

/// Why an endpoint could not be resolved.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndpointError {
    #[error("the name of the endpoint {0} does not exist; check it, or write an address")]
    UnknownName(Endpoint),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

impl From<EndpointError> for Error {
    fn from(error: EndpointError) -> Self {
        Self::new(Code::Failure, error)
    }
}

/// Resolves the names of endpoints, past the interface that they are for if it is weft's. As wg(8) does,
/// retries while name servers cannot be reached, but not if the name does not exist.
pub(super) fn resolve(
    change: DeviceChange<Endpoint>,
    interface: &InterfaceName,
) -> Result<DeviceChange, EndpointError> {
    let (retries, cancel) = (Retries::from_environment(), Cancel::default());
    let has_name = |peer: &PeerChange<Endpoint>| matches!(peer.endpoint, Some(Endpoint::Name { .. }));
    let tunnel = change.peers.iter().any(has_name).then(|| Tunnel::left_behind(&runtime_dir(), interface));
    let look_up = LookUp::past(tunnel.flatten());
    let address = |endpoint: Endpoint| match (&endpoint, look_up.endpoint(&endpoint)) {
        (_, Ok(address)) => Ok(address),
        (Endpoint::Name { host, .. }, Err(_)) if super::names::is_unknown(host) => {
            Err(EndpointError::UnknownName(endpoint))
        }
        _ => Ok(resolve::resolve(&endpoint, retries, &cancel, &look_up)?),
    };
    let resolved = |peer: PeerChange<Endpoint>| {
        let PeerChange { public_key, remove, update_only, endpoint, settings, .. } = peer;
        let PeerChange { replace_allowed_ips, allowed_ips, .. } = peer;
        let endpoint = endpoint.map(address).transpose()?;
        Ok(PeerChange {
            public_key,
            remove,
            update_only,
            endpoint,
            settings,
            replace_allowed_ips,
            allowed_ips,
        })
    };
    let peers = change.peers.into_iter().map(resolved).collect::<Result<_, EndpointError>>()?;
    Ok(DeviceChange { settings: change.settings, replace_peers: change.replace_peers, peers })
}
