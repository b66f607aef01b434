//! Writes the state of a running interface into its file (`weft save`, `SaveConfig`).

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use weft_config::device::DeviceState;
use weft_config::{self as config, ConfigErrors, InterfaceName, PeerComments, Saved, exit};
use zeroize::Zeroizing;

use super::{FileEdit, FileEditError, HostError, Record, file_edit, platform, record_path, unsaved};
use crate::routes::Netlink;

/// How long an end waits for another edit of its file, which the end fails or completes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the state could not be saved. The file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file cannot be read or replaced.
    #[error("{}: cannot {action} it to save the state of {interface}: {error}; {}", file.display(), outcome(interface, kept.as_deref()))]
    File {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The path of the file.
        file: PathBuf,
        /// The name of the interface.
        interface: InterfaceName,
        /// The error of the system.
        error: io::Error,
        /// Where the state is now, if it was kept.
        kept: Option<PathBuf>,
    },
    /// The file would not be a valid configuration with the state.
    #[error("the state was not saved, because the file would not be valid with it:\n{errors}\n{}", outcome(interface, kept.as_deref()))]
    Invalid {
        /// The name of the interface.
        interface: InterfaceName,
        /// What is wrong.
        errors: ConfigErrors,
        /// Where the state is now, if it was kept.
        kept: Option<PathBuf>,
    },
}

impl SaveError {
    /// Where the state is now, if it was kept.
    fn kept_mut(&mut self) -> &mut Option<PathBuf> {
        match self {
            Self::File { kept, .. } | Self::Invalid { kept, .. } => kept,
        }
    }
}

fn outcome(interface: &InterfaceName, kept: Option<&Path>) -> String {
    kept.map_or_else(
        || "the file is as it was".to_owned(),
        |kept| {
            format!(
                "the state is kept in {}: when the file can be written, `weft down {interface}` or the next start saves it",
                kept.display()
            )
        },
    )
}

impl From<SaveError> for exit::Error {
    fn from(error: SaveError) -> Self {
        let code = match &error {
            SaveError::File { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                exit::Code::Permission
            }
            _ => exit::Code::Failure,
        };
        Self::new(code, error)
    }
}

/// Updates the file to what `saved` says, whole or not at all: writes a new file beside it, which then
/// replaces it, with its owner, group and mode. If it no longer has the text with the hash `known`, what it
/// has is kept beside it. `held`: the file, if the caller keeps other edits from it already. Returns whether
/// the file was changed.
pub fn save(
    file: &Path,
    known: Option<u64>,
    held: Option<FileEdit>,
    interface: &InterfaceName,
    saved: &Saved<'_>,
) -> Result<bool, SaveError> {
    let refused = |action, error| SaveError::File {
        action,
        file: file.to_owned(),
        interface: interface.clone(),
        error,
        kept: None,
    };
    let failed = |error| match error {
        FileEditError::File { action, error, .. } => refused(action, error),
        other => refused("replace", io::Error::other(other)),
    };
    let mut current = match held {
        Some(held) => held,
        None => FileEdit::begin_within(file, PATIENCE).map_err(failed)?,
    };
    let text = current.text();
    let Some(edited) = edit(text, file, interface, saved)? else { return Ok(false) };
    // What was loaded may have had the keys in place of key files.
    let is_known = |known| {
        known == unsaved::text_hash(text)
            || known == unsaved::text_hash(&config::with_keys_in_place(text, file))
    };
    if !known.is_none_or(is_known) {
        let mut copy = current.path().as_os_str().to_owned();
        copy.push(".before-save");
        platform::put_private(Path::new(&copy), text.as_bytes())
            .map_err(|error| refused("keep a copy of", error))?;
        tracing::warn!(
            "{} is not as {interface} has loaded it, and gets its state now: {} has what it had before",
            file.display(),
            Path::new(&copy).display()
        );
    }
    current.save(edited).map_err(failed)?;
    Ok(true)
}

/// Returns the text with what `saved` says; `None` if nothing differs.
pub(super) fn edit(
    text: &str,
    file: &Path,
    interface: &InterfaceName,
    saved: &Saved<'_>,
) -> Result<Option<Zeroizing<String>>, SaveError> {
    let edited = config::edit(text, saved);
    if *edited == *text {
        return Ok(None);
    }
    check(&edited, file, interface)?;
    Ok(Some(edited))
}

/// Refuses a text that is no configuration.
fn check(text: &str, file: &Path, interface: &InterfaceName) -> Result<(), SaveError> {
    match config::parse(text, file, interface.clone()) {
        // The service may have the missing key as a credential.
        Err(errors) if errors.lacks_only_keys() => Ok(()),
        Err(errors) => Err(SaveError::Invalid { interface: interface.clone(), errors, kept: None }),
        Ok(_) => Ok(()),
    }
}

/// Writes the state of an interface that another process runs into its configuration file. `state` also
/// returns the hash of the text of the file as it was loaded last, if it is known.
///
/// # Errors
/// There is no record of the interface with a configuration file, its state is not known, or the file cannot
/// be replaced.
pub fn save_running(
    directory: &Path,
    interface: &InterfaceName,
    state: impl FnOnce() -> Result<(DeviceState, Vec<PeerComments>, Option<u64>), exit::Error>,
) -> Result<PathBuf, exit::Error> {
    let not_up =
        || HostError::NotUp { interface: interface.to_string(), file: record_path(directory, interface) };
    let record = Record::read(directory, interface)?;
    let mark = record.as_ref().map_or(0, |record| record.mark);
    let Some(file) = record.and_then(|record| record.file) else {
        // What answers in its place, or why nothing does, says more.
        state()?;
        return Err(not_up().into());
    };
    let netlink = Netlink::open().map_err(HostError::from)?;
    // SaveConfig stands in the file, and allows it; a command asks as every edit does.
    file_edit::refuse_read_only(&file)?;
    // A state from before another edit would take that back.
    let held = FileEdit::begin(&file)?;
    let (device, comments, known) = state()?;
    // If the file has a mark, it is this one, and it stays in the file.
    // What cannot be written is still in the daemon, and need not be kept.
    let superseded = unsaved::is_kept_for(directory, interface, &file);
    let before = Zeroizing::new(held.text().to_owned());
    let place = (&*file, None, Some(held));
    // The user believes that the next start has what was saved, also where nothing had to be written.
    if !save_device(&netlink, None, interface, place, known, (&device, &comments), mark)? {
        check(&before, &file, interface)?;
    }
    if superseded {
        unsaved::forget(directory, interface);
    }
    Ok(file)
}

/// Writes the state of an interface into its file, which had `text`, with the hash `known`, when it was last
/// read, and may be `held` by the caller. In `place`, the runtime directory, the state is kept if that fails.
pub(super) fn save_device(
    netlink: &Netlink,
    place: Option<&Path>,
    interface: &InterfaceName,
    (file, text, held): (&Path, Option<&str>, Option<FileEdit>),
    known: Option<u64>,
    (device, comments): (&DeviceState, &[PeerComments]),
    chosen_mark: u32,
) -> Result<bool, SaveError> {
    let link = netlink.link(interface).ok();
    let addresses = link.as_ref().and_then(|link| netlink.addresses(link).ok());
    // The kernel assigns an IPv6 link-local address by itself; it does not belong in the file.
    let is_own = |net: &IpNet| !matches!(net.addr(), IpAddr::V6(address) if address.is_unicast_link_local());
    let addresses: Option<Vec<IpNet>> = addresses.map(|nets| nets.into_iter().filter(is_own).collect());
    let saved = Saved {
        file,
        device,
        addresses: addresses.as_deref(),
        mtu: link.map(|link| link.mtu),
        chosen_mark,
        comments,
    };
    let superseded = place.is_some_and(|place| unsaved::is_kept_for(place, interface, file));
    // The interface began with what is kept, and the file is as it was before.
    let known = known.filter(|_| !superseded);
    let mut result = save(file, known, held, interface, &saved);
    if let Err(error) = &mut result
        && let Some(place) = place
    {
        // A file that is no configuration any more is of no use.
        let is_usable = matches!(error, SaveError::File { .. });
        let now = weft_config::read_regular_text(file).ok().filter(|_| is_usable);
        if let Some(before) = now.as_ref().map(|now| now.as_str()).or(text) {
            *error.kept_mut() = match edit(before, file, interface, &saved)? {
                Some(edited) => unsaved::keep(place, interface, file, before, &edited)
                    .inspect_err(|error| {
                        tracing::warn!("the state of {interface} cannot be kept either: {error}");
                    })
                    .ok(),
                None => match unsaved::kept_for(place, interface, file) {
                    // A file that cannot be read is fine if there is nothing to save.
                    None => return Ok(false),
                    kept => kept,
                },
            };
        }
    }
    if result.is_ok()
        && superseded
        && let Some(place) = place
    {
        unsaved::forget(place, interface);
    }
    result
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use weft_config::settings::InterfaceSettings;
    use weft_tunnel::PrivateKey;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_with_a_private_one_also_behind_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("real.conf"), directory.path().join("wg0.conf"));
        let text = "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n";
        crate::platform::put_private(&file, text.as_bytes()).unwrap();
        std::os::unix::fs::symlink("real.conf", &link).unwrap();
        let key: PrivateKey = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=".parse().unwrap();
        let settings = InterfaceSettings { private_key: Some(key), ..InterfaceSettings::default() };
        let mut device = DeviceState::from(settings);
        let wg0 = "wg0".parse().unwrap();
        fn saved(device: &DeviceState) -> Saved<'_> {
            Saved {
                file: Path::new("wg0.conf"),
                device,
                addresses: None,
                mtu: None,
                chosen_mark: 0,
                comments: &[],
            }
        }
        assert!(!save(&link, None, None, &wg0, &saved(&device)).unwrap(), "nothing is different");
        device.settings.listen_port = 51_820;
        assert!(save(&link, None, None, &wg0, &saved(&device)).unwrap());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{text}ListenPort = 51820\n"));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside it");

        // An edit by hand that was not loaded.
        let loaded = std::fs::read_to_string(&file).unwrap();
        let by_hand = format!("{text}ListenPort = 51820\nMTU = 1400\nFwMark = 7\n");
        std::fs::write(&file, &by_hand).unwrap();
        let copy = directory.path().join("real.conf.before-save");
        assert!(save(&link, Some(unsaved::text_hash(&by_hand)), None, &wg0, &saved(&device)).unwrap());
        assert!(!copy.exists(), "it was loaded");
        std::fs::write(&file, &by_hand).unwrap();
        assert!(save(&link, Some(unsaved::text_hash(&loaded)), None, &wg0, &saved(&device)).unwrap());
        assert_eq!(std::fs::read_to_string(&copy).unwrap(), by_hand);
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);

        std::fs::write(&file, "no configuration").unwrap();
        let error = save(&link, None, None, &wg0, &saved(&device)).unwrap_err().to_string();
        assert!(error.starts_with("the state was not saved"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "no configuration");
    }

    #[test]
    fn the_state_is_asked_for_while_no_other_edit_is_under_way() {
        let directory = tempfile::tempdir().unwrap();
        let wg0: InterfaceName = "wg0".parse().unwrap();
        let file = directory.path().join("wg0.conf");
        crate::platform::put_private(&file, b"[Interface]\n").unwrap();
        let record = Record { file: Some(file.clone()), ..Record::new(&wg0) };
        crate::Owner::claim(directory.path(), &wg0).unwrap().write(&record).unwrap();
        let asked = save_running(directory.path(), &wg0, || {
            let other = FileEdit::begin_within(&file, Duration::ZERO);
            assert!(matches!(other, Err(FileEditError::Busy(..))), "{other:?}");
            Err(exit::Error::new(exit::Code::Failure, "no daemon"))
        });
        assert_eq!(asked.unwrap_err().to_string(), "no daemon");
    }
}
