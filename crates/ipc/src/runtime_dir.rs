//! The runtime directory: it has a directory for each running interface, with its control socket, its lock,
//! and the record that `weft down` needs. On Windows the control socket is a named pipe outside of it.
//!
//! Only root or the user who runs the commands may change the runtime directory itself. So root, or the
//! service manager on its behalf, decides which user an interface belongs to: the owner of the interface's
//! directory.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use weft_config::InterfaceName;

#[cfg_attr(unix, path = "runtime_dir/unix.rs")]
#[cfg_attr(not(unix), path = "runtime_dir/windows.rs")]
mod platform;
mod untrusted;

#[cfg(unix)]
pub(crate) use platform::{CONTROL_SOCKET, server_of};
pub use platform::{control_socket, is_anothers, lock, open_untrusted, place_of_sockets, users};
pub use untrusted::{Access, read_untrusted};
pub use untrusted::{UntrustedError, Users};

/// The environment variable that names another runtime directory.
pub const VARIABLE: &str = "WEFT_RUNTIME_DIR";

/// Returns the runtime directory: `WEFT_RUNTIME_DIR`, else `/run/weft`, on macOS and FreeBSD `/var/run/weft`,
/// on Windows `%ProgramData%\weft\run`.
pub fn runtime_dir() -> PathBuf {
    chosen(std::env::var_os(VARIABLE))
}

/// Returns the directory of interfaces that this user runs without root: `WEFT_RUNTIME_DIR`, else
/// `$XDG_RUNTIME_DIR/weft`; without both `/run/user/UID/weft` if the user has a session of systemd, else
/// `/tmp/weft-UID`. On Windows there are no such interfaces, and it is the runtime directory.
///
/// # Errors
/// The one in /tmp is not a directory of this user alone.
pub fn user_dir() -> Result<PathBuf, UntrustedError> {
    chosen_by_user(std::env::var_os(VARIABLE), std::env::var_os("XDG_RUNTIME_DIR"))
        .map_or_else(platform::of_user, Ok)
}

fn chosen_by_user(own: Option<OsString>, session: Option<OsString>) -> Option<PathBuf> {
    let given = |path: Option<OsString>| path.filter(|path| !path.is_empty()).map(PathBuf::from);
    // A relative path does not count (XDG Base Directory Specification).
    given(own).or_else(|| Some(given(session).filter(|path| path.is_absolute())?.join("weft")))
}

fn chosen(own: Option<OsString>) -> PathBuf {
    own.filter(|path| !path.is_empty()).map_or_else(platform::default, PathBuf::from)
}

/// Returns the directory of an interface in a runtime directory.
pub fn instance(directory: &Path, interface: &InterfaceName) -> PathBuf {
    directory.join(interface.as_str())
}

/// Returns the interfaces that have a control socket in a runtime directory, sorted by name. A daemon may not
/// answer.
///
/// # Errors
/// When the system does not list them.
pub fn interfaces(directory: &Path) -> io::Result<Vec<InterfaceName>> {
    let mut names = platform::interfaces(directory)?;
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    Ok(names)
}

/// Creates the directory of an interface, accessible to its owner only, and the runtime directory, readable
/// by all users unless it is the one in /tmp, if they do not exist.
///
/// # Errors
/// When the system refuses.
pub fn make(instance: &Path) -> io::Result<()> {
    platform::make(instance)
}

/// Makes this user the owner of an interface's directory, if it belongs to another user, such as the user for
/// whom the service manager created it. The owner of the directory is the user that may serve the interface.
/// The daemon that runs the interface calls this.
///
/// # Errors
/// Those of [`UntrustedError`].
pub fn adopt(instance: &Path) -> Result<(), UntrustedError> {
    platform::adopt(instance)
}

/// Removes the directory of an interface if it is empty and belongs to this user, and with the last one the
/// runtime directory in /tmp.
pub fn leave(instance: &Path) {
    platform::leave(instance);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_choice_comes_before_the_default() {
        let chosen = |own: Option<&str>| chosen(own.map(OsString::from));
        assert_eq!([chosen(None), chosen(Some(""))], [platform::default(), platform::default()]);
        assert_eq!(chosen(Some("/tmp/x")), PathBuf::from("/tmp/x"));
    }

    #[test]
    fn a_user_without_root_has_the_directory_of_the_session() {
        let chosen = |own: Option<&str>, session: Option<&str>| {
            chosen_by_user(own.map(OsString::from), session.map(OsString::from))
        };
        // Absolute on every system.
        let session = std::env::temp_dir();
        assert_eq!(chosen(None, session.to_str()), Some(session.join("weft")));
        assert_eq!(chosen(Some("/tmp/x"), session.to_str()), Some(PathBuf::from("/tmp/x")));
        assert_eq!(
            [chosen(None, None), chosen(None, Some("")), chosen(None, Some("run"))],
            [None, None, None]
        );
    }
}
