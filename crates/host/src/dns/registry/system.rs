//! The registry of this machine, and the service `Dnscache`, which looks names up.

use std::io;
use std::ptr;

use windows_sys::Win32::Foundation::{ERROR_SERVICE_DOES_NOT_EXIST, ERROR_SERVICE_NOT_ACTIVE};
use windows_sys::Win32::System::GroupPolicy::{RP_FORCE, RefreshPolicyEx};
use windows_sys::Win32::System::Services::{
    CloseServiceHandle, ControlService, OpenSCManagerW, OpenServiceW, SC_HANDLE, SC_MANAGER_CONNECT,
    SERVICE_CONTROL_PARAMCHANGE, SERVICE_PAUSE_CONTINUE, SERVICE_STATUS,
};
use windows_sys::core::{BOOL, w};
use winreg::HKLM;
use winreg::enums::{
    KEY_CREATE_SUB_KEY, KEY_SET_VALUE, REG_OPTION_NON_VOLATILE, REG_OPTION_VOLATILE, RegType,
};
use winreg::types::FromRegValue as _;

use super::{Table, Value, ValueChange};

#[link(name = "dnsapi", kind = "raw-dylib")]
unsafe extern "system" {
    /// Has the DNS client forget its answers. Returns 0 if there is none.
    fn DnsFlushResolverCache() -> BOOL;
}

/// This machine.
pub(in super::super) struct System;

impl Table for System {
    fn keys(&self, key: &str) -> io::Result<Option<Vec<String>>> {
        let Some(key) = found(HKLM.open_subkey(key))? else { return Ok(None) };
        key.enum_keys().collect::<io::Result<_>>().map(Some)
    }

    fn value(&self, key: &str, name: &str) -> io::Result<Option<Value>> {
        let Some(key) = found(HKLM.open_subkey(key))? else { return Ok(None) };
        let Some(value) = found(key.get_raw_value(name))? else { return Ok(None) };
        Ok(Some(match value.vtype {
            RegType::REG_SZ | RegType::REG_EXPAND_SZ => Value::Text(String::from_reg_value(&value)?),
            RegType::REG_MULTI_SZ => Value::List(Vec::from_reg_value(&value)?),
            RegType::REG_DWORD => Value::Number(u32::from_reg_value(&value)?),
            other => return Err(io::Error::other(format!("{name} is of the type {other:?}"))),
        }))
    }

    fn make(&self, change: &ValueChange) -> io::Result<()> {
        match change {
            ValueChange::Create { key, lasts } => create(key, *lasts),
            ValueChange::Set { key, name, value } => {
                let key = HKLM.open_subkey_with_flags(key, KEY_SET_VALUE)?;
                match value {
                    Value::Text(text) => key.set_value(name, text),
                    Value::List(items) => key.set_value(name, items),
                    Value::Number(number) => key.set_value(name, number),
                }
            }
            ValueChange::Unset { key, name } => {
                let Some(key) = found(HKLM.open_subkey_with_flags(key, KEY_SET_VALUE))? else {
                    return Ok(());
                };
                found(key.delete_value(name)).map(drop)
            }
            ValueChange::Remove { key } => found(HKLM.delete_subkey(key)).map(drop),
        }
    }

    fn announce(&self, with_policy: bool) -> io::Result<()> {
        // SAFETY: the call takes numbers.
        let refreshed = match with_policy && unsafe { RefreshPolicyEx(1, RP_FORCE) } == 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        };
        let told = tell_service();
        // SAFETY: the call takes nothing. Without a DNS client there is nothing to forget.
        unsafe { DnsFlushResolverCache() };
        refreshed.and(told)
    }
}

fn create(key: &str, lasts: bool) -> io::Result<()> {
    // The call would create the keys above it too: an empty table of Group Policy takes all others out of
    // force.
    let (parent, name) = key.rsplit_once('\\').ok_or(io::ErrorKind::InvalidInput)?;
    let parent = HKLM.open_subkey_with_flags(parent, KEY_CREATE_SUB_KEY)?;
    let options = if lasts { REG_OPTION_NON_VOLATILE } else { REG_OPTION_VOLATILE };
    parent.create_subkey_with_options_flags(name, options, KEY_SET_VALUE).map(drop)
}

/// Has the DNS client read its settings.
fn tell_service() -> io::Result<()> {
    // SAFETY: the names end with a zero.
    let manager = Service::opened(unsafe { OpenSCManagerW(ptr::null(), ptr::null(), SC_MANAGER_CONNECT) })?;
    // SAFETY: as above, and the manager is open.
    let client = Service::opened(unsafe { OpenServiceW(manager.0, w!("Dnscache"), SERVICE_PAUSE_CONTINUE) });
    let told = client.and_then(|client| {
        let mut status = SERVICE_STATUS::default();
        // SAFETY: the service is open, and the status outlives the call.
        let told = unsafe { ControlService(client.0, SERVICE_CONTROL_PARAMCHANGE, &raw mut status) };
        if told == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    });
    match told {
        // Programs read the registry themselves then.
        Err(error) if is_off(&error) => {
            tracing::debug!("the DNS client of Windows does not run: {error}");
            Ok(())
        }
        told => told,
    }
}

fn is_off(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(i32::cast_unsigned);
    matches!(code, Some(ERROR_SERVICE_DOES_NOT_EXIST | ERROR_SERVICE_NOT_ACTIVE))
}

/// Converts the absence of a key or a value.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// An open handle of the service manager.
struct Service(SC_HANDLE);

impl Service {
    fn opened(handle: SC_HANDLE) -> io::Result<Self> {
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(handle)) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // SAFETY: it is open, and nothing else closes it.
        unsafe { CloseServiceHandle(self.0) };
    }
}

#[cfg(test)]
#[path = "system_tests.rs"]
mod tests;
