//! The users that a proxy lets in.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The longest user and password that SOCKS5 carries (RFC 1929).
const MAX_LEN: usize = 255;

/// The largest file of users that is read: more than 2,000 of the longest, and 50,000 usual ones.
const MAX_BYTES: u64 = 1 << 20;

/// Users and their passwords. Never shown, and wiped when dropped.
pub struct Users(Vec<Zeroizing<Vec<u8>>>);

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.0.len())
    }
}

/// Why a file of users cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is not a user and a password.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The file names no user.
    #[error("{} has no line USER:PASSWORD", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl Users {
    /// Makes a user with a random password. Returns also the line `USER:PASSWORD`, which may stand in a URL.
    pub fn random() -> (Self, Zeroizing<String>) {
        let line = Zeroizing::new(format!("weft:{:032x}", rand::random::<u128>()));
        (Self(vec![Zeroizing::new(line.as_bytes().to_vec())]), line)
    }

    /// Reads a file with a line `USER:PASSWORD` for each user. Empty lines and lines with `#` in front are
    /// ignored.
    ///
    /// # Errors
    /// Those of [`UsersError`].
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let read = weft_config::read_named(path, MAX_BYTES);
        let (text, _) = read.map_err(|source| UsersError::Read { path: path.to_owned(), source })?;
        let (mut users, mut lines) = (Vec::new(), HashMap::new());
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wrong = |problem| UsersError::Line { path: path.to_owned(), line: number, problem };
            let user = user_of(line).map_err(|problem| wrong(problem.to_owned()))?;
            if let Some(earlier) = lines.insert(user, number) {
                return Err(wrong(format!("line {earlier} has this user already; a user has one password")));
            }
            users.push(Zeroizing::new(line.to_vec()));
        }
        if users.is_empty() { Err(UsersError::Empty { path: path.to_owned() }) } else { Ok(Self(users)) }
    }

    /// Reports whether there is a user with this password, in a time that does not depend on what is right in
    /// them.
    pub(crate) fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        let given = Zeroizing::new([user, b":", password].concat());
        // A colon in the user would move the border between both.
        !user.contains(&b':') & self.admit_line(&given)
    }

    /// Reports whether the value of an HTTP field `Proxy-Authorization` names a user (RFC 7617).
    pub(crate) fn admit_basic(&self, value: &[u8]) -> bool {
        let Some((scheme, token)) = value.split_at_checked(6) else { return false };
        let decoded = STANDARD.decode(token.trim_ascii()).map(Zeroizing::new);
        scheme.eq_ignore_ascii_case(b"basic ") && decoded.is_ok_and(|given| self.admit_line(&given))
    }

    fn admit_line(&self, given: &[u8]) -> bool {
        self.0.iter().fold(false, |is_known, user| is_known | is_equal(user, given))
    }
}

/// Returns the user of a line, or what is wrong with the line.
fn user_of(line: &[u8]) -> Result<&str, &'static str> {
    let text = str::from_utf8(line).ok().filter(|line| !line.contains('\0'));
    let line = text.ok_or("the line is not UTF-8; save the file as UTF-8")?;
    if line.starts_with('\u{feff}') {
        return Err("the line begins with a byte order mark; save the file as UTF-8 without one");
    }
    let is_fine = |part: &str| (1..=MAX_LEN).contains(&part.len());
    match line.split_once(':') {
        Some((user, password)) if is_fine(user) && is_fine(password) => Ok(user),
        _ => Err("a line is USER:PASSWORD, each of 1 to 255 bytes, the user without a colon"),
    }
}

/// Compares all bytes, whatever the first ones are. The length may show.
fn is_equal(known: &[u8], given: &[u8]) -> bool {
    let difference = known.iter().zip(given).fold(0, |difference, (a, b)| difference | (a ^ b));
    (known.len() == given.len()) & (std::hint::black_box(difference) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(text: impl AsRef<[u8]>) -> Result<Users, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        std::fs::write(&path, text).unwrap();
        Users::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn users_with_their_passwords_come_in() {
        let users = users("# who\nann:secret:with colon\r\n\nbob:b\n").unwrap();
        assert!(users.admit(b"ann", b"secret:with colon") && users.admit(b"bob", b"b"));
        for (user, password) in
            [("ann", "secret"), ("ann", "b"), ("", ""), ("bob", ""), ("ann:secret", "with colon")]
        {
            assert!(!users.admit(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        // `bob:b` and `bob:x` in base64.
        assert!(users.admit_basic(b"Basic Ym9iOmI=") && users.admit_basic(b"basic  Ym9iOmI="));
        for value in ["Basic Ym9iOng=", "Basic", "", "Bearer Ym9iOmI=", "Basic !", "BasicYm9iOmI="] {
            assert!(!users.admit_basic(value.as_bytes()), "{value}");
        }
        assert_eq!(format!("{users:?}"), "Users(2)");
    }

    #[test]
    fn a_wrong_file_of_users_is_refused_by_line() {
        assert!(users("a:b\nno colon\n").unwrap_err().contains("users:2: a line is USER:PASSWORD"));
        assert!(users(":b\n").unwrap_err().contains(":1:"));
        assert!(users("a:\n").unwrap_err().contains(":1:"));
        assert!(users(format!("a:{}\n", "b".repeat(256))).unwrap_err().contains(":1:"));
        assert_eq!(
            users("a:b\nc:d\nb:d\na:c\n").unwrap_err().split_once("users").unwrap().1,
            ":4: line 1 has this \
                    user already; a user has one password"
        );
        for (text, told) in [
            (&b"a:b\nb\xfc:c\n"[..], "users:2: the line is not UTF-8"),
            (b"a:\xfc\n", "users:1: the line is not UTF-8"),
            (b"\xff\xfea\0:\0b\0\n\0", "users:1: the line is not UTF-8"),
            (b"a\0:\0b\0\n\0", "users:1: the line is not UTF-8"),
            (b"\xef\xbb\xbfa:b\n", "users:1: the line begins with a byte order mark"),
            (b"\xef\xbb\xbf# who\na:b\n", "users:1: the line begins with a byte order mark"),
        ] {
            let error = users(text).unwrap_err();
            assert!(error.contains(told), "{told}: {error}");
        }
        assert!(users("# none\n").unwrap_err().contains("has no line"));
        let large = users("a:b\n".repeat(1 << 18 | 1)).unwrap_err();
        assert!(large.starts_with("cannot read ") && large.ends_with("file too large"), "{large}");
        let missing = Users::read(Path::new("/nonexistent/users")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read /nonexistent/users: "), "{missing}");
    }
}
