//! Filters in the types of the filter engine.

use ipnet::IpNet;
use windows_sys::Win32::NetworkManagement::WindowsFilteringPlatform::*;
use windows_sys::core::GUID;

use super::super::filters::{Condition, Layer};

/// The types and codes of ICMP are in the places of ports (fwpmu.h).
const ICMP_TYPE: GUID = FWPM_CONDITION_IP_LOCAL_PORT;
const ICMP_CODE: GUID = FWPM_CONDITION_IP_REMOTE_PORT;

/// What a condition points to, if it does not have its value in it.
pub(super) enum Value {
    Inside,
    Number(u64),
    Bytes(FWP_BYTE_BLOB),
    V4(FWP_V4_ADDR_AND_MASK),
    V6(FWP_V6_ADDR_AND_MASK),
}

/// Returns what the conditions point to. It points to bytes in these conditions.
pub(super) fn values(conditions: &[Condition]) -> Vec<Value> {
    let value = |condition: &Condition| match condition {
        Condition::Program(id) => {
            Value::Bytes(FWP_BYTE_BLOB { size: id.len() as u32, data: id.as_ptr().cast_mut() })
        }
        Condition::Interface(luid) | Condition::ForwardedTo(luid) => Value::Number(*luid),
        Condition::Local(net) | Condition::Remote(net) | Condition::Destination(net) => match net {
            IpNet::V4(net) => Value::V4(FWP_V4_ADDR_AND_MASK {
                addr: u32::from(net.addr()),
                mask: u32::from(net.netmask()),
            }),
            IpNet::V6(net) => {
                Value::V6(FWP_V6_ADDR_AND_MASK { addr: net.addr().octets(), prefixLength: net.prefix_len() })
            }
        },
        Condition::Loopback
        | Condition::Protocol(_)
        | Condition::LocalPort(_)
        | Condition::RemotePort(_)
        | Condition::IcmpType(_)
        | Condition::IcmpCode(_) => Value::Inside,
    };
    conditions.iter().map(value).collect()
}

/// Returns the conditions for the engine, which only reads what they point to: these values.
pub(super) fn conditions(conditions: &[Condition], values: &[Value]) -> Vec<FWPM_FILTER_CONDITION0> {
    conditions.iter().zip(values).map(|(condition, value)| raw(condition, value)).collect()
}

fn raw(condition: &Condition, value: &Value) -> FWPM_FILTER_CONDITION0 {
    type Place = FWP_CONDITION_VALUE0_0;
    let field = match condition {
        Condition::Loopback => FWPM_CONDITION_FLAGS,
        Condition::Program(_) => FWPM_CONDITION_ALE_APP_ID,
        Condition::Interface(_) => FWPM_CONDITION_IP_LOCAL_INTERFACE,
        Condition::ForwardedTo(_) => FWPM_CONDITION_IP_FORWARD_INTERFACE,
        Condition::Protocol(_) => FWPM_CONDITION_IP_PROTOCOL,
        Condition::LocalPort(_) => FWPM_CONDITION_IP_LOCAL_PORT,
        Condition::RemotePort(_) => FWPM_CONDITION_IP_REMOTE_PORT,
        Condition::IcmpType(_) => ICMP_TYPE,
        Condition::IcmpCode(_) => ICMP_CODE,
        Condition::Local(_) => FWPM_CONDITION_IP_LOCAL_ADDRESS,
        Condition::Remote(_) => FWPM_CONDITION_IP_REMOTE_ADDRESS,
        Condition::Destination(_) => FWPM_CONDITION_IP_DESTINATION_ADDRESS,
    };
    let (kind, place) = match (value, condition) {
        (Value::Number(number), _) => (FWP_UINT64, Place { uint64: std::ptr::from_ref(number).cast_mut() }),
        (Value::Bytes(blob), _) => {
            (FWP_BYTE_BLOB_TYPE, Place { byteBlob: std::ptr::from_ref(blob).cast_mut() })
        }
        (Value::V4(net), _) => (FWP_V4_ADDR_MASK, Place { v4AddrMask: std::ptr::from_ref(net).cast_mut() }),
        (Value::V6(net), _) => (FWP_V6_ADDR_MASK, Place { v6AddrMask: std::ptr::from_ref(net).cast_mut() }),
        (Value::Inside, Condition::LocalPort(port) | Condition::RemotePort(port)) => {
            (FWP_UINT16, Place { uint16: *port })
        }
        (Value::Inside, Condition::IcmpType(number) | Condition::IcmpCode(number)) => {
            (FWP_UINT16, Place { uint16: u16::from(*number) })
        }
        (Value::Inside, Condition::Protocol(number)) => (FWP_UINT8, Place { uint8: *number }),
        // The others have values outside.
        (Value::Inside, _) => (FWP_UINT32, Place { uint32: FWP_CONDITION_FLAG_IS_LOOPBACK }),
    };
    FWPM_FILTER_CONDITION0 {
        fieldKey: field,
        matchType: match condition {
            Condition::Loopback => FWP_MATCH_FLAGS_ALL_SET,
            _ => FWP_MATCH_EQUAL,
        },
        conditionValue: FWP_CONDITION_VALUE0 { r#type: kind, Anonymous: place },
    }
}

pub(super) fn layer(layer: Layer) -> GUID {
    match layer {
        Layer::ConnectV4 => FWPM_LAYER_ALE_AUTH_CONNECT_V4,
        Layer::ConnectV6 => FWPM_LAYER_ALE_AUTH_CONNECT_V6,
        Layer::AcceptV4 => FWPM_LAYER_ALE_AUTH_RECV_ACCEPT_V4,
        Layer::AcceptV6 => FWPM_LAYER_ALE_AUTH_RECV_ACCEPT_V6,
        Layer::ForwardV4 => FWPM_LAYER_IPFORWARD_V4,
        Layer::ForwardV6 => FWPM_LAYER_IPFORWARD_V6,
    }
}

#[cfg(test)]
mod tests {
    use weft_tun::number_of;

    use super::*;

    fn raw_of(condition: Condition) -> (FWPM_FILTER_CONDITION0, Vec<Value>, Vec<Condition>) {
        let given = vec![condition];
        let values = values(&given);
        (conditions(&given, &values)[0], values, given)
    }

    #[test]
    fn values_outside_a_condition_are_found_through_it() {
        let (raw, _values, _given) = raw_of(Condition::Interface(0x35_0000_0100_0000));
        assert_eq!(number_of(&raw.fieldKey), number_of(&FWPM_CONDITION_IP_LOCAL_INTERFACE));
        assert_eq!((raw.matchType, raw.conditionValue.r#type), (FWP_MATCH_EQUAL, FWP_UINT64));
        // SAFETY: the condition points to the values, which still live.
        assert_eq!(unsafe { *raw.conditionValue.Anonymous.uint64 }, 0x35_0000_0100_0000);

        let (raw, _values, _given) = raw_of(Condition::Program(b"weft".to_vec()));
        assert_eq!(raw.conditionValue.r#type, FWP_BYTE_BLOB_TYPE);
        // SAFETY: the condition points to the values, and these to the bytes of the condition that was given.
        let bytes = unsafe {
            let blob = *raw.conditionValue.Anonymous.byteBlob;
            std::slice::from_raw_parts(blob.data, blob.size as usize)
        };
        assert_eq!(bytes, b"weft");

        let (raw, _values, _given) = raw_of(Condition::Remote("172.16.0.0/12".parse().unwrap()));
        assert_eq!(raw.conditionValue.r#type, FWP_V4_ADDR_MASK);
        // SAFETY: the condition points to the values, which still live.
        let net = unsafe { *raw.conditionValue.Anonymous.v4AddrMask };
        assert_eq!((net.addr, net.mask), (0xac10_0000, 0xfff0_0000), "in the byte order of this machine");

        let (raw, _values, _given) = raw_of(Condition::Destination("fe80::/10".parse().unwrap()));
        assert_eq!(number_of(&raw.fieldKey), number_of(&FWPM_CONDITION_IP_DESTINATION_ADDRESS));
        assert_eq!(raw.conditionValue.r#type, FWP_V6_ADDR_MASK);
        // SAFETY: the condition points to the values, which still live.
        let net = unsafe { *raw.conditionValue.Anonymous.v6AddrMask };
        assert_eq!((&net.addr[..3], net.prefixLength), (&[0xfe, 0x80, 0][..], 10));
    }

    #[test]
    fn values_inside_a_condition_have_the_type_of_their_field() {
        let inside = |condition| raw_of(condition).0;
        let raw = inside(Condition::Loopback);
        assert_eq!((raw.matchType, raw.conditionValue.r#type), (FWP_MATCH_FLAGS_ALL_SET, FWP_UINT32));
        // SAFETY: the type says that it is this variant.
        assert_eq!(unsafe { raw.conditionValue.Anonymous.uint32 }, FWP_CONDITION_FLAG_IS_LOOPBACK);
        let raw = inside(Condition::Protocol(58));
        assert_eq!(raw.conditionValue.r#type, FWP_UINT8);
        // SAFETY: the type says that it is this variant.
        assert_eq!(unsafe { raw.conditionValue.Anonymous.uint8 }, 58);
        for (condition, field, expected) in [
            (Condition::LocalPort(68), FWPM_CONDITION_IP_LOCAL_PORT, 68),
            (Condition::RemotePort(853), FWPM_CONDITION_IP_REMOTE_PORT, 853),
            (Condition::IcmpType(143), FWPM_CONDITION_IP_LOCAL_PORT, 143),
            (Condition::IcmpCode(4), FWPM_CONDITION_IP_REMOTE_PORT, 4),
        ] {
            let raw = inside(condition);
            assert_eq!(
                (number_of(&raw.fieldKey), raw.conditionValue.r#type),
                (number_of(&field), FWP_UINT16)
            );
            // SAFETY: the type says that it is this variant.
            assert_eq!(unsafe { raw.conditionValue.Anonymous.uint16 }, expected);
        }
    }
}
