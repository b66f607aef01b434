//! Creates an adapter, and leaves those of other programs alone.
//!
//! An adapter of Wintun ends with its process: Windows removes it a moment after a process that was killed,
//! and Wintun what a crash of the machine has left, when it creates an adapter with the same GUID. tun-rs
//! would open an adapter that is about to disappear, so that this waits for its end.

use std::io;
use std::time::Duration;
use std::{ptr, thread};

use tun_rs::{DeviceBuilder, SyncDevice};
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_ALREADY_EXISTS, ERROR_ALREADY_INITIALIZED, NO_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, ConvertInterfaceLuidToGuid, GetIfEntry2, MIB_IF_ROW2,
};
use windows_sys::Win32::NetworkManagement::Ndis::{IfOperStatusNotPresent, NET_LUID_LH};
use windows_sys::Win32::System::SystemInformation::GetTickCount64;
use windows_sys::core::GUID;

use crate::config::OpenError;
use crate::guid::{guid_of, number_of};

/// How long after a boot the services that the driver needs may not run yet.
const BOOT: Duration = Duration::from_mins(10);
/// How often an adapter is tried to create then, and the pause between two attempts.
const ATTEMPTS: u32 = 15;
const PAUSE: Duration = Duration::from_secs(1);
/// How often the adapter of a process that has ended is looked for, and the pause in between: Windows removes
/// it within a second or two.
const REMOVAL_CHECKS: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(100);

/// An adapter that has the name already.
struct Existing {
    guid: u128,
    /// Whether the adapter works. Windows keeps the name and the GUID of one that was removed.
    is_present: bool,
}

/// Creates the adapter `name` with the library at `library`, and rings of `ring_bytes` bytes. Just after a
/// boot this waits for the services that the driver needs.
pub(super) fn create(name: &str, library: &str, ring_bytes: u32) -> Result<SyncDevice, OpenError> {
    // SAFETY: the call takes nothing and returns a number.
    let since_boot = Duration::from_millis(unsafe { GetTickCount64() });
    let attempts = if since_boot < BOOT { ATTEMPTS } else { 1 };
    retried(attempts, || try_create(name, library, ring_bytes), || thread::sleep(PAUSE))
}

/// Makes up to `attempts` attempts, as long as they fail with an error of the system, and waits in between.
fn retried<T>(
    attempts: u32,
    mut attempt: impl FnMut() -> Result<T, OpenError>,
    mut wait: impl FnMut(),
) -> Result<T, OpenError> {
    for _ in 1..attempts {
        match attempt() {
            Err(error @ OpenError::Io { .. }) => {
                tracing::warn!("{error}; this machine has just started: trying again in a second");
            }
            result => return result,
        }
        wait();
    }
    attempt()
}

fn try_create(name: &str, library: &str, ring_bytes: u32) -> Result<SyncDevice, OpenError> {
    let guid = guid_of("adapter", name);
    claim(name, guid, || existing(name), || thread::sleep(REMOVAL_PAUSE))?;
    let builder = DeviceBuilder::new().name(name).enable(true).with(|builder| {
        builder
            .wintun_file(library.to_owned())
            .ring_capacity(ring_bytes)
            .device_guid(guid)
            .description("weft");
    });
    builder.build_sync().map_err(|source| open_error(name, source))
}

/// Refuses an adapter of another program, which Wintun would rename, and waits until Windows has removed the
/// adapter of a weft that has ended.
fn claim(
    name: &str,
    guid: u128,
    mut find: impl FnMut() -> Option<Existing>,
    mut wait: impl FnMut(),
) -> Result<(), OpenError> {
    for check in 0..REMOVAL_CHECKS {
        match find() {
            Some(other) if other.guid != guid => {
                return Err(OpenError::ForeignAdapter { name: name.to_owned() });
            }
            Some(Existing { is_present: true, .. }) if check == 0 => {
                tracing::info!(
                    "adapter {name} is left of another process: waiting until Windows has removed it"
                );
            }
            Some(Existing { is_present: true, .. }) => {}
            _ => return Ok(()),
        }
        wait();
    }
    Err(OpenError::Exists { name: name.to_owned() })
}

/// Returns the error of creating the adapter `name`.
fn open_error(name: &str, source: io::Error) -> OpenError {
    let name = name.to_owned();
    match source.raw_os_error().map(system_error) {
        Some(ERROR_ALREADY_EXISTS | ERROR_ALREADY_INITIALIZED) => OpenError::Exists { name },
        Some(ERROR_ACCESS_DENIED) => OpenError::NotAdministrator { name },
        _ => OpenError::Io { action: "create the Wintun adapter", name, source },
    }
}

/// Returns the system's error in a result of COM, which Wintun passes on (\[MS-ERREF\] 2.1, FACILITY_WIN32).
fn system_error(code: i32) -> u32 {
    let code = code.cast_unsigned();
    if code & 0xffff_0000 == 0x8007_0000 { code & 0xffff } else { code }
}

/// Returns the adapter `name`; `None` if there is no such adapter.
fn existing(name: &str) -> Option<Existing> {
    let alias: Vec<u16> = name.encode_utf16().chain([0]).collect();
    let mut luid = NET_LUID_LH::default();
    let mut guid = GUID::from_u128(0);
    // SAFETY: the alias ends with a zero, and the results live until after the calls.
    let found = unsafe {
        ConvertInterfaceAliasToLuid(alias.as_ptr(), &raw mut luid) == NO_ERROR
            && ConvertInterfaceLuidToGuid(ptr::from_ref(&luid), &raw mut guid) == NO_ERROR
    };
    let mut row = MIB_IF_ROW2 { InterfaceLuid: luid, ..MIB_IF_ROW2::default() };
    found.then(|| Existing {
        guid: number_of(&guid),
        // SAFETY: the row says which interface is asked for, and lives until after the call.
        is_present: unsafe { GetIfEntry2(&raw mut row) } == NO_ERROR
            && row.OperStatus != IfOperStatusNotPresent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_just_after_a_boot_is_tried_again() {
        let refused = || OpenError::Io {
            action: "create the Wintun adapter",
            name: "wg0".to_owned(),
            source: io::Error::other("not yet"),
        };
        let (mut calls, mut waits) = (0, 0);
        let mut until = |success: u32, attempts| {
            (calls, waits) = (0, 0);
            let attempt = || {
                calls += 1;
                if calls == success { Ok(()) } else { Err(refused()) }
            };
            let is_created = retried(attempts, attempt, || waits += 1).is_ok();
            (is_created, calls, waits)
        };
        assert_eq!(until(1, 15), (true, 1, 0));
        assert_eq!(until(15, 15), (true, 15, 14));
        assert_eq!(until(16, 15), (false, 15, 14));
        assert_eq!(until(2, 1), (false, 1, 0));
    }

    #[test]
    fn what_a_later_attempt_does_not_change_is_not_tried_again() {
        let foreign = || Err::<(), _>(OpenError::ForeignAdapter { name: "wg0".to_owned() });
        let error = retried(15, foreign, || panic!("it waited")).unwrap_err();
        assert!(matches!(error, OpenError::ForeignAdapter { .. }));
    }

    const GUID: u128 = 7;

    /// Claims a name whose adapter is found so. Returns what came of it and the number of waits.
    fn claimed(found: &[Option<(u128, bool)>]) -> (Result<(), OpenError>, usize) {
        let (mut found, mut waits) = (found.iter().copied(), 0);
        let find = || found.next().unwrap().map(|(guid, is_present)| Existing { guid, is_present });
        let result = claim("wg0", GUID, find, || waits += 1);
        (result, waits)
    }

    #[test]
    fn the_adapter_of_another_program_is_refused_at_once() {
        for is_present in [true, false] {
            let (result, waits) = claimed(&[Some((8, is_present))]);
            assert!(matches!(result, Err(OpenError::ForeignAdapter { .. })) && waits == 0);
        }
    }

    #[test]
    fn the_orphan_of_a_process_that_ended_is_waited_for() {
        assert!(matches!(claimed(&[None]), (Ok(()), 0)));
        // What Windows only remembers is no adapter: Wintun creates it again.
        assert!(matches!(claimed(&[Some((GUID, false))]), (Ok(()), 0)));
        assert!(matches!(claimed(&[Some((GUID, true)), Some((GUID, true)), None]), (Ok(()), 2)));
        assert!(matches!(claimed(&[Some((GUID, true)), Some((GUID, false))]), (Ok(()), 1)));
        // Another program took the name meanwhile.
        let (result, _) = claimed(&[Some((GUID, true)), Some((8, true))]);
        assert!(matches!(result, Err(OpenError::ForeignAdapter { .. })));
    }

    #[test]
    fn an_adapter_that_another_weft_keeps_is_never_opened() {
        let (result, waits) = claimed(&[Some((GUID, true)); REMOVAL_CHECKS as usize]);
        assert!(matches!(result, Err(OpenError::Exists { .. })));
        assert_eq!(waits, REMOVAL_CHECKS as usize);
    }

    #[test]
    fn an_error_of_the_system_is_understood_also_inside_a_result_of_com() {
        let of = |code: u32| open_error("wg0", io::Error::from_raw_os_error(code.cast_signed()));
        for (code, com) in [(ERROR_ACCESS_DENIED, 0x8007_0005), (ERROR_ALREADY_EXISTS, 0x8007_00b7)] {
            assert_eq!(of(code).to_string(), of(com).to_string());
        }
        let denied = of(ERROR_ACCESS_DENIED);
        assert_eq!(denied.to_string(), "not allowed to create interface wg0: run weft as an administrator");
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        assert!(matches!(of(ERROR_ALREADY_INITIALIZED), OpenError::Exists { .. }));
        assert!(matches!(of(0x8004_0005), OpenError::Io { .. }));
    }

    #[test]
    fn an_adapter_that_does_not_exist_is_not_found() {
        assert!(existing("weft-test-none").is_none());
    }
}
