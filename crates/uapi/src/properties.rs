//! Properties of all requests: the parser answers any input, and understands every change that a client can
//! write.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::settings::{InterfaceSettingsChange, PeerSettingsChange};
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};

use super::lines::{Line, LineBuffer};
use super::{Request, RequestParser, Step};
use crate::client::request;

fn no_scope(_: &str) -> Option<u32> {
    None
}

/// Processes `bytes` as a connection does, in pieces of these sizes. Returns the requests, and the number of
/// refusals.
fn feed(bytes: &[u8], pieces: &[usize]) -> (Vec<Request>, usize) {
    let (mut buffer, mut parser) = (LineBuffer::new(), RequestParser::new(no_scope));
    let (mut requests, mut refused, mut rest) = (Vec::new(), 0, bytes);
    let mut pieces = pieces.iter().cycle();
    loop {
        let step = match buffer.next_line() {
            Line::Whole(line) => parser.line(line),
            Line::TooLong => parser.line_too_long(),
            Line::Unfinished if rest.is_empty() => break,
            Line::Unfinished => {
                let spare = buffer.spare_mut();
                let read = pieces.next().copied().unwrap_or(1).clamp(1, spare.len()).min(rest.len());
                spare[..read].copy_from_slice(&rest[..read]);
                buffer.commit(read);
                rest = &rest[read..];
                continue;
            }
        };
        match step {
            Step::More => {}
            Step::Complete(request) => requests.push(request),
            Step::Rejected(problem) => {
                assert!(super::Errno::from(&problem).number() < 0);
                refused += 1;
            }
            Step::Foreign => refused += 1,
        }
    }
    refused += usize::from(parser.end().is_some());
    (requests, refused)
}

fn address() -> impl Strategy<Value = IpAddr> {
    let v6 = any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()));
    prop_oneof![any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())), v6]
}

fn prefix() -> impl Strategy<Value = IpNet> {
    (address(), any::<u8>()).prop_map(|(address, length)| {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, length % (longest + 1)).unwrap().trunc()
    })
}

fn endpoint() -> impl Strategy<Value = SocketAddr> {
    (address(), any::<u16>()).prop_map(|(address, port)| SocketAddr::new(address.to_canonical(), port))
}

/// A key that is not all zeros, which mean none.
fn key() -> impl Strategy<Value = [u8; 32]> {
    any::<[u8; 32]>().prop_map(|mut key| {
        key[0] |= 8;
        key
    })
}

prop_compose! {
    fn peer()(
        public_key in any::<[u8; 32]>(),
        remove in proptest::bool::weighted(0.2),
        update_only in any::<bool>(),
        preshared_key in option::of(option::of(key())),
        endpoint in option::of(endpoint()),
        keepalive in option::of(any::<u16>()),
        replace_allowed_ips in any::<bool>(),
        allowed_ips in vec((prefix(), any::<bool>()), 0..6),
    ) -> PeerChange {
        let bare = PeerChange { remove, update_only, ..PeerChange::new(PublicKey::from_bytes(public_key)) };
        if remove {
            return bare;
        }
        PeerChange {
            endpoint,
            settings: PeerSettingsChange {
                preshared_key: preshared_key.map(|key| key.map(PresharedKey::from_bytes)),
                persistent_keepalive: keepalive.map(NonZeroU16::new),
                // The protocol has no limits.
                limits: None,
            },
            replace_allowed_ips,
            allowed_ips: allowed_ips
                .into_iter()
                .map(|(net, add)| if add { AllowedIpChange::Add(net) } else { AllowedIpChange::Remove(net) })
                .collect(),
            ..bare
        }
    }
}

prop_compose! {
    fn change()(
        private_key in option::of(option::of(key())),
        listen_port in option::of(any::<u16>()),
        fw_mark in option::of(any::<u32>()),
        replace_peers in any::<bool>(),
        peers in vec(peer(), 0..8),
    ) -> DeviceChange {
        let private_key = private_key.map(|key| key.map(PrivateKey::from_bytes));
        let settings = InterfaceSettingsChange { private_key, listen_port, fw_mark };
        DeviceChange { settings, replace_peers, peers }
    }
}

fn text(change: &DeviceChange) -> Vec<u8> {
    request::set(change).to_vec()
}

proptest! {
    #[test]
    fn whatever_is_sent_is_answered(bytes in vec(any::<u8>(), 0..4096), pieces in vec(1usize..600, 1..8)) {
        feed(&bytes, &pieces);
        let request = [b"set=1\n".as_slice(), &bytes, b"\n\n"].concat();
        let (requests, refused) = feed(&request, &pieces);
        prop_assert!(requests.len() + refused > 0);
    }

    #[test]
    fn a_change_survives_its_text(change in change(), pieces in vec(1usize..600, 1..8)) {
        let (requests, refused) = feed(&text(&change), &pieces);
        prop_assert_eq!(refused, 0);
        let [Request::Set(parsed)] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!(parsed, &change);
    }

    /// Fuzzes the parser with almost valid requests. A damaged change results in a change, an error, or both.
    #[test]
    fn a_request_with_some_bytes_changed_is_answered(
        change in change(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..12),
        pieces in vec(1usize..600, 1..8),
    ) {
        let mut bytes = text(&change);
        for (at, byte, kind) in damage {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => bytes[at] = b'\n',
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        bytes.extend(b"\n\n");
        let (requests, refused) = feed(&bytes, &pieces);
        prop_assert!(requests.len() + refused > 0);
        // A parsed change survives another round trip through its text.
        for request in &requests {
            if let Request::Set(change) = request {
                let (again, refused) = feed(&text(change), &pieces);
                prop_assert_eq!(refused, 0);
                let [Request::Set(parsed)] = &again[..] else { panic!("{again:?}") };
                assert_eq!(parsed, change);
            }
        }
    }
}
