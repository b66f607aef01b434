//! Creates an adapter, and leaves those of other programs alone.

use std::time::Duration;
use std::{ptr, thread};

use tun_rs::{DeviceBuilder, SyncDevice};
use windows_sys::Win32::Foundation::{ERROR_ALREADY_EXISTS, ERROR_ALREADY_INITIALIZED, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, ConvertInterfaceLuidToGuid,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::System::SystemInformation::GetTickCount64;
use windows_sys::core::GUID;

use crate::config::OpenError;
use crate::guid::{guid_of, number_of};

/// How long after a boot the services that the driver needs may not run yet.
const BOOT: Duration = Duration::from_mins(10);
/// How often an adapter is tried to create then, and the pause between two attempts.
const ATTEMPTS: u32 = 15;
const PAUSE: Duration = Duration::from_secs(1);

/// Creates the adapter `name` with the library at `library`, and rings of `ring_bytes` bytes. Just after a boot this
/// waits for the services that the driver needs.
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
    // tun-rs would open the adapter of another program. One of weft's may be left of a process that crashed.
    if existing(name).is_some_and(|existing| existing != guid) {
        return Err(OpenError::ForeignAdapter { name: name.to_owned() });
    }
    let builder = DeviceBuilder::new().name(name).enable(true).with(|builder| {
        builder
            .wintun_file(library.to_owned())
            .ring_capacity(ring_bytes)
            .device_guid(guid)
            .description("weft");
    });
    builder.build_sync().map_err(|source| {
        let name = name.to_owned();
        match source.raw_os_error().map(i32::cast_unsigned) {
            Some(ERROR_ALREADY_EXISTS | ERROR_ALREADY_INITIALIZED) => OpenError::Exists { name },
            _ if source.kind() == std::io::ErrorKind::PermissionDenied => {
                OpenError::NotAdministrator { name }
            }
            _ => OpenError::Io { action: "create the Wintun adapter", name, source },
        }
    })
}

/// Returns the GUID of the adapter `name`; `None` if there is no such adapter.
fn existing(name: &str) -> Option<u128> {
    let alias: Vec<u16> = name.encode_utf16().chain([0]).collect();
    let mut luid = NET_LUID_LH::default();
    let mut guid = GUID::from_u128(0);
    // SAFETY: the alias ends with a zero, and the results live until after the calls.
    let found = unsafe {
        ConvertInterfaceAliasToLuid(alias.as_ptr(), &raw mut luid) == NO_ERROR
            && ConvertInterfaceLuidToGuid(ptr::from_ref(&luid), &raw mut guid) == NO_ERROR
    };
    found.then(|| number_of(&guid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_just_after_a_boot_is_tried_again() {
        let refused = || OpenError::Io {
            action: "create the Wintun adapter",
            name: "wg0".to_owned(),
            source: std::io::Error::other("not yet"),
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

    #[test]
    fn an_adapter_that_does_not_exist_has_no_guid() {
        assert_eq!(existing("weft-test-none"), None);
    }
}
