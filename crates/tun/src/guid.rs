//! The GUIDs of what weft makes on Windows. They follow from names, so that a later process finds the objects again.

/// Returns the GUID of weft's adapter of this name. Windows keeps the settings of a network by it.
pub fn of_adapter(name: &str) -> u128 {
    of("adapter", name)
}

/// Returns the GUID of the object of this kind with this name: FNV-1a of 128 bits, as a UUID of version 8
/// (RFC 9562).
pub fn of(kind: &str, name: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let text = [b"weft ", kind.as_bytes(), b" ", name.as_bytes()];
    let hash =
        text.into_iter().flatten().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    let version_and_variant = 0xf << 76 | 0x3 << 62;
    hash & !version_and_variant | 0x8 << 76 | 0x2 << 62
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_of_a_kind_has_its_own_guid_and_keeps_it() {
        assert_eq!(of_adapter("wg0"), of("adapter", "wg0"));
        assert_ne!(of_adapter("wg0"), of_adapter("wg1"));
        assert_ne!(of_adapter("wg0"), of("sublayer", "wg0"));
        // A later version has to find what an earlier one made.
        assert_eq!(format!("{:032x}", of_adapter("wg0")), "9b4c6bbeccb4864780ee1202f35a198a");
    }
}
