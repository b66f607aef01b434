//! Keys in separate files: `PrivateKeyFile`, `PresharedKeyFile`. A service gets them as credentials
//! (systemd.exec(5), LoadCredential=), so that its configuration contains no secret.

use std::io;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::keys::{InterfaceKey, PeerKey};
use super::lexer::Line;
use super::problem::{ConfigError, ConfigErrors, Location, Problem, may_hold_a_key};
use super::regular_file::read_regular;

/// The environment variable in which systemd passes the directory of a unit's credentials.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// The largest key file that is read: a key has 44 characters, and white space around it is allowed. A larger
/// file is not a key.
const MAX_BYTES: usize = 256;

/// The configuration keys that name a key file, each with the key that it replaces.
const KEYS: [(&str, &str); 2] = [
    (InterfaceKey::PrivateKeyFile.text(), InterfaceKey::PrivateKey.text()),
    (PeerKey::PresharedKeyFile.text(), PeerKey::PresharedKey.text()),
];

/// A key that was read from a file.
pub(super) struct FileKey {
    /// The text of the file, without white space around it.
    pub(super) text: Zeroizing<String>,
    /// The permission bits, if the file's group or others can read it.
    pub(super) readable: Option<u32>,
}

/// Returns the directory of the service's credentials, if this process has any.
pub(super) fn credentials() -> Option<PathBuf> {
    std::env::var_os(CREDENTIALS_VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Reads the key file that `text`, in the configuration file `source`, names. A relative path is looked up
/// first in the service's credentials, then beside the configuration file.
pub(super) fn read(text: &str, source: &Path) -> Result<FileKey, Problem> {
    read_with(text, source, credentials().as_deref())
}

fn read_with(text: &str, source: &Path, credentials: Option<&Path>) -> Result<FileKey, Problem> {
    if text.is_empty() {
        return Err(Problem::Empty { expected: "write the path of a file that holds the key" });
    }
    if looks_like_a_key(text) {
        return Err(Problem::KeyInPlaceOfFile);
    }
    let beside = source.parent().unwrap_or(Path::new("")).join(text);
    let credential = credentials.filter(|_| !Path::new(text).is_absolute()).map(|path| path.join(text));
    let is_credential = |path: &Path| credentials.is_some_and(|directory| path.starts_with(directory));
    for path in credential.iter().chain([&beside]) {
        match read_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Problem::KeyFileDenied { file: shown(path) });
            }
            Err(error) => return Err(Problem::KeyFile { file: shown(path), error: error.to_string() }),
            Ok((text, mode)) => {
                // The permission bits of a credential stem from its access control list, which has an entry
                // for one user only.
                return Ok(FileKey { text, readable: mode.filter(|_| !is_credential(path)) });
            }
        }
    }
    Err(Problem::NoKeyFile { file: shown(&beside), credential: credential.as_deref().map(shown) })
}

fn read_file(path: &Path) -> io::Result<(Zeroizing<String>, Option<u32>)> {
    let too_long = || io::Error::other("it holds more than a key");
    let (bytes, metadata) = read_regular(path, MAX_BYTES as u64).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => too_long(),
        _ => error,
    })?;
    let text = std::str::from_utf8(&bytes).ok().map(str::trim);
    // A second line would become a line of the configuration.
    let text = text.filter(|text| text.lines().count() <= 1);
    let text = text.ok_or_else(too_long)?;
    Ok((Zeroizing::new(text.to_owned()), super::permissions::readable_by_others(&metadata)))
}

/// Reports whether the text is a key instead of the path of a key file: it is long enough for a key, and ends
/// with `=` or has neither a leading slash nor a dot. A path may be as long, but usually differs in both.
fn looks_like_a_key(text: &str) -> bool {
    may_hold_a_key(text) && (text.ends_with('=') || !(text.starts_with('/') || text.contains('.')))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the text with the keys themselves in place of key files, for a daemon that may not read those
/// files. Line numbers stay the same. A line with a file that cannot be read stays as it is: the daemon may
/// have the key as a credential.
pub fn with_keys_in_place(text: &str, source: &Path) -> Zeroizing<String> {
    put_in_place(text, source).0
}

/// Returns the text with the keys themselves in place of key files, for wg(8) and for daemons that do not
/// support key files.
///
/// # Errors
/// One error for each key file that cannot be used.
pub fn with_all_keys_in_place(text: &str, source: &Path) -> Result<Zeroizing<String>, ConfigErrors> {
    let (changed, errors) = put_in_place(text, source);
    if errors.is_empty() {
        return Ok(changed);
    }
    Err(ConfigErrors { errors, more: 0, warnings: Vec::new() })
}

fn put_in_place(text: &str, source: &Path) -> (Zeroizing<String>, Vec<ConfigError>) {
    let mut errors = Vec::new();
    // The capacity is reserved at once: a string that grows leaves copies of keys in memory.
    let keys = text.lines().filter(|line| named_in(line).is_some()).count();
    let mut changed = Zeroizing::new(String::with_capacity(text.len() + 1 + keys * (MAX_BYTES + 16)));
    for (index, line) in text.lines().enumerate() {
        // Credentials are ignored: this process is not the service, and the credentials of the service may be
        // older than the file.
        let read = named_in(line).map(|(names, path)| (names, read_with(path, source, None)));
        match read {
            Some(((_, key), Ok(value))) => {
                changed.push_str(key);
                changed.push_str(" = ");
                changed.push_str(&value.text);
            }
            Some(((name, _), Err(problem))) => {
                let at = Location { file: source.into(), line: index + 1, key: Some(name.to_owned()) };
                errors.push(ConfigError { at, problem });
                changed.push_str(line);
            }
            None => changed.push_str(line),
        }
        changed.push('\n');
    }
    (changed, errors)
}

/// Returns the key of a line that names a key file, the key that it replaces, and the path of the file.
fn named_in(line: &str) -> Option<((&'static str, &'static str), &str)> {
    let (written, path) = Line::new(0, line).key_value()?;
    let names = KEYS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(written))?;
    Some((names, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    const OTHER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

    fn problem(result: Result<FileKey, Problem>) -> String {
        result.err().map(|problem| problem.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_relative_path_is_a_credential_or_beside_the_file_and_an_absolute_one_is_neither() {
        let directory = tempfile::tempdir().unwrap();
        let (etc, credentials) = (directory.path().join("etc"), directory.path().join("credentials"));
        for made in [&etc, &credentials] {
            std::fs::create_dir(made).unwrap();
        }
        let source = etc.join("wg0.conf");
        let read = |text: &str| read_with(text, &source, Some(&credentials)).map(|key| key.text.to_string());
        assert!(problem(read_with("wg0.key", &source, Some(&credentials))).contains("credentials/wg0.key"));
        std::fs::write(etc.join("wg0.key"), format!("{KEY}\n")).unwrap();
        assert_eq!(read("wg0.key").unwrap(), KEY);
        std::fs::write(credentials.join("wg0.key"), OTHER).unwrap();
        assert_eq!(read("wg0.key").unwrap(), OTHER);
        assert_eq!(read(etc.join("wg0.key").to_str().unwrap()).unwrap(), KEY);
        assert_eq!(*read_with("wg0.key", &source, None).unwrap().text, *KEY);
    }

    #[test]
    fn what_cannot_be_a_key_is_told_without_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("wg0.conf");
        let read = |text: &str| problem(read_with(text, &source, None));
        assert!(read("").contains("path of a file"));
        assert!(read("missing.key").contains("missing.key") && read("missing.key").contains("no such file"));
        for key in [KEY, OTHER] {
            let told = read(key);
            assert!(told.contains("PrivateKey") && !told.contains(&key[..8]), "{told}");
        }
        std::fs::write(directory.path().join("two.key"), format!("{KEY}\n{KEY}\n").repeat(4)).unwrap();
        assert!(read("two.key").contains("more than a key") && !read("two.key").contains(&KEY[..8]));
        std::fs::write(directory.path().join("lines.key"), format!("{KEY}\n[Peer]\n")).unwrap();
        assert!(read("lines.key").contains("more than a key"), "{}", read("lines.key"));
        std::fs::write(directory.path().join("long.key"), format!("{KEY}{}", " ".repeat(MAX_BYTES))).unwrap();
        assert!(read("long.key").contains("more than a key"), "{}", read("long.key"));
        assert!(read(".").contains("not a regular file"), "{}", read("."));
    }

    #[test]
    #[cfg(unix)]
    fn a_key_that_others_can_read_is_told_but_not_of_a_credential() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("wg0.conf");
        let file = directory.path().join("wg0.key");
        std::fs::write(&file, KEY).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_with("wg0.key", &source, None).unwrap().readable, Some(0o644));
        assert_eq!(read_with("wg0.key", &source, Some(directory.path())).unwrap().readable, None);
    }

    #[test]
    fn a_configuration_is_handed_over_with_its_keys_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("wg0.conf");
        std::fs::write(directory.path().join("a"), format!("{KEY}\n")).unwrap();
        let text = "[Interface]\nprivatekeyfile=a # mine\n[Peer]\nPresharedKeyFile = missing\nPublicKey = x";
        let expected =
            format!("[Interface]\nPrivateKey = {KEY}\n[Peer]\nPresharedKeyFile = missing\nPublicKey = x\n");
        assert_eq!(*with_keys_in_place(text, &source), expected);
        let errors = with_all_keys_in_place(text, &source).unwrap_err();
        let missing = directory.path().join("missing");
        let told = format!(
            "{}:4: PresharedKeyFile: {}: there is no such file; put the key there",
            source.display(),
            missing.display()
        );
        assert_eq!(errors.to_string(), told);
        std::fs::write(missing, OTHER).unwrap();
        let all = expected.replace("PresharedKeyFile = missing", &format!("PresharedKey = {OTHER}"));
        assert_eq!(*with_all_keys_in_place(text, &source).unwrap(), all);
    }
}
