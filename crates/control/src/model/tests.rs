use std::collections::BTreeMap;
use std::num::NonZeroU16;

use proptest::prelude::*;
use weft_config::settings::{InterfaceSettingsChange, PeerSettingsChange};
use weft_tunnel::{PeerLimits, PresharedKey, Rate};

use super::*;

fn key(number: u8) -> PublicKey {
    PublicKey::from_bytes([number; 32])
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn own_key() -> PrivateKey {
    PrivateKey::from_bytes([7; 32])
}

fn set_key(key: Option<PrivateKey>) -> DeviceChange {
    InterfaceSettingsChange { private_key: Some(key), ..Default::default() }.into()
}

fn model_with_key() -> Model {
    let mut model = Model::default();
    let changes = model.change(&set_key(Some(own_key())));
    assert!(matches!(changes[..], [Change::PrivateKey(_)]));
    model
}

fn peers(peers: Vec<PeerChange>) -> DeviceChange {
    DeviceChange { peers, ..Default::default() }
}

fn with(number: u8, prefixes: &[&str]) -> PeerChange {
    let allowed_ips = prefixes.iter().map(|text| AllowedIpChange::Add(net(text))).collect();
    PeerChange { replace_allowed_ips: true, allowed_ips, ..PeerChange::new(key(number)) }
}

#[test]
fn an_endpoint_counts_as_set_until_the_configuration_gives_one() {
    let [set, other]: [SocketAddr; 2] = ["192.0.2.1:1", "192.0.2.2:1"].map(|text| text.parse().unwrap());
    let gives = |endpoint| peers(vec![PeerChange { endpoint: Some(endpoint), ..PeerChange::new(key(1)) }]);
    let mut model = model_with_key();
    let set_by_client = |model: &mut Model| {
        model.change(&gives(set));
        model.record_set_endpoint(key(1), set);
        assert_eq!(model.set_endpoint(&key(1)), Some(set));
    };
    set_by_client(&mut model);
    model.change(&peers(vec![PeerChange::new(key(1))]));
    assert_eq!(model.set_endpoint(&key(1)), Some(set), "no other one was given");
    model.change(&gives(other));
    assert_eq!(model.set_endpoint(&key(1)), None);
    // Not that which is not in force, or of a peer that is gone.
    model.record_set_endpoint(key(1), set);
    model.record_set_endpoint(key(2), set);
    assert_eq!([key(1), key(2)].map(|key| model.set_endpoint(&key)), [None, None]);
    set_by_client(&mut model);
    model.change(&peers(vec![PeerChange { remove: true, ..PeerChange::new(key(1)) }]));
    model.change(&gives(set));
    assert_eq!(model.set_endpoint(&key(1)), None);
}

/// The state of a tunnel that applied the changes.
#[derive(Debug, Default, PartialEq)]
struct Tunnel {
    peers: BTreeMap<PublicKey, Option<NonZeroU16>>,
    owners: BTreeMap<IpNet, PublicKey>,
}

impl Tunnel {
    fn of(model: &Model) -> Self {
        if model.settings().private_key.is_none() {
            return Self::default();
        }
        let owner = |peer: &PeerConfig| {
            peer.allowed_ips.iter().map(|prefix| (*prefix, peer.public_key)).collect::<Vec<_>>()
        };
        Self {
            peers: model.peers().map(|peer| (peer.public_key, peer.settings.persistent_keepalive)).collect(),
            owners: model.peers().flat_map(owner).collect(),
        }
    }

    /// Applies a change as the tunnel does; panics if the change has no effect.
    fn apply(&mut self, change: &Change) {
        match change {
            Change::AddPeer(new) => {
                let config = new;
                assert!(self.peers.insert(config.public_key, config.settings.persistent_keepalive).is_none());
                self.owners.extend(config.allowed_ips.iter().map(|prefix| (*prefix, config.public_key)));
            }
            Change::RemovePeer(key) => {
                assert!(self.peers.remove(key).is_some());
                assert!(!self.owners.values().any(|owner| owner == key), "its prefixes went first");
            }
            Change::AllowedIps { peer, add, remove } => {
                assert!(self.peers.contains_key(peer));
                self.owners.extend(add.iter().map(|prefix| (*prefix, *peer)));
                self.owners.retain(|prefix, owner| owner != peer || !remove.contains(prefix));
            }
            Change::PersistentKeepalive { peer, interval } => {
                assert_ne!(self.peers.insert(*peer, *interval), None);
            }
            Change::PathChanged(peer)
            | Change::Resumed { peer, .. }
            | Change::Restore { peer, .. }
            | Change::Endpoint { peer, .. }
            | Change::Limits { peer, .. }
            | Change::PresharedKey { peer, .. }
            | Change::EndSession(peer) => assert!(self.peers.contains_key(peer)),
            Change::AddForeignPeer { .. } => panic!("the model knows no shards"),
            Change::PrivateKey(_) | Change::Mtu(_) => {}
        }
    }
}

#[test]
fn what_is_as_it_was_changes_nothing() {
    let mut model = model_with_key();
    let preshared_key = PresharedKey::generate().unwrap();
    let endpoint = "192.0.2.1:7".parse().unwrap();
    let mut change = peers(vec![
        PeerChange {
            settings: PeerSettingsChange {
                preshared_key: Some(Some(preshared_key)),
                persistent_keepalive: Some(NonZeroU16::new(25)),
                limits: None,
            },
            ..with(1, &["10.0.0.0/8", "fd00::/8"])
        },
        with(2, &["192.0.2.0/24"]),
    ]);
    change.settings.private_key = Some(Some(own_key()));
    assert_eq!(model.change(&change).len(), 2);
    assert!(model.change(&change).is_empty(), "wg syncconf says everything again");
    change.replace_peers = true;
    assert!(model.change(&change).is_empty());
    // An endpoint is always set, because the peer may have left it.
    change.peers[0].endpoint = Some(endpoint);
    assert!(matches!(model.change(&change)[..], [Change::Endpoint { .. }]));
}

#[test]
fn a_prefix_that_moves_always_has_a_peer() {
    let mut model = model_with_key();
    model.change(&peers(vec![with(1, &["10.0.0.0/8", "10.1.0.0/16"]), with(2, &[])]));
    let changes = model.change(&peers(vec![with(1, &["10.1.0.0/16"]), with(2, &["10.0.0.0/8"])]));
    let [Change::AllowedIps { peer, add, remove }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((*peer, &add[..], remove.len()), (key(2), &[net("10.0.0.0/8")][..], 0));
    // A prefix that no peer has afterwards is removed last, after all additions.
    let changes = model.change(&peers(vec![with(2, &[]), with(1, &["10.1.0.0/16", "10.2.0.0/16"])]));
    let [Change::AllowedIps { add, .. }, Change::AllowedIps { remove, .. }] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((&add[..], &remove[..]), (&[net("10.2.0.0/16")][..], &[net("10.0.0.0/8")][..]));
}

#[test]
fn the_peers_own_key_is_left_out_and_a_peer_that_becomes_it_is_removed() {
    let mut model = model_with_key();
    let own = PeerChange::new(own_key().public_key());
    assert!(model.change(&peers(vec![own.clone()])).is_empty());
    assert_eq!(model.peer_count(), 0);
    let mut model = Model::default();
    model.change(&peers(vec![own, with(1, &[])]));
    assert_eq!(model.peer_count(), 2, "there is no key yet");
    model.change(&set_key(Some(own_key())));
    assert_eq!(model.peers().map(|peer| peer.public_key).collect::<Vec<_>>(), [key(1)]);
}

#[test]
fn peers_wait_for_a_key_and_leave_with_it() {
    let mut model = Model::default();
    assert!(model.change(&peers(vec![with(1, &["10.0.0.0/8"]), with(2, &[])])).is_empty());
    let changes = model.change(&set_key(Some(own_key())));
    assert!(matches!(changes[..], [Change::PrivateKey(_), Change::AddPeer(_), Change::AddPeer(_)]));
    let other = PrivateKey::from_bytes([9; 32]);
    let changes = model.change(&set_key(Some(other)));
    assert!(matches!(changes[..], [Change::PrivateKey(_), Change::EndSession(_), Change::EndSession(_)]));
    let mut tunnel = Tunnel::of(&model);
    let changes = model.change(&set_key(None));
    changes.iter().for_each(|change| tunnel.apply(change));
    assert_eq!(tunnel, Tunnel::default());
    assert_eq!(model.peer_count(), 2, "they are still configured");
}

#[test]
fn limits_are_changed_by_who_knows_them_and_kept_by_everybody_else() {
    let limits = |bits| PeerLimits { to_peer: Rate::from_bits_per_second(bits), from_peer: None };
    let with_limits = |limits| PeerChange {
        settings: PeerSettingsChange { limits: Some(limits), ..PeerSettingsChange::default() },
        ..with(1, &["10.0.0.0/8"])
    };
    let limited = |bits| with_limits(limits(bits));
    let mut model = Model::default();
    model.change(&peers(vec![limited(1000)]));
    let key_change = set_key(Some(own_key()));
    let changes = model.change(&key_change);
    let [Change::PrivateKey(_), Change::AddPeer(peer)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((peer.public_key, peer.settings.limits), (key(1), limits(1000)));

    // As in `wg setconf`.
    let all = DeviceChange { replace_peers: true, ..peers(vec![with(1, &["10.0.0.0/8"])]) };
    assert!(model.change(&all).is_empty());
    assert_eq!(model.peer(&key(1)).unwrap().settings.limits, limits(1000));
    assert!(model.change(&peers(vec![limited(1000)])).is_empty());
    let changes = model.change(&DeviceChange { replace_peers: true, ..peers(vec![limited(2000)]) });
    assert!(
        matches!(changes[..], [Change::Limits { limits: told, .. }] if told == limits(2000)),
        "{changes:?}"
    );
    let changes = model.change(&peers(vec![with_limits(PeerLimits::default())]));
    assert!(matches!(changes[..], [Change::Limits { limits: told, .. }] if told == PeerLimits::default()));
}

#[test]
fn updating_only_adds_no_peer_and_removing_an_absent_peer_is_no_error() {
    let mut model = model_with_key();
    let update = PeerChange { update_only: true, ..with(1, &["10.0.0.0/8"]) };
    let remove = PeerChange { remove: true, ..PeerChange::new(key(2)) };
    assert!(model.change(&peers(vec![update, remove])).is_empty());
    assert_eq!(model.peer_count(), 0);
}

#[test]
fn a_replacement_updates_and_removes_only_what_it_adds() {
    let mut model = model_with_key();
    model.change(&peers(vec![with(1, &["10.1.0.0/16"]), with(2, &["10.2.0.0/16"])]));
    let update = |number| PeerChange { update_only: true, ..with(number, &["10.3.0.0/16"]) };
    let list = vec![update(1), with(2, &[]), update(2), update(3)];
    model.change(&DeviceChange { replace_peers: true, peers: list, ..Default::default() });
    let left: Vec<_> = model.peers().map(|peer| (peer.public_key, peer.allowed_ips.clone())).collect();
    assert_eq!(left, [(key(2), vec![net("10.3.0.0/16")])]);
}

#[test]
fn a_peer_with_very_many_prefixes_is_changed_in_steps() {
    let mut model = model_with_key();
    let many: Vec<String> = (0..1000).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let changes = model.change(&peers(vec![with(1, &many)]));
    assert_eq!(changes.len(), 4);
    assert!(changes.iter().all(|change| change.weight() <= 2 * PREFIXES_PER_CHANGE));
    let changes = model.change(&peers(vec![PeerChange { remove: true, ..PeerChange::new(key(1)) }]));
    assert_eq!(changes.len(), 5);
    assert!(changes.iter().all(|change| change.weight() <= 2 * PREFIXES_PER_CHANGE));
}

fn prefix() -> impl Strategy<Value = IpNet> {
    (0..6_u8, 0..2_u8).prop_map(|(n, len)| net(&format!("10.{n}.0.0/{}", 16 + len * 8)))
}

fn peer_change() -> impl Strategy<Value = PeerChange> {
    let prefixes = prop::collection::vec((any::<bool>(), prefix()), 0..4);
    (0..5_u8, 0..8_u8, any::<[bool; 2]>(), prefixes, 0..4_u16).prop_map(
        |(number, remove, [update_only, replace_allowed_ips], prefixes, keepalive)| PeerChange {
            remove: remove == 0,
            update_only,
            replace_allowed_ips,
            settings: PeerSettingsChange {
                persistent_keepalive: (keepalive > 0).then(|| NonZeroU16::new(keepalive - 1)),
                ..PeerSettingsChange::default()
            },
            allowed_ips: prefixes
                .into_iter()
                .map(|(add, net)| if add { AllowedIpChange::Add(net) } else { AllowedIpChange::Remove(net) })
                .collect(),
            ..PeerChange::new(key(number))
        },
    )
}

fn device_change() -> impl Strategy<Value = DeviceChange> {
    (0..8_u8, 0..6_u8, prop::collection::vec(peer_change(), 0..6)).prop_map(|(own, replace, peers)| {
        let private_key = match own {
            0 => Some(None),
            1..=3 => Some(Some(PrivateKey::from_bytes([own; 32]))),
            _ => None,
        };
        let settings = InterfaceSettingsChange { private_key, ..Default::default() };
        DeviceChange { settings, replace_peers: replace == 0, peers }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn the_tunnel_becomes_what_the_model_is(changes in prop::collection::vec(device_change(), 1..8)) {
        let mut model = model_with_key();
        let mut tunnel = Tunnel::of(&model);
        for change in changes {
            for step in model.change(&change) {
                tunnel.apply(&step);
            }
            prop_assert_eq!(&tunnel, &Tunnel::of(&model));
            let owners: usize = model.peers().map(|peer| peer.allowed_ips.len()).sum();
            prop_assert_eq!(model.owners.len(), owners, "a prefix has one owner");
            prop_assert!(model.change(&DeviceChange::default()).is_empty());
        }
    }
}

#[test]
fn sessions_are_renewed_for_every_peer_with_the_key_that_it_has() {
    let mut model = model_with_key();
    let preshared_key = PresharedKey::generate().unwrap();
    let mut shared = with(2, &[]);
    shared.settings.preshared_key = Some(Some(preshared_key.clone()));
    model.change(&peers(vec![with(1, &["10.0.0.1/32"]), shared]));
    let renewed = model.renew_sessions();
    let renewed: Vec<_> = renewed
        .iter()
        .map(|change| match change {
            Change::PresharedKey { peer, key } => (*peer, key.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(renewed, [(key(1), None), (key(2), Some(preshared_key))]);
    assert!(Model::default().renew_sessions().is_empty());
}
