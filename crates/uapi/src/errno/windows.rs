//! The numbers that wg.exe expects: ERROR_INVALID_PARAMETER, ERROR_INVALID_NAME, ERROR_ALREADY_EXISTS and
//! ERROR_BROKEN_PIPE (Windows' system error codes).

pub(super) const INVALID: i32 = 87;
pub(super) const PROTOCOL: i32 = 123;
pub(super) const PORT_IN_USE: i32 = 183;
pub(super) const IO: i32 = 109;
