//! What weft asks of the named pipes of Windows, apart from the calls: their names, their instances and their
//! owners.

use std::path::Path;

/// The folder of all pipes.
pub(crate) const PIPES: &str = r"\\.\pipe\";

// As in winbase.h. `pipe.rs` compares them with those of the system.
pub(crate) const PIPE_ACCESS_DUPLEX: u32 = 0x0000_0003;
pub(crate) const FILE_FLAG_OVERLAPPED: u32 = 0x4000_0000;
pub(crate) const FILE_FLAG_FIRST_PIPE_INSTANCE: u32 = 0x0008_0000;

/// Returns the mode that an instance of a pipe is created in. The first one fails if another process has the
/// pipe, so that no daemon adds its instances to the pipe of another program.
pub(crate) fn open_mode(is_first: bool) -> u32 {
    let first = if is_first { FILE_FLAG_FIRST_PIPE_INSTANCE } else { 0 };
    PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED | first
}

/// Returns the interface that a pipe belongs to.
pub(crate) fn interface(path: &Path) -> String {
    let path = path.to_string_lossy();
    path.rsplit('\\').next().unwrap_or_default().to_owned()
}

/// Returns the names of those pipes that are below a prefix, `\\.\pipe\FOLDER`. The system lists all pipes,
/// with their folders.
pub(crate) fn below<'a>(prefix: &str, pipes: impl Iterator<Item = &'a str>) -> Vec<String> {
    let prefix = prefix.trim_start_matches(PIPES).to_owned() + r"\";
    pipes.filter_map(|pipe| Some(pipe.strip_prefix(&prefix)?.to_owned())).collect()
}

/// The owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// SYSTEM, the user of services.
    System,
    /// The group of administrators, which owns what they create.
    Administrators,
    /// The user of this process.
    Own,
    /// Another user.
    Other,
}

impl Owner {
    /// Reports whether a client gives keys to a daemon with a pipe of this owner. No daemon has a pipe that
    /// the user owns: only administrators run one, and their group owns its pipe.
    pub fn is_trusted(self) -> bool {
        matches!(self, Self::System | Self::Administrators)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_instance_asks_to_be_the_first() {
        assert_eq!(open_mode(true), 0x4008_0003);
        assert_eq!(open_mode(false), 0x4000_0003);
    }

    #[test]
    fn a_pipe_is_named_after_its_interface() {
        let path = Path::new(r"\\.\pipe\ProtectedPrefix\Administrators\WireGuard\wg0");
        assert_eq!(interface(path), "wg0");
    }

    #[test]
    fn the_interfaces_are_the_pipes_below_the_prefix() {
        let pipes = [
            r"InitShutdown",
            r"ProtectedPrefix\Administrators\WireGuard\wg0",
            r"ProtectedPrefix\Administrators\weft\wg1",
            r"ProtectedPrefix\Administrators\WireGuardNot\wg2",
            r"WireGuard\wg3",
        ];
        let prefix = r"\\.\pipe\ProtectedPrefix\Administrators\WireGuard";
        assert_eq!(below(prefix, pipes.into_iter()), ["wg0"]);
        assert_eq!(below(r"\\.\pipe\ProtectedPrefix\Administrators\weft", pipes.into_iter()), ["wg1"]);
    }

    #[test]
    fn keys_are_for_the_system_and_the_administrators_alone() {
        assert!(Owner::System.is_trusted() && Owner::Administrators.is_trusted());
        assert!(!Owner::Own.is_trusted() && !Owner::Other.is_trusted());
    }
}
