//! A change as the user wrote it, before the names of its endpoints are resolved.

use ipnet::IpNet;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::exit::{Code, Error};
use weft_config::{Endpoint, Problem, values};
use weft_host::resolve::{self, Cancel, ResolveError, Retries};
use weft_tunnel::PrivateKey;

/// Why an endpoint could not be resolved.
#[derive(Debug, thiserror::Error)]
pub(super) enum DraftError {
    #[error("the name of the endpoint {0} does not exist; check it, or write an address")]
    UnknownName(Endpoint),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

impl From<DraftError> for Error {
    fn from(error: DraftError) -> Self {
        Self::new(Code::Failure, error)
    }
}

/// A change with endpoints that may be names. `None` means that the setting was not given.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) private_key: Option<Option<PrivateKey>>,
    pub(super) listen_port: Option<u16>,
    pub(super) fw_mark: Option<u32>,
    pub(super) peers: Vec<PeerDraft>,
}

/// A change of a peer with an endpoint that may be a name.
#[derive(Debug)]
pub(super) struct PeerDraft {
    /// Everything but the endpoint.
    pub(super) change: PeerChange,
    pub(super) endpoint: Option<Endpoint>,
}

impl Draft {
    /// Resolves the names of endpoints. As wg(8) does, retries while name servers cannot be reached, but not
    /// if the name does not exist.
    pub(super) fn resolve(self) -> Result<DeviceChange, DraftError> {
        let (retries, cancel) = (Retries::from_environment(), Cancel::default());
        let address = |endpoint: Endpoint| match &endpoint {
            Endpoint::Name { host, .. } if super::names::is_unknown(host) => {
                Err(DraftError::UnknownName(endpoint))
            }
            _ => Ok(resolve::resolve(&endpoint, retries, &cancel)?),
        };
        let peers: Result<Vec<PeerChange>, DraftError> = self
            .peers
            .into_iter()
            .map(|PeerDraft { change, endpoint }| {
                Ok(PeerChange { endpoint: endpoint.map(address).transpose()?, ..change })
            })
            .collect();
        Ok(DeviceChange {
            private_key: self.private_key,
            listen_port: self.listen_port,
            fw_mark: self.fw_mark,
            replace_peers: false,
            peers: peers?,
        })
    }
}

/// Adds a list of allowed-ips to `change`. A list without signs replaces the allowed-ips of the peer; if at
/// least one item has a sign, all items are changes to them. Calls `host_bits` with each prefix that has host
/// bits.
pub(super) fn add_allowed_ips(
    change: &mut PeerChange,
    list: &str,
    mut host_bits: impl FnMut(IpNet),
) -> Result<(), Problem> {
    change.replace_allowed_ips = true;
    if list.trim().is_empty() {
        return Ok(());
    }
    let mut signs = false;
    for item in list.split(',').map(str::trim) {
        let (sign, text) = match item.as_bytes().first() {
            Some(b'+' | b'-') => (item.as_bytes().first(), item[1..].trim_start()),
            _ => (None, item),
        };
        signs |= sign.is_some();
        let given = values::allowed_ip(text)?;
        if given.addr() != given.network() {
            host_bits(given);
        }
        let add = sign != Some(&b'-');
        let prefix = given.trunc();
        change.allowed_ips.push(if add {
            AllowedIpChange::Add(prefix)
        } else {
            AllowedIpChange::Remove(prefix)
        });
    }
    change.replace_allowed_ips = !signs;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<(bool, Vec<String>), Problem> {
        let key = PrivateKey::generate().unwrap().public_key();
        let mut change = PeerChange::new(key);
        let mut odd = 0;
        add_allowed_ips(&mut change, text, |_| odd += 1)?;
        let shown = |change: &AllowedIpChange| match change {
            AllowedIpChange::Add(prefix) => prefix.to_string(),
            AllowedIpChange::Remove(prefix) => format!("-{prefix}"),
        };
        assert_eq!(odd > 0, text.contains("/8"), "{text}");
        Ok((change.replace_allowed_ips, change.allowed_ips.iter().map(shown).collect()))
    }

    #[test]
    fn a_list_replaces_unless_it_has_signs() {
        let of = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect::<Vec<_>>();
        assert_eq!(list(""), Ok((true, vec![])));
        assert_eq!(list("10.0.0.1/8, fd00::1"), Ok((true, of(&["10.0.0.0/8", "fd00::1/128"]))));
        assert_eq!(list("+10.0.0.1,-fd00::/64"), Ok((false, of(&["10.0.0.1/32", "-fd00::/64"]))));
        assert_eq!(list("10.0.0.1,- 10.0.0.2"), Ok((false, of(&["10.0.0.1/32", "-10.0.0.2/32"]))));
        for wrong in ["10.0.0", "10.0.0.1,", ",", "+", "--10.0.0.1", "10.0.0.1/33", "10.0.0.1 10.0.0.2"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }
}
