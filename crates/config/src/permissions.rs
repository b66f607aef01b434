//! Permissions of files, as Unix has them.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::Notice;

/// Returns what to say of a regular file that others can change or read.
pub(super) fn notice_of(metadata: &Metadata) -> Option<Notice> {
    let mode = metadata.permissions().mode() & 0o7777;
    if !metadata.is_file() {
        return None;
    }
    if !is_trusted_owner(metadata.uid()) {
        return Some(Notice::OwnedByAnother { user: metadata.uid() });
    }
    let is_writable = is_writable(mode, metadata.gid());
    is_writable
        .then_some(Notice::Writable { mode })
        .or_else(|| readable_by_others(metadata).map(|mode| Notice::Readable { mode }))
}

fn is_writable(mode: u32, group: u32) -> bool {
    mode & 0o002 != 0 || mode & 0o020 != 0 && group != 0
}

/// Reports whether a file of this user is root's, or of the user who runs this command, also through sudo.
#[cfg(not(target_os = "ios"))]
fn is_trusted_owner(user: u32) -> bool {
    let own = nix::unistd::geteuid();
    let of_sudo = || std::env::var("SUDO_UID").ok().and_then(|user| user.parse::<u32>().ok());
    user == 0 || user == own.as_raw() || own.is_root() && of_sudo() == Some(user)
}

#[cfg(target_os = "ios")]
fn is_trusted_owner(_: u32) -> bool {
    true
}

/// Returns the permission bits of a regular file, if its group or others can read it. The groups of root and
/// of the service's user may.
pub(super) fn readable_by_others(metadata: &Metadata) -> Option<u32> {
    let mode = metadata.permissions().mode() & 0o7777;
    let is_open = metadata.is_file() && is_open(mode, || is_trusted(metadata.gid()));
    is_open.then_some(mode)
}

fn is_open(mode: u32, is_group_trusted: impl Fn() -> bool) -> bool {
    mode & 0o004 != 0 || mode & 0o040 != 0 && !is_group_trusted()
}

fn is_trusted(group: u32) -> bool {
    group == 0 || gid_of_service() == Some(group)
}

/// Returns the group of the service's user: the service reads a large file itself.
#[cfg(not(target_os = "ios"))]
fn gid_of_service() -> Option<u32> {
    nix::unistd::Group::from_name("weft").ok().flatten().map(|group| group.gid.as_raw())
}

#[cfg(target_os = "ios")]
fn gid_of_service() -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_can_change_is_told_apart_from_one_that_they_can_read() {
        assert!(is_writable(0o602, 0) && is_writable(0o620, 7) && !is_writable(0o620, 0));
        assert!(!is_writable(0o644, 7));
        assert!(is_trusted_owner(0) && !is_trusted_owner(u32::MAX - 1));
    }

    #[test]
    fn a_group_that_has_to_read_a_file_is_no_reason_for_a_warning() {
        for (mode, by_trusted, by_another) in
            [(0o600, false, false), (0o640, false, true), (0o644, true, true), (0o604, true, true)]
        {
            assert_eq!(is_open(mode, || true), by_trusted, "{mode:o}");
            assert_eq!(is_open(mode, || false), by_another, "{mode:o}");
        }
        assert!(is_trusted(0));
        assert!(!is_trusted(u32::MAX - 1));
    }
}
