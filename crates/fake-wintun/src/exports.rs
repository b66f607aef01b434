//! The functions of wintun.h.
#![allow(non_snake_case, reason = "these are the names of the library")]
#![allow(unreachable_pub, reason = "other programs reach them")]
#![allow(clippy::missing_safety_doc, reason = "wintun.h has the contracts")]

use std::ffi::c_void;
use std::ptr;

use windows_sys::Win32::Foundation::{
    ERROR_BUFFER_OVERFLOW, ERROR_FILE_NOT_FOUND, ERROR_NO_MORE_ITEMS, HANDLE, SetLastError,
};
use windows_sys::Win32::NetworkManagement::IpHelper::ConvertInterfaceIndexToLuid;
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;

use crate::session::{Session, variable};

/// An adapter, which has nothing but its address.
pub struct Adapter(#[allow(dead_code, reason = "its address tells adapters apart")] u8);

/// The version of the driver: 0.14.
const VERSION: u32 = 14;

fn set_error(code: u32) {
    // SAFETY: it changes a value of this thread.
    unsafe { SetLastError(code) }
}

#[unsafe(no_mangle)]
pub extern "system" fn WintunCreateAdapter(
    _name: *const u16,
    _tunnel_type: *const u16,
    _guid: *const c_void,
) -> *mut Adapter {
    Box::into_raw(Box::new(Adapter(0)))
}

#[unsafe(no_mangle)]
pub extern "system" fn WintunOpenAdapter(_name: *const u16) -> *mut Adapter {
    set_error(ERROR_FILE_NOT_FOUND);
    ptr::null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunCloseAdapter(adapter: *mut Adapter) {
    // SAFETY: it is an adapter of `WintunCreateAdapter`, which is not used any more.
    drop(unsafe { Box::from_raw(adapter) });
}

#[unsafe(no_mangle)]
pub extern "system" fn WintunDeleteDriver() -> i32 {
    1
}

#[unsafe(no_mangle)]
pub extern "system" fn WintunGetRunningDriverVersion() -> u32 {
    VERSION
}

#[unsafe(no_mangle)]
pub extern "system" fn WintunSetLogger(_logger: *const c_void) {}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunGetAdapterLUID(_adapter: *mut Adapter, luid: *mut NET_LUID_LH) {
    let index = variable("WEFT_FAKE_WINTUN_INDEX").unwrap_or(1);
    // SAFETY: the caller has room for a LUID.
    let status = unsafe { ConvertInterfaceIndexToLuid(index, luid) };
    if status != 0 {
        eprintln!("fake wintun: there is no interface {index}: {status}");
    }
}

#[unsafe(no_mangle)]
pub extern "system" fn WintunStartSession(_adapter: *mut Adapter, ring_bytes: u32) -> *mut Session {
    match Session::start(ring_bytes) {
        Ok(session) => Box::into_raw(Box::new(session)),
        Err(error) => {
            eprintln!("fake wintun: {error}");
            set_error(error.raw_os_error().unwrap_or_default().cast_unsigned());
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunEndSession(session: *mut Session) {
    // SAFETY: it is a session of `WintunStartSession`, which is not used any more.
    drop(unsafe { Box::from_raw(session) });
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunGetReadWaitEvent(session: *mut Session) -> HANDLE {
    // SAFETY: it is a session that has not ended.
    unsafe { &*session }.readable()
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunReceivePacket(session: *mut Session, len: *mut u32) -> *mut u8 {
    // SAFETY: it is a session that has not ended.
    let Some((packet, bytes)) = unsafe { &*session }.receive() else {
        set_error(ERROR_NO_MORE_ITEMS);
        return ptr::null_mut();
    };
    // SAFETY: the caller has room for the length.
    unsafe { *len = bytes };
    packet
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunReleaseReceivePacket(session: *mut Session, packet: *const u8) {
    // SAFETY: it is a session that has not ended.
    drop(unsafe { &*session }.take(packet));
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunAllocateSendPacket(session: *mut Session, len: u32) -> *mut u8 {
    // SAFETY: it is a session that has not ended.
    unsafe { &*session }.allocate(len).unwrap_or_else(|| {
        set_error(ERROR_BUFFER_OVERFLOW);
        ptr::null_mut()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn WintunSendPacket(session: *mut Session, packet: *const u8) {
    // SAFETY: it is a session that has not ended.
    unsafe { &*session }.send(packet);
}
