//! Messages as the kernels write them.

use super::*;

/// Builds a message with these addresses behind its header; `None` stands for one that is not present.
fn message(layout: Layout, kind: u8, index: u16, flags: u32, addresses: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut present = 0_u32;
    let mut body = Vec::new();
    for (place, address) in addresses.iter().enumerate() {
        let Some(address) = address else { continue };
        present |= 1 << place;
        body.extend(address);
        body.resize(body.len() - address.len() + address.len().max(1).next_multiple_of(layout.alignment), 0);
    }
    let mut bytes = vec![0; layout.header];
    bytes.extend(body);
    let length = u16::try_from(bytes.len()).unwrap();
    bytes[..2].copy_from_slice(&length.to_ne_bytes());
    bytes[2..4].copy_from_slice(&[RTM_VERSION, kind]);
    bytes[4..6].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&present.to_ne_bytes());
    bytes
}

fn inet(a: [u8; 4]) -> Option<Vec<u8>> {
    Some([&[16, 2, 0, 0], &a[..], &[0; 8]].concat())
}

fn inet6(layout: Layout, address: &str) -> Option<Vec<u8>> {
    let address: Ipv6Addr = address.parse().unwrap();
    Some([&[28, layout.af_inet6, 0, 0, 0, 0, 0, 0], &address.octets()[..], &[0; 4]].concat())
}

/// `struct sockaddr_dl` of an interface without a name.
fn link(index: u8) -> Option<Vec<u8>> {
    Some([&[20, 18, index, 0], &[0; 16][..]].concat())
}

fn told(bytes: &[u8], layout: Layout) -> Vec<String> {
    let route = |route: Route| {
        let to = if route.is_blackhole { " nowhere" } else { "" };
        let gateway = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        format!("{}{gateway} dev {}{to}", route.prefix, route.index)
    };
    messages(bytes, layout)
        .into_iter()
        .map(|message| match message {
            Message::Route(is) => route(is),
            Message::Removed(was) => format!("- {}", route(was)),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn routes_are_read_from_either_layout() {
    for layout in [MACOS, FREEBSD] {
        let table = [
            // The mask of a default route has no bytes, and that of 10/8 ends after its first.
            message(layout, RTM_GET, 4, 0x803, &[inet([0; 4]), inet([192, 168, 1, 1]), Some(vec![])]),
            message(layout, RTM_GET, 9, 0x801, &[inet([10, 0, 0, 0]), link(9), Some(vec![5, 0, 0, 0, 255])]),
            message(
                layout,
                RTM_GET,
                9,
                0x801,
                &[inet([100, 64, 0, 0]), link(9), Some(vec![6, 0, 0, 0, 255, 0xc0])],
            ),
            message(layout, RTM_GET, 1, 0x1805, &[inet([192, 0, 2, 7]), inet([127, 0, 0, 1])]),
            message(
                layout,
                RTM_ADD,
                4,
                0x803,
                &[inet6(layout, "::"), inet6(layout, "fe80:4::1"), Some(vec![0])],
            ),
            message(
                layout,
                RTM_DELETE,
                9,
                0,
                &[
                    inet6(layout, "fd00::"),
                    link(9),
                    Some(vec![16, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]),
                ],
            ),
        ]
        .concat();
        let expected = [
            "0.0.0.0/0 via 192.168.1.1 dev 4",
            "10.0.0.0/8 dev 9",
            "100.64.0.0/10 dev 9",
            "192.0.2.7/32 dev 1 nowhere",
            "::/0 via fe80::1 dev 4",
            "- fd00::/64 dev 9",
        ];
        assert_eq!(told(&table, layout), expected);
    }
}

#[test]
fn routes_that_no_packet_is_looked_up_by_are_hidden() {
    let of = |layout, flags| {
        told(&message(layout, RTM_GET, 4, flags, &[inet([192, 0, 2, 1]), inet([10, 0, 0, 1])]), layout)
    };
    assert_eq!(of(MACOS, 0x7).len(), 1);
    for hidden in [0x2_0007, 0x100_0007, 0x407, 0x6] {
        assert_eq!(of(MACOS, hidden), [""; 0], "{hidden:#x}");
    }
    assert_eq!((of(FREEBSD, 0x7).len(), of(FREEBSD, 0x407).len(), of(FREEBSD, 0x6).len()), (1, 0, 0));
}

#[test]
fn interfaces_and_addresses_are_told_by_index() {
    let info = |kind: u8, length: u16| {
        let mut bytes = vec![0; length.into()];
        bytes[..2].copy_from_slice(&length.to_ne_bytes());
        bytes[2..4].copy_from_slice(&[RTM_VERSION, kind]);
        bytes[12..14].copy_from_slice(&7_u16.to_ne_bytes());
        bytes
    };
    let mut link = info(RTM_IFINFO, 112);
    link[24..28].copy_from_slice(&1380_u32.to_ne_bytes());
    let mut gone = info(RTM_IFANNOUNCE, 24);
    gone[4..6].copy_from_slice(&7_u16.to_ne_bytes());
    gone[22..24].copy_from_slice(&IFAN_DEPARTURE.to_ne_bytes());
    let all = [link, info(RTM_NEWADDR, 20), info(RTM_DELADDR, 20), gone].concat();
    let expected = [Message::Link { index: 7, mtu: 1380 }, Message::Address(7), Message::Address(7)];
    assert_eq!(messages(&all, MACOS), expected);
    assert_eq!(messages(&all, FREEBSD), [&expected[..], &[Message::Gone(7)]].concat());
}

#[test]
fn what_is_cut_off_or_unknown_ends_nothing_but_itself() {
    let route = message(MACOS, RTM_ADD, 4, 0x807, &[inet([192, 0, 2, 1]), inet([10, 0, 0, 1])]);
    for length in 0..route.len() {
        assert_eq!(messages(&route[..length], MACOS), [], "{length}");
        // A message with a length that is too short for its addresses.
        let mut short = route[..length].to_vec();
        if length >= 4 {
            short[..2].copy_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
        }
        assert!(messages(&short, MACOS).len() <= 1);
    }
    let mut other = route.clone();
    other[2] = RTM_VERSION + 1;
    assert_eq!(messages(&[other, route].concat(), MACOS).len(), 1);
}
