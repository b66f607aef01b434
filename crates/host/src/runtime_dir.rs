//! The directory of what belongs to running interfaces, with one directory for each of them: its control
//! socket, its lock, and the record that `weft down` needs.
//!
//! The directory itself is changed only by root, or by the user who runs the commands. Root, or the service
//! manager for it, thus decides which user an interface belongs to: that is the owner of the interface's
//! directory.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use weft_config::InterfaceName;

#[cfg_attr(unix, path = "runtime_dir/unix.rs")]
#[cfg_attr(not(unix), path = "runtime_dir/other.rs")]
mod platform;
mod untrusted;

#[cfg(unix)]
pub use platform::server_of;
pub use platform::{is_anothers, lock, open_untrusted, users};
pub use untrusted::{Access, read_untrusted};
pub use untrusted::{UntrustedError, Users};

/// The default.
const DEFAULT: &str = "/run/weft";
/// The environment variable that names another one.
pub const VARIABLE: &str = "WEFT_RUNTIME_DIR";
/// What the control socket is called in the directory of its interface.
pub const CONTROL_SOCKET: &str = "control.sock";

/// `WEFT_RUNTIME_DIR`, else `/run/weft`.
pub fn runtime_dir() -> PathBuf {
    chosen(std::env::var_os(VARIABLE))
}

fn chosen(own: Option<OsString>) -> PathBuf {
    own.filter(|path| !path.is_empty()).map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from)
}

/// The directory of one interface in a runtime directory.
pub fn instance(directory: &Path, interface: &InterfaceName) -> PathBuf {
    directory.join(interface.as_str())
}

/// The control socket of an interface in a runtime directory.
pub fn control_socket(directory: &Path, interface: &InterfaceName) -> PathBuf {
    instance(directory, interface).join(CONTROL_SOCKET)
}

/// Makes the directory of an interface for its owner alone, and the runtime directory for everybody to look
/// into, unless they are there.
///
/// # Errors
/// When the system refuses.
pub fn make(instance: &Path) -> io::Result<()> {
    platform::make(instance)
}

/// Makes the directory of an interface this user's, where the service manager left it to another one: who may
/// serve the interface shows in it. For the daemon that runs the interface.
///
/// # Errors
/// Those of [`UntrustedError`].
pub fn adopt(instance: &Path) -> Result<(), UntrustedError> {
    platform::adopt(instance)
}

/// Removes the directory of an interface if nothing is left in it, and it is this user's to remove.
pub fn leave(instance: &Path) {
    if !is_anothers(instance) {
        // The service manager's cannot be removed, nor one that still has a file.
        let _ = std::fs::remove_dir(instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_choice_comes_before_the_default() {
        let chosen = |own: Option<&str>| chosen(own.map(OsString::from));
        assert_eq!(chosen(None), PathBuf::from("/run/weft"));
        assert_eq!(chosen(Some("")), PathBuf::from("/run/weft"));
        assert_eq!(chosen(Some("/tmp/x")), PathBuf::from("/tmp/x"));
    }
}
