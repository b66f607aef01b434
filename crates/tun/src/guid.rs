//! The GUIDs by which Windows knows what belongs to an interface.

/// Returns a GUID for a thing of an interface, such as its `adapter`. The same things have the same GUID in every
/// process: Windows keeps settings by it, and a later process finds them.
///
/// FNV-1a of 128 bits, as a UUID of version 8 (RFC 9562).
pub fn guid_of(thing: &str, interface: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let text = format!("weft {thing} {interface}");
    let hash = text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    let version_and_variant = 0xf << 76 | 0x3 << 62;
    hash & !version_and_variant | 0x8 << 76 | 0x2 << 62
}

#[cfg(test)]
mod tests {
    use super::guid_of;

    #[test]
    fn each_thing_of_each_interface_has_its_own_guid_and_keeps_it() {
        // Windows knows the adapters of users by these.
        assert_eq!(format!("{:032x}", guid_of("adapter", "wg0")), "9b4c6bbeccb4864780ee1202f35a198a");
        assert_ne!(guid_of("adapter", "wg0"), guid_of("adapter", "wg1"));
        assert_ne!(guid_of("adapter", "wg0"), guid_of("DNS rule", "wg0"));
    }
}
