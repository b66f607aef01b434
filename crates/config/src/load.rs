//! Finds and reads the file that `weft up FILE|NAME` names.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::Zeroizing;

use super::problem::{ConfigError, ConfigErrors, Location, Notice, Problem, Warning};
use super::regular_file::{MAX_BYTES, is_descriptor, read_named};
use super::{
    InterfaceName, InvalidInterfaceName, Parsed, as_root, key_file, parse, parse_to_start, permissions,
};

/// What a bare name stands for.
const MEANING: &str =
    if cfg!(windows) { r"%ProgramData%\weft\NAME.conf" } else { "/etc/wireguard/NAME.conf" };
/// Why a configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file's name is not a valid interface name.
    #[error("{}: {reason}; rename the file to INTERFACE.conf, or give `weft up` a --name", file.display())]
    Name {
        /// The path of the file.
        file: PathBuf,
        /// The rule that the name violates.
        reason: InvalidInterfaceName,
    },
    /// The file is a pipe, or open already: its number is no name.
    #[error("{}: a pipe has no name for an interface; give `weft up` a --name NAME", .0.display())]
    NoName(PathBuf),
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
            Self::Name { .. } | Self::NoName(_) | Self::Interface(_) => false,
        }
    }
}

fn advice(file: &Path, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::NotFound if file.is_relative() && std::env::current_dir().is_err() => {
            "the working directory was deleted: change to another one, or give a path from the root"
        }
        io::ErrorKind::PermissionDenied if let Some(here) = here(file) => {
            return format!("run weft as root, or as a user who may read it; ./{here} is the file here");
        }
        io::ErrorKind::PermissionDenied if cfg!(windows) => "run weft as an administrator",
        io::ErrorKind::PermissionDenied => as_root(
            "run weft as root, or as a user who may read it",
            "the unit hands it over by LoadCredential= (docs/SYSTEMD.md)",
        ),
        io::ErrorKind::NotFound if let Some(here) = here(file) => {
            return format!("./{here} is the file here");
        }
        io::ErrorKind::NotFound if let Some(near) = near(file) => return format!("did you mean {near}?"),
        io::ErrorKind::NotFound => return format!("give the path of a file, or a NAME for {MEANING}"),
        io::ErrorKind::IsADirectory => "give the path of a file in it",
        io::ErrorKind::FileTooLarge => "a configuration has at most 16 MiB: is this the right file?",
        _ => "check the path",
    };
    advice.to_owned()
}

/// Returns the file in the working directory that a bare name is almost that of.
fn here(file: &Path) -> Option<String> {
    let name = file.file_name().filter(|_| file.parent() == Some(&directory()))?.to_str()?;
    let candidates = [name.strip_suffix(".conf"), Some(name)].into_iter().flatten();
    candidates.filter(|name| Path::new(name).is_file()).map(str::to_owned).next()
}

/// Returns the file that a path is almost that of: it lacks the end, or the directory of bare names.
fn near(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let beside = file.with_file_name(format!("{name}.conf"));
    let bare = name.strip_suffix(".conf").unwrap_or(name);
    let there = directory().join(format!("{bare}.conf"));
    if there.is_file() {
        return Some(format!("`{bare}`, for {}", there.display()));
    }
    beside.is_file().then(|| beside.display().to_string())
}

/// Returns the directory in which a bare name is looked up.
fn directory() -> PathBuf {
    if !cfg!(windows) {
        return PathBuf::from("/etc/wireguard");
    }
    let data = std::env::var_os("ProgramData").unwrap_or_else(|| r"C:\ProgramData".into());
    Path::new(&data).join("weft")
}

/// Returns the file that `target` names: `target` is a path, `-` for standard input, or a bare name for
/// `/etc/wireguard/NAME.conf`, on Windows `%ProgramData%\weft\NAME.conf`.
pub fn path_of(target: &str) -> PathBuf {
    if cfg!(unix) && target == STANDARD_INPUT {
        return PathBuf::from("/dev/stdin");
    }
    if is_path(target) { PathBuf::from(target) } else { directory().join(format!("{target}.conf")) }
}

fn is_path(target: &str) -> bool {
    target.contains(std::path::is_separator) || target.ends_with(".conf")
}

/// Returns the interface that `weft up` makes of a file: the file's name without its extension.
///
/// # Errors
/// No interface can have the name, or the file has none.
pub fn name_of(path: &Path) -> Result<InterfaceName, LoadError> {
    if is_descriptor(path) {
        return Err(LoadError::NoName(path.to_owned()));
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name = if stem == "lo" { Err(InvalidInterfaceName::Loopback) } else { stem.parse() };
    name.map_err(|reason| LoadError::Name { file: path.to_owned(), reason })
}

/// Returns the interface that `target` names, which is its file or the interface itself. The name of a file
/// that no interface may have becomes one.
pub fn interface_of(target: &str) -> Result<InterfaceName, LoadError> {
    match is_path(target) {
        true => of_any_file(Path::new(target)),
        false => Ok(target.parse()?),
    }
}

fn of_any_file(path: &Path) -> Result<InterfaceName, LoadError> {
    if path.file_stem().is_none() {
        return name_of(path);
    }
    let place = path.canonicalize().or_else(|_| std::path::absolute(path));
    name_of(path).or_else(|_| made_of(path, place.unwrap_or_else(|_| path.to_owned())))
}

/// Makes a name of what a file's name has of an interface's, and of what tells this file from others.
fn made_of(path: &Path, different: impl Hash) -> Result<InterfaceName, LoadError> {
    const KEPT: usize = 8;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let kept: String = stem.chars().filter(char::is_ascii_alphanumeric).take(KEPT).collect();
    let mut hasher = DefaultHasher::new();
    different.hash(&mut hasher);
    let kept = if kept.is_empty() { "file" } else { &kept };
    Ok(format!("{kept}-{:06x}", hasher.finish() & 0xff_ffff).parse()?)
}

/// What stands for standard input.
const STANDARD_INPUT: &str = "-";

/// The text of a configuration, read once: standard input and a pipe cannot be read again.
pub struct Source {
    /// The path of the file, or a word for standard input.
    pub file: PathBuf,
    /// The interface. That of standard input or a pipe is made of the text.
    pub interface: InterfaceName,
    /// Whether the text is from a file that can be read again.
    pub is_file: bool,
    /// The text, with its keys.
    pub text: Zeroizing<String>,
    warning: Option<Warning>,
}

impl Source {
    /// Reads the file that `target` names (see [`path_of`]), of any name; `-` is standard input.
    ///
    /// # Errors
    /// The file cannot be read, or is no text.
    pub fn read(target: &str) -> Result<Self, LoadError> {
        if target != STANDARD_INPUT {
            if !is_path(target) {
                target.parse::<InterfaceName>()?;
            }
            return Self::read_at(path_of(target), None);
        }
        let file = PathBuf::from("standard input");
        let read = read_standard_input().map_err(|error| LoadError::Read { file: file.clone(), error });
        Self::of(file, &read?, None, false)
    }

    fn read_at(file: PathBuf, credential: Option<PathBuf>) -> Result<Self, LoadError> {
        // Read access to a credential comes from an access control list; its permission bits say nothing
        // about other users.
        let is_credential = credential.is_some();
        let place = credential.unwrap_or_else(|| file.clone());
        let (bytes, notice, is_file) =
            read(&place).map_err(|error| LoadError::Read { file: place.clone(), error })?;
        Self::of(file, &bytes, notice.filter(|_| !is_credential), is_file)
    }

    fn of(file: PathBuf, bytes: &[u8], notice: Option<Notice>, is_file: bool) -> Result<Self, LoadError> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| not_utf8(&file, &bytes[..error.valid_up_to()]))?;
        let interface = if is_file { of_any_file(&file)? } else { made_of(Path::new("stdin"), text)? };
        let at = Location { file: file.as_path().into(), line: 1, key: None };
        let warning = notice.filter(|_| is_file).map(|notice| Warning { at, notice });
        Ok(Self { interface, is_file, text: Zeroizing::new(text.to_owned()), warning, file })
    }

    /// Parses the text.
    ///
    /// # Errors
    /// Those of the configuration.
    pub fn parse(&self) -> Result<Parsed, LoadError> {
        self.parse_by(parse)
    }

    /// Parses the text as a start does, see [`parse_to_start`].
    ///
    /// # Errors
    /// Those of the configuration.
    pub fn parse_to_start(&self) -> Result<Parsed, LoadError> {
        self.parse_by(parse_to_start)
    }

    fn parse_by(
        &self,
        parse: impl Fn(&str, &Path, InterfaceName) -> Result<Parsed, ConfigErrors>,
    ) -> Result<Parsed, LoadError> {
        let mut parsed = parse(&self.text, &self.file, self.interface.clone())?;
        parsed.warnings.splice(..0, self.warning.clone());
        Ok(parsed)
    }
}

/// Reads and parses the file that `target` names, as a start does, see [`Source`].
pub fn load_to_start(target: &str) -> Result<Parsed, LoadError> {
    Source::read(target)?.parse_to_start()
}

/// Reads and parses the file that `target` names, for a daemon that starts `interface`, else the one that the
/// file's name says. If `target` is a bare name and the service manager passed the file as the credential
/// `NAME.conf`, reads the credential, since the daemon itself may not be allowed to read the file. Errors and
/// warnings about its content name the file, not the credential. Also returns the text.
pub fn load_as_service(
    target: &str,
    interface: Option<&InterfaceName>,
) -> Result<(Parsed, Zeroizing<String>), LoadError> {
    let path = path_of(target);
    if !is_path(target) && target != STANDARD_INPUT {
        target.parse::<InterfaceName>()?;
    }
    let interface = interface.map_or_else(|| name_of(&path), |name| Ok(name.clone()))?;
    let source = Source { interface, ..Source::read_at(path, credential_of(target))? };
    Ok((source.parse_to_start()?, source.text))
}

/// Returns the credential that takes the place of the file that `target` names.
fn credential_of(target: &str) -> Option<PathBuf> {
    let path = path_of(target);
    let is_name = path.starts_with(directory()) && !target.contains(std::path::is_separator);
    let credential = key_file::credentials().zip(path.file_name().filter(|_| is_name));
    credential.map(|(directory, name)| directory.join(name)).filter(|file| file.exists())
}

/// Returns the text of the file that `target` names, or of its credential, see [`load_as_service`].
pub fn read_text_as_service(target: &str) -> Result<Zeroizing<String>, LoadError> {
    Ok(Source::read_at(path_of(target), credential_of(target))?.text)
}

/// Returns the content, what to say if others can read or change it, and whether it is a file.
fn read(path: &Path) -> io::Result<(Zeroizing<Vec<u8>>, Option<Notice>, bool)> {
    let (bytes, metadata) = read_named(path, MAX_BYTES)?;
    // Another `<(…)` of a shell has the same path, and perhaps another text.
    let is_file = metadata.is_file() && !is_descriptor(path);
    Ok((bytes, permissions::notice_of(&metadata), is_file))
}

fn read_standard_input() -> io::Result<Zeroizing<Vec<u8>>> {
    // The capacity is reserved at once: a vector that grows leaves copies of the key in memory.
    const ROOM: usize = 1 << 20;
    let mut bytes = Zeroizing::new(Vec::with_capacity(ROOM));
    io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
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
        let (name, file) = (interface_of("a b").unwrap_err(), name_of(Path::new("/a b.conf")).unwrap_err());
        assert!(!name.to_string().contains("rename the file"), "{name}");
        assert!(file.to_string().contains("rename the file"), "{file}");
    }

    #[test]
    fn files_that_cannot_be_read_say_why() {
        let load = |target: &str| load_as_service(target, None);
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
    fn a_file_of_any_name_has_an_interface_which_is_another_for_each_file() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "wg (1).conf",
            "wg (2).conf",
            "a-name-of-forty-characters-is-no-problem.conf",
            "#.conf",
            "lo.conf",
        ];
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            let path = directory.path().join(name);
            let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
            std::fs::write(&path, format!("[Interface]\nPrivateKey = {key}\n")).unwrap();
            let target = path.to_str().unwrap();
            let source = Source::read(target).unwrap();
            assert_eq!((source.file.as_path(), source.is_file), (path.as_path(), true));
            assert_eq!(source.interface, interface_of(target).unwrap());
            assert!(seen.insert(source.interface.to_string()), "{name}: {seen:?}");
            assert!(load_as_service(target, None).is_err_and(|error| error.to_string().contains("--name")));
            let (named, _) = load_as_service(target, Some(&"wg7".parse().unwrap())).unwrap();
            assert_eq!(named.config.interface.name.as_str(), "wg7");
        }
        assert!(seen.iter().any(|name| name.starts_with("wg1-")), "{seen:?}");
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wg0.conf");
        std::fs::write(&file, b"[Interface]\n\xff\xfe").unwrap();
        let error = load_to_start(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("wg0.conf:2: the file is not UTF-8"), "{error}");
    }
}
