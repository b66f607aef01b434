//! The users that may use an object of Windows, and its owner.

use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr;

use windows_sys::Win32::Foundation::{ERROR_SUCCESS, HLOCAL, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW,
    ConvertStringSecurityDescriptorToSecurityDescriptorW, GetSecurityInfo, SDDL_REVISION_1, SE_KERNEL_OBJECT,
};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, EqualSid, GetTokenInformation, IsWellKnownSid, OBJECT_SECURITY_INFORMATION,
    OWNER_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID, SECURITY_ATTRIBUTES, SECURITY_MAX_SID_SIZE,
    TOKEN_QUERY, TOKEN_USER, TokenUser, WinBuiltinAdministratorsSid, WinLocalSystemSid,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

pub use crate::pipe_rules::Owner;

/// Returns a text with a zero at its end, as calls take it.
pub(crate) fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Memory that LocalFree frees.
struct Local(HLOCAL);

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: the functions that fill it allocate so, and nothing else frees it.
        unsafe { LocalFree(self.0) };
    }
}

/// Who may do what with a new object.
pub struct Descriptor(Local);

impl Descriptor {
    /// Reads a description (SDDL, \[MS-DTYP\] 2.5.1).
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> io::Result<Self> {
        let text = wide(text);
        let mut descriptor: PSECURITY_DESCRIPTOR = ptr::null_mut();
        // SAFETY: the text ends with a zero, and the variable outlives the call.
        let converted = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                ptr::null_mut(),
            )
        };
        if converted == 0 { Err(io::Error::last_os_error()) } else { Ok(Self(Local(descriptor))) }
    }

    /// Returns the attributes of a new object, which are valid as long as this descriptor.
    pub fn attributes(&self) -> SECURITY_ATTRIBUTES {
        SECURITY_ATTRIBUTES {
            nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
            lpSecurityDescriptor: self.0.0,
            bInheritHandle: 0,
        }
    }
}

impl Owner {
    /// Returns the owner of an open file or pipe.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(object: &impl AsHandle) -> io::Result<Self> {
        let (_descriptor, owner) = security_of(object, OWNER_SECURITY_INFORMATION)?;
        // A file system without owners has none.
        if owner.is_null() {
            return Ok(Self::Other);
        }
        // SAFETY: the owner points into the descriptor, which is freed after this.
        let is = |kind| unsafe { IsWellKnownSid(owner, kind) } != 0;
        if is(WinLocalSystemSid) {
            return Ok(Self::System);
        }
        if is(WinBuiltinAdministratorsSid) {
            return Ok(Self::Administrators);
        }
        // SAFETY: as above.
        Ok(if unsafe { is_own(owner)? } { Self::Own } else { Self::Other })
    }
}

/// Returns the access rights of an open object, in the form that [`Descriptor::parse`] reads.
///
/// # Errors
/// When it cannot be read.
pub fn access_of(object: &impl AsHandle) -> io::Result<String> {
    let (descriptor, _) = security_of(object, DACL_SECURITY_INFORMATION)?;
    let mut text = ptr::null_mut();
    let mut length = 0;
    // SAFETY: the descriptor is one, and the two results outlive the call.
    let converted = unsafe {
        ConvertSecurityDescriptorToStringSecurityDescriptorW(
            descriptor.0,
            SDDL_REVISION_1,
            DACL_SECURITY_INFORMATION,
            &raw mut text,
            &raw mut length,
        )
    };
    if converted == 0 {
        return Err(io::Error::last_os_error());
    }
    let _text = Local(text.cast());
    // SAFETY: the call has written as many, and they are freed after this.
    let text = unsafe { std::slice::from_raw_parts(text, length as usize) };
    Ok(String::from_utf16_lossy(text).trim_end_matches('\0').to_owned())
}

/// Returns a part of an object's descriptor, and the owner in it if it is asked for.
fn security_of(object: &impl AsHandle, part: OBJECT_SECURITY_INFORMATION) -> io::Result<(Local, PSID)> {
    let mut owner: PSID = ptr::null_mut();
    let mut descriptor: PSECURITY_DESCRIPTOR = ptr::null_mut();
    // SAFETY: the handle is open, and the two variables outlive the call. The others are not asked for.
    let result = unsafe {
        GetSecurityInfo(
            object.as_handle().as_raw_handle(),
            // Files and pipes are objects of the kernel too.
            SE_KERNEL_OBJECT,
            part,
            &raw mut owner,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            &raw mut descriptor,
        )
    };
    match result {
        ERROR_SUCCESS => Ok((Local(descriptor), owner)),
        error => Err(io::Error::from_raw_os_error(error.cast_signed())),
    }
}

/// Reports whether a SID is that of this process's user.
///
/// # Safety
/// It points to a SID.
unsafe fn is_own(sid: PSID) -> io::Result<bool> {
    /// What the call fills: the SID is behind the structure that points to it.
    #[repr(C)]
    struct User {
        user: TOKEN_USER,
        sid: [u8; SECURITY_MAX_SID_SIZE as usize],
    }
    let mut token = ptr::null_mut();
    // SAFETY: the handle of this process is always valid, and the result outlives the call.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just opened it, and nothing else has it.
    let token = unsafe { OwnedHandle::from_raw_handle(token) };
    let mut user = User { user: TOKEN_USER::default(), sid: [0; SECURITY_MAX_SID_SIZE as usize] };
    let mut length = 0;
    // SAFETY: the token is open, and the call writes no more than the length of the structure, which outlives
    // it.
    let known = unsafe {
        GetTokenInformation(
            token.as_raw_handle(),
            TokenUser,
            (&raw mut user).cast(),
            size_of::<User>() as u32,
            &raw mut length,
        )
    };
    if known == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are SIDs.
    Ok(unsafe { EqualSid(sid, user.user.User.Sid) } != 0)
}
