//! The interface that has the peers: its file, which is edited, and its daemon, if it runs.

use std::path::{Path, PathBuf};

use weft_config::exit::{Code, Error};
use weft_config::peers::{self, PeerText};
use weft_config::{self as config, Config, InterfaceName};
use weft_host::FileEdit;
use weft_report::control_socket::{self as socket, Client, ClientError};
use weft_tunnel::PublicKey;
use zeroize::Zeroizing;

use crate::args::GatewayArgs;
use crate::{output, own_file, reload};

/// An interface whose file no other command edits while this value lives.
pub(super) struct Gateway {
    name: InterfaceName,
    /// As messages name it, and the daemon.
    file: PathBuf,
    config: Config,
    edit: FileEdit,
    /// The daemon, if it runs this file.
    running: Option<Client>,
}

impl Gateway {
    /// Waits until no other command edits the file, and reads it.
    ///
    /// # Errors
    /// It is no configuration, or the daemon of the interface cannot be asked.
    pub(super) fn open(args: &GatewayArgs) -> Result<Self, Error> {
        let file = file(args)?;
        let name = config::name_of(&file)?;
        let edit = FileEdit::begin(&file)?;
        let config = config::parse_to_edit(edit.text(), &file, name.clone())?.config;
        let running = running(&name, &file)?;
        Ok(Self { name, file, config, edit, running })
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn text(&self) -> &str {
        self.edit.text()
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the public key of the interface.
    pub(super) fn public_key(&mut self) -> Result<PublicKey, Error> {
        if let Some(key) = &self.config.interface.settings.private_key {
            return Ok(key.public_key());
        }
        // A command of the file has set it, or it is a credential of the service.
        let status = self.running.as_mut().map(Client::status).transpose()?;
        let key = status.and_then(|status| status.public_key).and_then(|key| key.parse().ok());
        key.ok_or_else(|| {
            let file = self.file.display();
            Error::new(
                Code::Configuration,
                format!("{file}: its private key cannot be read here, and peers need the public key that belongs to it: start the interface first"),
            )
        })
    }

    /// Returns the peer that the user names.
    pub(super) fn find(&self, peer: &str) -> Result<PeerText, Error> {
        find(self.text(), &self.file, peer)
    }

    /// Refuses a name that another peer has, in capitals or not.
    pub(super) fn refuse_name(&self, name: &str, except: Option<&PeerText>) -> Result<(), Error> {
        let own = except.and_then(|peer| peer.public_key);
        let has_it = |peer: &PeerText| {
            let named = peer.name.as_deref().is_some_and(|other| other.to_lowercase() == name.to_lowercase());
            named && (own.is_none() || peer.public_key != own)
        };
        match peers::peers(self.text()).into_iter().find(has_it) {
            None => Ok(()),
            Some(other) => Err(self.failure(&format!(
                "a peer is named {} already; choose another name, or remove it first",
                other.name.unwrap_or_default()
            ))),
        }
    }

    /// Returns an error about the file.
    pub(super) fn failure(&self, reason: &str) -> Error {
        Error::new(Code::Failure, format!("{}: {reason}", self.file.display()))
    }

    /// Replaces the text of the file, and makes the running interface match it.
    ///
    /// # Errors
    /// Either is not possible. The file is as it was then.
    pub(super) fn apply(&mut self, text: Zeroizing<String>) -> Result<(), Error> {
        config::parse_to_edit(&text, &self.file, self.name.clone())?;
        let before = Zeroizing::new(self.text().to_owned());
        self.edit.replace(text)?;
        self.reload().map_err(|error| match self.edit.replace(before) {
            Ok(()) => {
                let reason = format!("{error}\n{}: the file is as it was", self.file.display());
                Error::new(error.code(), reason)
            }
            Err(kept) => Error::new(error.code(), format!("{error}\n{kept}: the file has the new text")),
        })
    }

    fn reload(&mut self) -> Result<(), Error> {
        let Some(client) = &mut self.running else { return Ok(()) };
        let report = reload::send(client, &self.file, self.edit.text(), false)?;
        for warning in report.warnings.iter().chain(&report.refused) {
            output::warning(warning);
        }
        for step in &report.steps {
            output::note(&format!("{}: {step}", self.name));
        }
        Ok(())
    }
}

/// Reads the file of the interface. Returns its path and text.
pub(super) fn read(args: &GatewayArgs) -> Result<(PathBuf, Zeroizing<String>), Error> {
    let file = file(args)?;
    let source = config::Source::read(&file.to_string_lossy())?;
    Ok((source.file, source.text))
}

/// Returns the peer that the user names.
pub(super) fn find(text: &str, file: &Path, peer: &str) -> Result<PeerText, Error> {
    let mut peers = peers::peers(text);
    let key = |peer: &PeerText| peer.public_key.map(|key| key.to_string()).unwrap_or_default();
    let names: Vec<_> = peers.iter().map(|peer| (key(peer), peer.name.as_deref())).collect();
    let found = weft_report::find_peer(&file.display().to_string(), peer, &names);
    Ok(peers.swap_remove(found.map_err(|error| Error::new(Code::Failure, error))?))
}

/// Connects to the daemon of the interface, if it runs and was brought up from this file.
fn running(name: &InterfaceName, file: &Path) -> Result<Option<Client>, Error> {
    let mut client = match Client::connect(name) {
        Ok(client) => client,
        Err(ClientError::NotRunning { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    reload::refuse_elsewhere(&client)?;
    let own = client.status()?.file;
    let resolved = |file: &Path| file.canonicalize().ok();
    if own.as_ref().is_some_and(|own| resolved(own.as_ref()) == resolved(file)) {
        return Ok(Some(client));
    }
    let from = own.map_or_else(|| "not from a file".to_owned(), |own| format!("from {own}"));
    output::warning(&format!(
        "{name} was brought up {from}: it does not take over what changes in {}",
        file.display()
    ));
    Ok(None)
}

/// Returns the file of the interface that is meant.
fn file(args: &GatewayArgs) -> Result<PathBuf, Error> {
    if let Some(target) = &args.target {
        return Ok(config::path_of(&own_file::file_of(target)?));
    }
    let mut files: Vec<PathBuf> = Vec::new();
    for name in socket::running().unwrap_or_default() {
        match Client::connect(&name).and_then(|mut client| client.own_file()) {
            Ok(file) => files.extend(file),
            Err(ClientError::NotRunning { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let usual = config::path_of("wg0");
    let directory = usual.parent().unwrap_or(Path::new("/"));
    if files.is_empty() {
        let entries = std::fs::read_dir(directory).map_err(|error| {
            let code = Error::from(std::io::Error::from(error.kind())).code();
            Error::new(code, format!("{}: cannot look for a file there: {error}", directory.display()))
        })?;
        files
            .extend(entries.flatten().map(|entry| entry.path()).filter(|path| config::name_of(path).is_ok()));
        files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        files.sort();
    }
    match files.as_slice() {
        [only] => Ok(only.clone()),
        [] => {
            let reason = format!("no interface runs, and {} has no file", directory.display());
            Err(Error::new(Code::Usage, format!("{reason}; say which one with --interface NAME|FILE")))
        }
        several => {
            let names: Vec<String> = several.iter().map(|file| file.display().to_string()).collect();
            let reason = format!("there are several files: {}", names.join(", "));
            Err(Error::new(Code::Usage, format!("{reason}; say which one with --interface NAME|FILE")))
        }
    }
}
