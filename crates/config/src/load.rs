//! Finds and reads the file that `weft up FILE|NAME` names.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::Zeroizing;

use super::problem::{ConfigError, ConfigErrors, Location, Notice, Problem, Warning};
use super::regular_file::{MAX_BYTES, read_named};
use super::{InterfaceName, InvalidInterfaceName, Parsed, key_file, parse, parse_to_start, permissions};

/// What a bare name stands for.
const MEANING: &str =
    if cfg!(windows) { r"%ProgramData%\weft\NAME.conf" } else { "/etc/wireguard/NAME.conf" };
/// Why a configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file's name is not a valid interface name.
    #[error("{}: {reason}; rename the file to INTERFACE.conf", file.display())]
    Name {
        /// The path of the file.
        file: PathBuf,
        /// The rule that the name violates.
        reason: InvalidInterfaceName,
    },
    /// A name, and not the path of a file, is not a valid interface name.
    #[error(transparent)]
    Interface(#[from] InvalidInterfaceName),
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {error}; {}", file.display(), advice(file, error))]
    Read {
        /// The path of the file.
        file: PathBuf,
        /// The error that the system returned.
        error: io::Error,
    },
    /// The file contains errors.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
}

impl LoadError {
    /// Reports whether missing permissions are the only errors.
    pub fn is_permission_denied(&self) -> bool {
        match self {
            Self::Read { error, .. } => error.kind() == io::ErrorKind::PermissionDenied,
            Self::Config(errors) => errors.is_permission_denied(),
            Self::Name { .. } | Self::Interface(_) => false,
        }
    }
}

fn advice(file: &Path, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::NotFound if file.is_relative() && std::env::current_dir().is_err() => {
            "the working directory was deleted: change to another one, or give a path from the root"
        }
        io::ErrorKind::PermissionDenied if cfg!(windows) => "run weft as an administrator",
        io::ErrorKind::PermissionDenied => "run weft as root, or as a user who may read it",
        io::ErrorKind::NotFound => return format!("give the path of a file, or a NAME for {MEANING}"),
        io::ErrorKind::IsADirectory => "give the path of a file in it",
        io::ErrorKind::FileTooLarge => "a configuration has at most 16 MiB: is this the right file?",
        _ => "check the path",
    };
    advice.to_owned()
}

/// Returns the directory in which a bare name is looked up.
fn directory() -> PathBuf {
    if !cfg!(windows) {
        return PathBuf::from("/etc/wireguard");
    }
    let data = std::env::var_os("ProgramData").unwrap_or_else(|| r"C:\ProgramData".into());
    Path::new(&data).join("weft")
}

/// Returns the file that `target` names: `target` is a path, or a bare name for `/etc/wireguard/NAME.conf`,
/// on Windows `%ProgramData%\weft\NAME.conf`.
pub fn path_of(target: &str) -> PathBuf {
    if is_path(target) { PathBuf::from(target) } else { directory().join(format!("{target}.conf")) }
}

fn is_path(target: &str) -> bool {
    target.contains(std::path::is_separator) || target.ends_with(".conf")
}

/// Returns the interface that a file configures: the file's name without its extension.
pub fn name_of(path: &Path) -> Result<InterfaceName, LoadError> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name = if stem == "lo" { Err(InvalidInterfaceName::Loopback) } else { stem.parse() };
    name.map_err(|reason| LoadError::Name { file: path.to_owned(), reason })
}

/// Returns the interface that `target` names, which is its file or the interface itself.
pub fn interface_of(target: &str) -> Result<InterfaceName, LoadError> {
    match is_path(target) {
        true => name_of(Path::new(target)),
        false => Ok(target.parse()?),
    }
}

/// Reads and parses the file that `target` names (see [`path_of`]). The file's stem is the interface's name.
pub fn load(target: &str) -> Result<Parsed, LoadError> {
    Ok(load_from(target, None, parse)?.0)
}

/// Reads and parses the same as a start does, see [`parse_to_start`].
pub fn load_to_start(target: &str) -> Result<Parsed, LoadError> {
    Ok(load_from(target, None, parse_to_start)?.0)
}

/// Reads and parses the file that `target` names, for a daemon that starts. If `target` is a bare name and
/// the service manager passed the file as the credential `NAME.conf`, reads the credential, since the daemon
/// itself may not be allowed to read the file. Errors and warnings about its content name the file, not the
/// credential. Also returns the text.
pub fn load_as_service(target: &str) -> Result<(Parsed, Zeroizing<String>), LoadError> {
    load_from(target, credential_of(target), parse_to_start)
}

/// Returns the credential that takes the place of the file that `target` names.
fn credential_of(target: &str) -> Option<PathBuf> {
    let path = path_of(target);
    let is_name = path.starts_with(directory()) && !target.contains(std::path::is_separator);
    let credential = key_file::credentials().zip(path.file_name().filter(|_| is_name));
    credential.map(|(directory, name)| directory.join(name)).filter(|file| file.exists())
}

fn load_from(
    target: &str,
    credential: Option<PathBuf>,
    parse: impl Fn(&str, &Path, InterfaceName) -> Result<Parsed, ConfigErrors>,
) -> Result<(Parsed, Zeroizing<String>), LoadError> {
    // Read access to a credential comes from an access control list; its permission bits say nothing about
    // other users.
    let is_credential = credential.is_some();
    let (path, text, mode) = read_text_from(target, credential)?;
    let mut parsed = parse(&text, &path, name_of(&path)?)?;
    if let Some(mode) = mode.filter(|_| !is_credential) {
        let at = Location { file: path.into(), line: 1, key: None };
        parsed.warnings.insert(0, Warning { at, notice: Notice::Readable { mode } });
    }
    Ok((parsed, text))
}

/// Returns the path of the file that `target` names, and its text, unparsed.
pub fn read_text(target: &str) -> Result<(PathBuf, Zeroizing<String>), LoadError> {
    let (path, text, _) = read_text_from(target, None)?;
    Ok((path, text))
}

/// Returns the same, of the credential if there is one, see [`load_as_service`].
pub fn read_text_as_service(target: &str) -> Result<(PathBuf, Zeroizing<String>), LoadError> {
    let (path, text, _) = read_text_from(target, credential_of(target))?;
    Ok((path, text))
}

/// Returns the path, the text, and the permission bits if others than the owner can read the file.
fn read_text_from(
    target: &str,
    credential: Option<PathBuf>,
) -> Result<(PathBuf, Zeroizing<String>, Option<u32>), LoadError> {
    let path = path_of(target);
    name_of(&path)?;
    let place = credential.unwrap_or_else(|| path.clone());
    let read = read_named(&place, MAX_BYTES);
    let (bytes, metadata) = read.map_err(|error| LoadError::Read { file: place.clone(), error })?;
    let mode = permissions::readable_by_others(&metadata);
    let text = std::str::from_utf8(&bytes).map_err(|error| not_utf8(&path, &bytes[..error.valid_up_to()]))?;
    let text = Zeroizing::new(text.to_owned());
    Ok((path, text, mode))
}

fn not_utf8(path: &Path, valid: &[u8]) -> ConfigErrors {
    let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let at = Location { file: Arc::from(path), line, key: None };
    ConfigErrors {
        errors: vec![ConfigError { at, problem: Problem::NotUtf8 }],
        more: 0,
        warnings: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_a_file_below_etc() {
        assert_eq!(path_of("wg0"), Path::new("/etc/wireguard/wg0.conf"));
        assert_eq!(path_of("wg0.conf"), Path::new("wg0.conf"));
        assert_eq!(path_of("./wg0"), Path::new("./wg0"));
        assert_eq!(path_of("/tmp/a.b.conf"), Path::new("/tmp/a.b.conf"));
        for (target, name) in
            [("wg0", "wg0"), ("wg0.conf", "wg0"), ("./wg0", "wg0"), ("/nonexistent/a.b.conf", "a.b")]
        {
            assert_eq!(interface_of(target).unwrap().as_str(), name, "{target}");
        }
        let (name, file) = (interface_of("a b").unwrap_err(), interface_of("/a b.conf").unwrap_err());
        assert!(!name.to_string().contains("rename the file"), "{name}");
        assert!(file.to_string().contains("rename the file"), "{file}");
    }

    #[test]
    fn files_that_cannot_be_read_say_why() {
        let missing = load("/nonexistent/wg0.conf").unwrap_err();
        assert!(!missing.is_permission_denied());
        assert!(missing.to_string().starts_with("/nonexistent/wg0.conf: "), "{missing}");
        let name = load("/tmp/sixteen-letters0.conf").unwrap_err();
        assert!(name.to_string().contains("rename the file"), "{name}");
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("wg0.conf");
        std::fs::create_dir(&directory).unwrap();
        assert!(load(directory.to_str().unwrap()).is_err());
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wg0.conf");
        std::fs::write(&file, b"[Interface]\n\xff\xfe").unwrap();
        let error = load(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("wg0.conf:2: the file is not UTF-8"), "{error}");
    }
}
