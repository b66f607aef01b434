//! The filter engine of this machine.

use std::ffi::OsStr;
use std::os::windows::ffi::OsStrExt as _;
use std::ptr;

use weft_config::InterfaceName;
use weft_tun::number_of;
use windows_sys::Win32::Foundation::{HANDLE, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::ConvertInterfaceGuidToLuid;
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::NetworkManagement::WindowsFilteringPlatform::*;
use windows_sys::Win32::System::Rpc::RPC_C_AUTHN_DEFAULT;
use windows_sys::core::GUID;

use super::super::error::FirewallError;
use super::super::{Present, Recognises, Rules};
use super::filters::Filter;
use super::{CallError, Engine, PREFIX, PROVIDER, Sublayer};

mod raw;

/// By what rules recognise the tunnel's own packets.
pub(crate) const RECOGNISES: Recognises = Recognises::Programs;

/// Replaces the rules of the interface with exactly these, in one transaction.
///
/// # Errors
/// Those of [`FirewallError`]; the rules are unchanged then.
pub fn apply(rules: &Rules) -> Result<(), FirewallError> {
    let action = format!("set the firewall rules of {}", rules.interface);
    super::apply(&Session::open(&action)?, rules)
}

/// Checks whether the system would accept these rules; nothing is changed.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn check(rules: &Rules) -> Result<(), FirewallError> {
    let action = format!("check the firewall rules of {}", rules.interface);
    super::check(&Session::open(&action)?, rules)
}

/// Removes everything that [`apply`] can have set for an interface, also in an earlier run of the daemon. It
/// is no error if there is nothing.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn remove(interface: &InterfaceName) -> Result<(), FirewallError> {
    let action = format!("remove the firewall rules of {interface}");
    super::if_any(Session::open(&action))?.map_or(Ok(()), |session| super::remove(&session, interface))
}

/// Returns the sublayer of an interface, if there is one.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn present(interface: &InterfaceName) -> Result<Present, FirewallError> {
    let action = format!("read the firewall rules of {interface}");
    super::if_any(Session::open(&action))?
        .map_or(Ok(Present::default()), |session| super::present(&session, interface))
}

/// Returns where the kill switch of an interface is.
pub(crate) fn own_place(interface: &InterfaceName) -> String {
    super::place(interface)
}

/// Returns the command that removes the kill switch of an interface: Windows has none for it.
pub(crate) fn removing_command(interface: &InterfaceName) -> String {
    format!("weft down {interface}")
}

/// How many objects are read at once.
const BATCH: u32 = 64;
/// FWP_E_PROVIDER_NOT_FOUND and FWP_E_NOT_FOUND, which are HRESULTs.
const PROVIDER_NOT_FOUND: u32 = 0x8032_0005;
const NOT_FOUND: u32 = 0x8032_0008;

/// A session with the filter engine. Closing it takes back a transaction that is not committed.
struct Session(HANDLE);

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the handle is that of an open session, and is not used again.
        unsafe { FwpmEngineClose0(self.0) };
    }
}

impl Session {
    fn open(action: &str) -> Result<Self, FirewallError> {
        let mut name = wide("weft");
        let session = FWPM_SESSION0 { displayData: display(&mut name), ..FWPM_SESSION0::default() };
        let mut handle = ptr::null_mut();
        // SAFETY: the session and its name live until after the call, and null means this machine and this
        // user.
        let code = unsafe {
            FwpmEngineOpen0(
                ptr::null(),
                RPC_C_AUTHN_DEFAULT.cast_unsigned(),
                ptr::null(),
                &raw const session,
                &raw mut handle,
            )
        };
        told("FwpmEngineOpen0", code).map_err(|error| super::failed(action, error))?;
        Ok(Self(handle))
    }

    /// Reads all objects of a kind, by its calls: one that begins, one that reads the next objects, one that
    /// ends.
    fn read<T>(
        &self,
        call: &'static str,
        begin: impl FnOnce(*mut HANDLE) -> u32,
        next: impl Fn(HANDLE, *mut *mut *mut T, *mut u32) -> u32,
        end: impl FnOnce(HANDLE) -> u32,
        mut each: impl FnMut(&T),
    ) -> Result<(), CallError> {
        let mut reading = ptr::null_mut();
        told(call, begin(&raw mut reading))?;
        let result = loop {
            let (mut entries, mut count) = (ptr::null_mut(), 0);
            let code = next(reading, &raw mut entries, &raw mut count);
            if code != NO_ERROR {
                break told(call, code);
            }
            for place in 0..count as usize {
                // SAFETY: after a success there are `count` pointers to objects, which live until they are
                // freed.
                each(unsafe { &**entries.add(place) });
            }
            if !entries.is_null() {
                // SAFETY: the engine allocated the entries, and nothing refers to them any more.
                unsafe { FwpmFreeMemory0((&raw mut entries).cast()) };
            }
            if count < BATCH {
                break Ok(());
            }
        };
        end(reading);
        result
    }
}

impl Engine for Session {
    fn begin(&self) -> Result<(), CallError> {
        // SAFETY: the session is open.
        told("FwpmTransactionBegin0", unsafe { FwpmTransactionBegin0(self.0, 0) })
    }

    fn commit(&self) -> Result<(), CallError> {
        // SAFETY: the session is open.
        told("FwpmTransactionCommit0", unsafe { FwpmTransactionCommit0(self.0) })
    }

    fn abort(&self) -> Result<(), CallError> {
        // SAFETY: the session is open.
        told("FwpmTransactionAbort0", unsafe { FwpmTransactionAbort0(self.0) })
    }

    fn program(&self) -> Result<Vec<u8>, CallError> {
        const CALL: &str = "FwpmGetAppIdFromFileName0";
        let path = std::env::current_exe().map_err(|error| CallError {
            call: "GetModuleFileNameW",
            code: error.raw_os_error().map_or(2, i32::cast_unsigned),
        })?;
        let path = wide(path);
        let mut blob = ptr::null_mut();
        // SAFETY: the path ends with a zero and lives until after the call.
        told(CALL, unsafe { FwpmGetAppIdFromFileName0(path.as_ptr(), &raw mut blob) })?;
        // SAFETY: after a success the blob points to its bytes, until it is freed.
        let id = unsafe { std::slice::from_raw_parts((*blob).data, (*blob).size as usize) }.to_vec();
        // SAFETY: the engine allocated the blob, and nothing refers to it any more.
        unsafe { FwpmFreeMemory0((&raw mut blob).cast()) };
        Ok(id)
    }

    fn luid(&self, adapter: u128) -> Option<u64> {
        let (guid, mut luid) = (GUID::from_u128(adapter), NET_LUID_LH::default());
        // SAFETY: both live until after the call.
        let code = unsafe { ConvertInterfaceGuidToLuid(&raw const guid, &raw mut luid) };
        // SAFETY: both variants of the union are 64 bits, of which any value is valid.
        let luid = unsafe { luid.Value };
        (code == NO_ERROR).then_some(luid)
    }

    fn has_provider(&self) -> Result<bool, CallError> {
        let (key, mut provider) = (GUID::from_u128(PROVIDER), ptr::null_mut());
        // SAFETY: the session is open, and the key lives until after the call.
        match unsafe { FwpmProviderGetByKey0(self.0, &raw const key, &raw mut provider) } {
            PROVIDER_NOT_FOUND | NOT_FOUND => Ok(false),
            code => {
                told("FwpmProviderGetByKey0", code)?;
                // SAFETY: the engine allocated the provider, and nothing refers to it.
                unsafe { FwpmFreeMemory0((&raw mut provider).cast()) };
                Ok(true)
            }
        }
    }

    fn add_provider(&self) -> Result<(), CallError> {
        let mut name = wide("weft");
        let provider = FWPM_PROVIDER0 {
            providerKey: GUID::from_u128(PROVIDER),
            displayData: display(&mut name),
            flags: FWPM_PROVIDER_FLAG_PERSISTENT,
            ..FWPM_PROVIDER0::default()
        };
        // SAFETY: the session is open, the provider and its name live until after the call, and null means
        // the default access: of administrators.
        told("FwpmProviderAdd0", unsafe { FwpmProviderAdd0(self.0, &raw const provider, ptr::null_mut()) })
    }

    fn delete_provider(&self) -> Result<(), CallError> {
        let key = GUID::from_u128(PROVIDER);
        // SAFETY: the session is open, and the key lives until after the call.
        told("FwpmProviderDeleteByKey0", unsafe { FwpmProviderDeleteByKey0(self.0, &raw const key) })
    }

    fn sublayers(&self) -> Result<Vec<Sublayer>, CallError> {
        let mut sublayers = Vec::new();
        self.read(
            "FwpmSubLayerEnum0",
            // SAFETY: the session is open, and null asks for all.
            |reading| unsafe { FwpmSubLayerCreateEnumHandle0(self.0, ptr::null(), reading) },
            // SAFETY: the session is open, and the pointers are those of `read`.
            |reading, entries, count| unsafe { FwpmSubLayerEnum0(self.0, reading, BATCH, entries, count) },
            // SAFETY: the session is open, and the handle is not used again.
            |reading| unsafe { FwpmSubLayerDestroyEnumHandle0(self.0, reading) },
            |sublayer: &FWPM_SUBLAYER0| {
                // SAFETY: the key of a provider is null or points to a GUID, and the name is null or ends
                // with a zero, as long as the sublayer lives.
                let (is_own, name) =
                    unsafe { (is_own(sublayer.providerKey), text(sublayer.displayData.name)) };
                if is_own && name.starts_with(PREFIX) {
                    sublayers.push(Sublayer { key: number_of(&sublayer.subLayerKey), name });
                }
            },
        )?;
        Ok(sublayers)
    }

    fn add_sublayer(&self, sublayer: &Sublayer) -> Result<(), CallError> {
        let (mut name, mut provider) = (wide(&sublayer.name), GUID::from_u128(PROVIDER));
        let sublayer = FWPM_SUBLAYER0 {
            subLayerKey: GUID::from_u128(sublayer.key),
            displayData: display(&mut name),
            flags: FWPM_SUBLAYER_FLAG_PERSISTENT,
            providerKey: &raw mut provider,
            // Before the sublayers of others: what is blocked here none of them lets pass.
            weight: u16::MAX,
            ..FWPM_SUBLAYER0::default()
        };
        // SAFETY: the session is open, and the sublayer, its name and the key live until after the call.
        told("FwpmSubLayerAdd0", unsafe { FwpmSubLayerAdd0(self.0, &raw const sublayer, ptr::null_mut()) })
    }

    fn delete_sublayer(&self, key: u128) -> Result<(), CallError> {
        let key = GUID::from_u128(key);
        // SAFETY: the session is open, and the key lives until after the call.
        told("FwpmSubLayerDeleteByKey0", unsafe { FwpmSubLayerDeleteByKey0(self.0, &raw const key) })
    }

    fn filters(&self, sublayer: u128) -> Result<Vec<u128>, CallError> {
        let mut keys = Vec::new();
        self.read(
            "FwpmFilterEnum0",
            // SAFETY: the session is open, and null asks for all.
            |reading| unsafe { FwpmFilterCreateEnumHandle0(self.0, ptr::null(), reading) },
            // SAFETY: the session is open, and the pointers are those of `read`.
            |reading, entries, count| unsafe { FwpmFilterEnum0(self.0, reading, BATCH, entries, count) },
            // SAFETY: the session is open, and the handle is not used again.
            |reading| unsafe { FwpmFilterDestroyEnumHandle0(self.0, reading) },
            |filter: &FWPM_FILTER0| {
                if number_of(&filter.subLayerKey) == sublayer {
                    keys.push(number_of(&filter.filterKey));
                }
            },
        )?;
        Ok(keys)
    }

    fn add_filter(&self, sublayer: &Sublayer, key: u128, filter: &Filter) -> Result<(), CallError> {
        let mut name = wide(format!("{}: {}", sublayer.name, filter.what));
        let mut provider = GUID::from_u128(PROVIDER);
        let values = raw::values(&filter.conditions);
        let mut conditions = raw::conditions(&filter.conditions, &values);
        let (flags, action) = match filter.is_permit {
            // What others block stays blocked.
            true => (FWPM_FILTER_FLAG_PERSISTENT, FWP_ACTION_PERMIT),
            false => (FWPM_FILTER_FLAG_PERSISTENT | FWPM_FILTER_FLAG_CLEAR_ACTION_RIGHT, FWP_ACTION_BLOCK),
        };
        let filter = FWPM_FILTER0 {
            filterKey: GUID::from_u128(key),
            displayData: display(&mut name),
            flags,
            providerKey: &raw mut provider,
            layerKey: raw::layer(filter.layer),
            subLayerKey: GUID::from_u128(sublayer.key),
            weight: FWP_VALUE0 { r#type: FWP_UINT8, Anonymous: FWP_VALUE0_0 { uint8: filter.weight } },
            numFilterConditions: conditions.len() as u32,
            filterCondition: conditions.as_mut_ptr(),
            action: FWPM_ACTION0 { r#type: action, ..FWPM_ACTION0::default() },
            ..FWPM_FILTER0::default()
        };
        // SAFETY: the session is open, and everything that the filter points to lives until after the call.
        let code = unsafe { FwpmFilterAdd0(self.0, &raw const filter, ptr::null_mut(), ptr::null_mut()) };
        told("FwpmFilterAdd0", code)
    }

    fn delete_filter(&self, key: u128) -> Result<(), CallError> {
        let key = GUID::from_u128(key);
        // SAFETY: the session is open, and the key lives until after the call.
        told("FwpmFilterDeleteByKey0", unsafe { FwpmFilterDeleteByKey0(self.0, &raw const key) })
    }
}

fn told(call: &'static str, code: u32) -> Result<(), CallError> {
    if code == NO_ERROR { Ok(()) } else { Err(CallError { call, code }) }
}

fn wide(text: impl AsRef<OsStr>) -> Vec<u16> {
    text.as_ref().encode_wide().chain([0]).collect()
}

/// Returns what the system shows of an object. It points to the name.
fn display(name: &mut [u16]) -> FWPM_DISPLAY_DATA0 {
    FWPM_DISPLAY_DATA0 { name: name.as_mut_ptr(), description: ptr::null_mut() }
}

/// # Safety
/// The key is null or points to a GUID.
unsafe fn is_own(provider: *const GUID) -> bool {
    // SAFETY: that of this function.
    !provider.is_null() && number_of(unsafe { &*provider }) == PROVIDER
}

/// # Safety
/// The text is null or ends with a zero.
unsafe fn text(text: *const u16) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: that of this function; no place behind the zero is read.
    let length = (0..).take_while(|place| unsafe { *text.add(*place) } != 0).count();
    // SAFETY: all of these places come before the zero.
    String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(text, length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_read_by_administrators() {
        let wg0 = "weft-test-none".parse().unwrap();
        match present(&wg0) {
            Ok(present) => assert!(present.is_empty()),
            Err(FirewallError::Permission { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
