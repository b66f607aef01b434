/// Not known here: the next read or write tells.
pub fn is_hung_up<S>(_: S) -> bool {
    false
}
