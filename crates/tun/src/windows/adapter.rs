//! Creates an adapter, and leaves those of other programs alone.

use std::ptr;

use tun_rs::{DeviceBuilder, SyncDevice};
use windows_sys::Win32::Foundation::{ERROR_ALREADY_EXISTS, ERROR_ALREADY_INITIALIZED, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, ConvertInterfaceLuidToGuid,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::core::GUID;

use crate::config::OpenError;
use crate::guid;

/// Bytes of each ring: what 10 Gbit/s bring in 13 ms.
const RING_BYTES: u32 = 16 << 20;

/// Creates the adapter `name` with the library at `library`.
pub(super) fn create(name: &str, library: &str) -> Result<SyncDevice, OpenError> {
    let guid = guid::of_adapter(name);
    // tun-rs would open the adapter of another program. One of weft's may be left of a process that crashed.
    if existing(name).is_some_and(|existing| existing != guid) {
        return Err(OpenError::ForeignAdapter { name: name.to_owned() });
    }
    let builder = DeviceBuilder::new().name(name).enable(true).with(|builder| {
        builder
            .wintun_file(library.to_owned())
            .ring_capacity(RING_BYTES)
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
    found.then(|| {
        let GUID { data1, data2, data3, data4 } = guid;
        u128::from(data1) << 96
            | u128::from(data2) << 80
            | u128::from(data3) << 64
            | u128::from(u64::from_be_bytes(data4))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_that_does_not_exist_has_no_guid() {
        assert_eq!(existing("weft-test-none"), None);
    }
}
