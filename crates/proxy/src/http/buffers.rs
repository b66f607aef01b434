//! What hyper holds for a connection and for the head of a request, taken from the budget. The least that
//! each client needs is there also when nothing is left: it is bounded by the number of clients.

use std::sync::Arc;

use hyper::header::HeaderMap;

use crate::budget::{Account, Charge};

/// The smallest buffer that hyper has.
pub(super) const SMALL: usize = 8 * 1024;
/// The bytes that a buffer for reading may have while it grows, and those that wait to be written.
const TIMES: usize = 2 + 1;
/// What a field takes in both maps of hyper: that of values, and that of names as they were written.
pub(super) const FIELD: usize = 256;
/// Fields of a request that is served in any case, in maps that have grown for as many. Browsers send about
/// fifteen.
const FEW_FIELDS: usize = 24;

/// The buffers of one end of a connection.
pub(super) struct Buffers {
    /// The size of each, which bounds a head as well.
    pub(super) bytes: usize,
    _charge: Option<Charge>,
}

impl Buffers {
    /// Takes buffers of `most` bytes if the account has room for them, and else the smallest.
    pub(super) fn take(account: &Arc<Account>, most: usize) -> Self {
        match account.charge(TIMES * most) {
            charge if most <= SMALL || charge.is_some() => Self { bytes: most, _charge: charge },
            _ => Self { bytes: SMALL, _charge: account.charge(TIMES * SMALL) },
        }
    }
}

/// Takes what the fields of a request need while it waits; `None`: they are too many for what is left.
pub(super) fn charge_fields(fields: &HeaderMap, account: &Arc<Account>) -> Option<Option<Charge>> {
    let charge = account.charge(fields.capacity() * FIELD);
    (charge.is_some() || fields.capacity() <= FEW_FIELDS).then_some(charge)
}
