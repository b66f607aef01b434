//! The file that a command reads when it is given the NAME of an interface.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use weft_config::exit::{Code, Error};
use weft_config::{self as config, Config, InterfaceName, LoadError, Source, path_of};
use weft_report::control_socket::{self as socket, Client, ClientError};
use weft_report::finding::{Finding, Level};

/// Returns the path of the file that `target` names: a path as it is, and for the name of a running interface
/// the file that it was brought up from. All other names stand for /etc/wireguard/NAME.conf, also those of
/// interfaces that do not tell this user.
///
/// # Errors
/// An interface of that name runs, and does not answer, or its file is another user's choice.
pub(crate) fn file_of(target: &str) -> Result<String, Error> {
    // A path is no valid name: it has a separator, or the end of a file's name.
    let name = target.parse::<InterfaceName>().ok().filter(|_| path_of(target) != Path::new(target));
    let Some(name) = name else { return Ok(target.to_owned()) };
    let own = Client::connect(&name).and_then(|mut client| client.own_file());
    match own {
        Ok(Some(file)) if config::is_descriptor(&file) => {
            let reason = format!(
                "{name} was brought up from a pipe ({}), which cannot be read again: write its configuration into a file \
                 {name}.conf, and name that",
                file.display()
            );
            Err(Error::new(Code::Failure, reason))
        }
        Ok(Some(file)) => Ok(file.to_string_lossy().into_owned()),
        Ok(None) | Err(ClientError::NotRunning { .. } | ClientError::Forbidden { .. }) => {
            Ok(target.to_owned())
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the interface that `target` names, which is its file or the interface itself: the one that was
/// brought up from this file, also under another name, else the one that a start would make of it.
///
/// # Errors
/// No interface can have the name.
pub fn interface_of(target: &str) -> Result<InterfaceName, LoadError> {
    let usual = config::interface_of(target);
    let file = Path::new(target).canonicalize().ok().filter(|_| path_of(target) == Path::new(target));
    let Some(file) = file else { return usual };
    let is_from_it = |name: &InterfaceName| {
        let own = Client::connect(name).and_then(|mut client| client.own_file());
        own.is_ok_and(|own| own.and_then(|own| own.canonicalize().ok()).is_some_and(|own| own == file))
    };
    if usual.as_ref().is_ok_and(is_from_it) {
        return usual;
    }
    socket::running().unwrap_or_default().into_iter().find(is_from_it).map_or(usual, Ok)
}

/// Reads the file that `target` names, as [`file_of`] does, for the interface that runs from it if one does.
///
/// # Errors
/// Those of [`Source::read`].
pub(crate) fn read(target: &str, file: &str) -> Result<Source, LoadError> {
    let mut source = Source::read(file)?;
    if let Ok(name) = interface_of(target)
        && Client::connect(&name).is_ok()
    {
        source.interface = name;
    }
    Ok(source)
}

/// How long the other interfaces may take to tell their keys.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns what is wrong if another interface runs with the key of this configuration: peers know one end by
/// it. One that does not answer is no reason to wait.
pub fn same_key(config: &Config) -> Option<Finding> {
    let key = config.interface.settings.private_key.as_ref()?.public_key().to_string();
    let own = config.interface.name.clone();
    let (told, found) = mpsc::channel();
    let ask = move || {
        let has_key = |name: &InterfaceName| {
            let report = Client::connect(name).and_then(|mut client| client.status());
            report.is_ok_and(|report| report.public_key.as_ref() == Some(&key))
        };
        let running = socket::running().unwrap_or_default();
        let other = running.into_iter().filter(|name| *name != own).find(has_key);
        // Fails if the time is over.
        drop(told.send(other));
    };
    std::thread::Builder::new().name("weft-keys".to_owned()).spawn(ask).ok()?;
    let other = found.recv_timeout(PATIENCE).ok()??;
    let says =
        format!("{other} runs with the same private key: a peer of both answers the one that it heard last");
    Some(
        Finding::new("same_key", Level::Warning, says)
            .advise("take one of the two down, or give each its own key (`weft genkey`)"),
    )
}

/// Returns a warning if an interface that was brought up from `own` shall take what is in `given`, another
/// file.
pub(crate) fn warning_of_another(name: &InterfaceName, own: &Path, given: &Path) -> Option<String> {
    let resolved = |file: &Path| file.canonicalize().or_else(|_| std::path::absolute(file)).ok();
    (resolved(own) != resolved(given)).then(|| {
        format!(
            "{name} was brought up from {}, and takes what is in {} until its next start: a restart, `weft reload {name}` \
             and a save of its state use its own file",
            own.display(),
            given.display()
        )
    })
}
