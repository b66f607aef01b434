//! The interface that has the peers: its file, which is edited, and its daemon, if it runs.

use std::path::{Path, PathBuf};
use std::sync::Once;

use weft_config::exit::{Code, Error};
use weft_config::peers::{self, PeerText};
use weft_config::{self as config, Config, InterfaceName};
use weft_host::FileEdit;
use weft_report::control_socket::{self as socket, Client, ClientError};
use weft_tunnel::PublicKey;
use zeroize::Zeroizing;

use crate::args::GatewayArgs;
use crate::{output, own_file, reload, signals};

/// An interface. No other command edits its file while this value lives.
pub(super) struct Gateway {
    name: InterfaceName,
    /// As messages name it, and the daemon.
    file: PathBuf,
    config: Config,
    edit: FileEdit,
    /// The daemons of the interfaces that run this file.
    running: Vec<Client>,
}

impl Gateway {
    /// Waits until no other command edits the file, and reads it.
    ///
    /// # Errors
    /// It is no configuration, or a daemon that runs it cannot be asked, or has changes that the file lacks:
    /// a reload would undo them.
    pub(super) fn open(args: &GatewayArgs) -> Result<Self, Error> {
        let file = file(args)?;
        let name = config::name_of(&file)?;
        let edit = FileEdit::begin(&file)?;
        let config = config::parse_to_edit(edit.text(), &file, name.clone())?.config;
        let mut running = running(&name, &file)?;
        for client in &mut running {
            refuse_unsaved(client, &file, edit.text())?;
        }
        Ok(Self { name, file, config, edit, running })
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
        let status = self.running.first_mut().map(Client::status).transpose()?;
        let key = status.and_then(|status| status.public_key).and_then(|key| key.parse().ok());
        key.ok_or_else(|| {
            self.wrong("its private key cannot be read here, and peers need the public key that belongs to it: start the interface first")
        })
    }

    /// Returns the peer that the user names.
    pub(super) fn find(&self, peer: &str) -> Result<PeerText, Error> {
        find(self.text(), &self.file, peer)
    }

    /// Returns the text with the peer in one section, and that section: `weft save` writes another one for a
    /// disabled peer that was let in at run time.
    pub(super) fn without_copies(&self, peer: PeerText) -> (Zeroizing<String>, PeerText) {
        let Some(key) = &peer.public_key else { return (Zeroizing::new(self.text().to_owned()), peer) };
        let text = peers::without_disabled_copies(self.text(), key);
        let only = peers::peers(&text).into_iter().find(|other| other.public_key.as_ref() == Some(key));
        (text, only.unwrap_or(peer))
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

    /// Returns an error about what the file has to say.
    pub(super) fn wrong(&self, reason: &str) -> Error {
        Error::new(Code::Configuration, format!("{}: {reason}", self.file.display()))
    }

    /// Asks the running interfaces whether they would take this text.
    pub(super) fn rehearse(&mut self, text: &str) -> Result<(), Error> {
        config::parse_to_edit(text, &self.file, self.name.clone())?;
        for client in &mut self.running {
            reload::send(client, &self.file, text, true)?;
        }
        Ok(())
    }

    /// Replaces the text of the file, and makes the running interfaces match it.
    ///
    /// # Errors
    /// Either is not possible. The file is as it was then, and so are the interfaces, unless the error says
    /// that this is not known.
    pub(super) fn apply(&mut self, text: Zeroizing<String>) -> Result<(), Error> {
        config::parse_to_edit(&text, &self.file, self.name.clone())?;
        let before = Zeroizing::new(self.text().to_owned());
        hold_signals();
        self.edit.replace(text)?;
        self.reload().map_err(|error| match self.edit.replace(before) {
            Ok(()) => {
                let unknown = give_back(&mut self.running, &self.file, self.edit.text());
                let reason = format!("{error}\n{}: the file is as it was{unknown}", self.file.display());
                Error::new(error.code(), reason)
            }
            Err(kept) => Error::new(error.code(), format!("{error}\n{kept}: the file has the new text")),
        })
    }

    fn reload(&mut self) -> Result<(), Error> {
        for client in &mut self.running {
            let report = reload::send(client, &self.file, self.edit.text(), false)?;
            for warning in report.warnings.iter().chain(&report.refused) {
                output::warning(warning);
            }
            for step in &report.steps {
                output::note(&format!("{}: {step}", client.name()));
            }
        }
        Ok(())
    }
}

/// Sends interfaces the earlier text again. One that has taken the change over gives it back; the others have
/// nothing to change. Returns what to say of those that do not answer.
fn give_back(running: &mut [Client], file: &Path, text: &str) -> String {
    let mut unknown = String::new();
    for client in running {
        let given = client.reconnect().and_then(|()| reload::send(client, file, text, false));
        if given.is_err_and(|error| !error.is_answer()) {
            unknown.push('\n');
            unknown.push_str(&reload::unknown(client.name(), file));
        }
    }
    unknown
}

/// From here on the command runs to its end: ended between the two, the file and the interface would differ.
pub(super) fn hold_signals() {
    static HELD: Once = Once::new();
    HELD.call_once(|| {
        let held = signals::watch(|signal| output::note(&format!("{signal}: the change is completed first")));
        if let Err(error) = held {
            tracing::debug!("signals are not held back: {error}");
        }
    });
}

/// Reads the file of the interface. Returns its path and text.
pub(super) fn read(args: &GatewayArgs) -> Result<(PathBuf, Zeroizing<String>), Error> {
    let file = file(args)?;
    let source = config::Source::read(&file.to_string_lossy())?;
    Ok((source.file, source.text))
}

/// Returns the peer that the user names.
pub(super) fn find(text: &str, file: &Path, peer: &str) -> Result<PeerText, Error> {
    let mut peers = in_force_once(peers::peers(text));
    let key = |peer: &PeerText| peer.public_key.map(|key| key.to_string()).unwrap_or_default();
    let names: Vec<_> = peers.iter().map(|peer| (key(peer), peer.name.as_deref())).collect();
    let found = weft_report::find_peer(&file.display().to_string(), peer, &names, "weft peer list");
    Ok(peers.swap_remove(found.map_err(|error| Error::new(Code::Failure, error))?))
}

/// Leaves out disabled sections of peers that are in force, which take their names if they have none.
fn in_force_once(peers: Vec<PeerText>) -> Vec<PeerText> {
    let (disabled, mut kept): (Vec<_>, Vec<_>) = peers.into_iter().partition(|peer| peer.is_disabled);
    for peer in disabled {
        match kept.iter_mut().find(|other| peer.public_key.is_some() && other.public_key == peer.public_key) {
            Some(other) if !other.is_disabled => other.name = other.name.take().or(peer.name),
            _ => kept.push(peer),
        }
    }
    kept
}

/// Refuses an interface that a reload of its file would change: what wg(8) has set, and an edit that was not
/// loaded yet, are for the user to keep or to drop.
fn refuse_unsaved(client: &mut Client, file: &Path, text: &str) -> Result<(), Error> {
    let mut report = reload::send(client, file, text, true)?;
    report.steps.truncate(report.tunnel_steps);
    if report.steps.is_empty() {
        return Ok(());
    }
    let (name, file) = (client.name(), file.display());
    let reason = format!(
        "{name} differs from {file}, and its next reload would {}; run `weft save {name}` to keep what runs, or `weft \
         reload {name}` to load the file, and try again: nothing was changed",
        shortened(&report.steps)
    );
    Err(Error::new(Code::Failure, reason))
}

/// Joins the first steps, and counts the others.
fn shortened(steps: &[String]) -> String {
    const SHOWN: usize = 3;
    let more = steps.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!("and {more} more"));
    let shown = steps.iter().take(SHOWN).cloned().chain(more);
    shown.collect::<Vec<_>>().join(", ")
}

/// Connects to the daemons of all interfaces that were brought up from this file. Warns if the interface of
/// that name does not take over what changes in it.
fn running(name: &InterfaceName, file: &Path) -> Result<Vec<Client>, Error> {
    let resolved = |file: &Path| file.canonicalize().ok();
    let mut names = socket::running().unwrap_or_default();
    if !names.contains(name) {
        names.push(name.clone());
    }
    let mut found = Vec::new();
    let mut from = None;
    for other in names {
        let status = Client::connect(&other).and_then(|mut client| Ok((client.status()?, client)));
        let (status, client) = match status {
            Ok(answer) => answer,
            Err(ClientError::NotRunning { .. }) => continue,
            Err(error) if other == *name => return Err(error.into()),
            Err(error) => {
                output::warning(&format!("whether {other} runs {} is not known: {error}", file.display()));
                continue;
            }
        };
        if status.file.as_ref().is_some_and(|own| resolved(own.as_ref()) == resolved(file)) {
            reload::refuse_elsewhere(&client)?;
            found.push(client);
        } else if other == *name {
            reload::refuse_elsewhere(&client)?;
            from =
                Some(status.file.map_or_else(|| "not from a file".to_owned(), |own| format!("from {own}")));
        }
    }
    let warn = |how: &str| {
        output::warning(&format!("{name} {how}: it does not take over what changes in {}", file.display()));
    };
    match from {
        Some(from) => warn(&format!("was brought up {from}")),
        None if cfg!(target_os = "linux") && found.is_empty() && weft_host::has_device(name.as_str()) => {
            warn("is up, and no daemon of weft runs it");
        }
        None => {}
    }
    Ok(found)
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
    if !files.iter().any(|file| is_gateway(file)) {
        match files_in(directory) {
            Ok(others) if files.is_empty() || others.iter().any(|file| is_gateway(file)) => files = others,
            Err(error) if files.is_empty() => return Err(error),
            _ => {}
        }
    }
    if files.iter().any(|file| is_gateway(file)) {
        files.retain(|file| is_gateway(file));
    }
    match files.as_slice() {
        [only] => Ok(only.clone()),
        [] => {
            let reason = format!("no interface runs, and {} has no file", directory.display());
            Err(Error::new(Code::Usage, format!("{reason}; say which one with --to NAME|FILE")))
        }
        several => {
            let names: Vec<String> = several.iter().map(|file| file.display().to_string()).collect();
            let reason = format!("there are several files: {}", names.join(", "));
            Err(Error::new(Code::Usage, format!("{reason}; say which one with --to NAME|FILE")))
        }
    }
}

/// Reports whether peers can find an interface: that of a client's file has another port after each start.
fn is_gateway(file: &Path) -> bool {
    let config = || {
        let text = config::read_regular_text(file).ok()?;
        Some(config::parse_to_edit(&text, file, config::name_of(file).ok()?).ok()?.config)
    };
    config().is_some_and(|config| config.interface.settings.listen_port != 0)
}

/// Returns the configuration files in a directory.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(directory).map_err(|error| {
        let code = Error::from(std::io::Error::from(error.kind())).code();
        let advice = if code == Code::Permission { "; run weft as root, or give --to FILE" } else { "" };
        Error::new(code, format!("{}: cannot look for a file there: {error}{advice}", directory.display()))
    })?;
    let is_file = |path: &PathBuf| {
        config::name_of(path).is_ok() && path.extension().is_some_and(|extension| extension == "conf")
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_file).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn of_many_differences_the_first_three_are_told() {
        let steps: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        assert_eq!(shortened(&steps[..3]), "a, b, c");
        assert_eq!(shortened(&steps), "a, b, c, and 1 more");
    }

    #[test]
    fn an_interface_whose_answer_is_lost_is_told_the_earlier_text_again_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let name: InterfaceName = "wg0".parse().unwrap();
        let path = weft_ipc::runtime_dir::control_socket(directory.path(), &name);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let mut clients = [Client::connect_to(&name, path).unwrap()];
        let daemon = std::thread::spawn(move || {
            // Each connection has one request, which is not answered on the first and on the last.
            let answer =
                "{\"version\":1,\"ok\":{\"steps\":[],\"refused\":[],\"warnings\":[],\"tunnel_steps\":0}}\n";
            [None, Some(answer), None].map(|answer| {
                let (stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                (&stream).write_all(answer.unwrap_or_default().as_bytes()).unwrap();
                line
            })
        });
        let file = Path::new("/etc/wireguard/wg0.conf");
        let lost = reload::send(&mut clients[0], file, "# new", false).unwrap_err();
        assert!(!lost.is_answer(), "{lost}");
        assert_eq!(give_back(&mut clients, file, "# old"), "");
        let unknown = give_back(&mut clients, file, "# old");
        assert!(unknown.contains("whether wg0 has applied the change is not known"), "{unknown}");
        let [new, old, again] = daemon.join().unwrap();
        assert!(new != old && old == again, "{new} {old} {again}");
        // One that has ended has nothing to give back.
        assert_eq!(give_back(&mut clients, file, "# old"), "");
    }
}
