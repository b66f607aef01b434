//! The GUIDs by which Windows knows what belongs to an interface.

/// Returns a GUID for a thing of an interface, such as its `adapter`. The same things have the same GUID in
/// every process: Windows keeps settings by it, and a later process finds them.
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

/// Returns a GUID as the number that `GUID::from_u128` takes.
#[cfg(windows)]
pub fn number_of(guid: &windows_sys::core::GUID) -> u128 {
    let windows_sys::core::GUID { data1, data2, data3, data4 } = *guid;
    u128::from(data1) << 96
        | u128::from(data2) << 80
        | u128::from(data3) << 64
        | u128::from(u64::from_be_bytes(data4))
}

#[cfg(test)]
mod tests {
    use super::guid_of;

    #[cfg(windows)]
    #[test]
    fn a_guid_is_the_number_that_it_was_made_of() {
        let key = 0x6d3c_2f0e_51b7_8c94_a2e8_0b7d_4f16_93c5;
        assert_eq!(super::number_of(&windows_sys::core::GUID::from_u128(key)), key);
    }

    #[test]
    fn each_thing_of_each_interface_has_its_own_guid_and_keeps_it() {
        // Windows knows the adapters of users by these.
        assert_eq!(format!("{:032x}", guid_of("adapter", "wg0")), "9b4c6bbeccb4864780ee1202f35a198a");
        assert_ne!(guid_of("adapter", "wg0"), guid_of("adapter", "wg1"));
        assert_ne!(guid_of("adapter", "wg0"), guid_of("DNS rule", "wg0"));
    }
}
