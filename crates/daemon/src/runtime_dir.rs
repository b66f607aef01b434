//! The directory of what belongs to running interfaces: control sockets, and what `weft down` needs to know.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

#[cfg_attr(unix, path = "runtime_dir/unix.rs")]
#[cfg_attr(not(unix), path = "runtime_dir/other.rs")]
mod platform;

pub(crate) use platform::open_lock;

/// Where it is when nobody says otherwise.
const DEFAULT: &str = "/run/weft";
/// Chooses another one: for tests, for containers, and for users who may not write to /run.
pub const VARIABLE: &str = "WEFT_RUNTIME_DIR";
/// What systemd sets for a unit with `RuntimeDirectory=` (systemd.exec(5)): absolute paths between colons.
const SYSTEMD_VARIABLE: &str = "RUNTIME_DIRECTORY";
/// The file in it that is locked while a daemon looks at the records of others and writes its own.
const LOCK: &str = ".lock";

/// `WEFT_RUNTIME_DIR`, else the first directory that systemd names in `RUNTIME_DIRECTORY`, else `/run/weft`.
///
/// The directory need not be there.
pub fn runtime_dir() -> PathBuf {
    chosen(std::env::var_os(VARIABLE), std::env::var_os(SYSTEMD_VARIABLE))
}

/// Makes the directory, unless it is there. Everybody may look into it, whatever the umask is.
///
/// The usual one is of the user that services run as, where there is such a user, also if root comes first: systemd gives
/// the directory of a service to its user when it starts, with everything that is in it, unless it is that user's already
/// (`RuntimeDirectory=`, systemd.exec(5)). Sockets and records of interfaces that root runs would not be root's any more.
///
/// # Errors
/// When the system refuses to make it.
pub fn make(path: &Path) -> io::Result<()> {
    platform::make(path)?;
    if path == Path::new(DEFAULT)
        && let Err(error) = platform::give_to_services(path)
    {
        tracing::debug!(path = DEFAULT, %error, "cannot give the directory to the user of the services");
    }
    Ok(())
}

fn chosen(own: Option<OsString>, systemd: Option<OsString>) -> PathBuf {
    let own = own.filter(|path| !path.is_empty()).map(PathBuf::from);
    let systemd = systemd.and_then(|paths| std::env::split_paths(&paths).find(|path| path.is_absolute()));
    own.or(systemd).unwrap_or_else(|| PathBuf::from(DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_choice_comes_before_systemds_and_the_default() {
        let chosen = |own: Option<&str>, systemd: Option<&str>| {
            chosen(own.map(OsString::from), systemd.map(OsString::from))
        };
        assert_eq!(chosen(None, None), PathBuf::from("/run/weft"));
        assert_eq!(chosen(Some(""), Some("")), PathBuf::from("/run/weft"));
        assert_eq!(chosen(Some("/tmp/x"), Some("/run/y")), PathBuf::from("/tmp/x"));
    }

    #[test]
    #[cfg(unix)]
    fn the_first_of_several_directories_counts() {
        let systemd = Some(OsString::from("/run/weft-a:/run/weft-b"));
        assert_eq!(chosen(None, systemd), PathBuf::from("/run/weft-a"));
    }
}
