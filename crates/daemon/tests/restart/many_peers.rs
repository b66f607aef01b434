//! A gateway with ten thousand peers is started again.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nix::sys::stat::fstat;
use weft_tunnel::PublicKey;

use crate::world::{NAME, World, file_of_a, file_of_b, key, public};

/// With B, and with those that are added while it runs.
const PEERS: u32 = 10_000;
/// The file has these, the rest is added over the UAPI.
const IN_THE_FILE: u32 = 5_000;

/// The key of one that never speaks.
fn silent(number: u32) -> String {
    let mut bytes = [5; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    PublicKey::from_bytes(bytes).to_string()
}

/// `[Peer]` sections.
fn sections(numbers: std::ops::Range<u32>, lines: impl Fn(u32) -> String) -> String {
    let mut text = String::new();
    for number in numbers {
        writeln!(text, "[Peer]\nPublicKey = {}\n{}", silent(number), lines(number)).unwrap();
    }
    text
}

fn prefix(number: u32) -> String {
    format!("10.100.{}.{}/32", number / 256, number % 256)
}

/// What every peer is configured to be: its line of `show dump` without handshake and transfer.
fn configured(world: &World) -> BTreeSet<String> {
    let dump = world.weft_ok(&["show", NAME, "dump"]);
    let without_counts = |line: &str| {
        let words: Vec<&str> = line.split('\t').collect();
        [&words[..4], &words[7..]].concat().join(" ")
    };
    dump.lines().skip(1).map(without_counts).collect()
}

/// The names in the store, with what tells one socket from another.
fn kept(world: &World) -> Vec<(String, u64)> {
    let names = world.manager.shared.names().into_iter().filter(|name| !name.starts_with("state-"));
    let inode = |name: &str| fstat(world.manager.get(name).unwrap()).unwrap().st_ino;
    names.map(|name| (name.clone(), inode(&name))).collect()
}

/// Adds the other half, and changes peers of both.
fn add_and_change(world: &World) {
    let file = |name: &str, text: &str| {
        let path = world.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let more = |number: u32| format!("AllowedIPs = {}\nEndpoint = 192.0.2.2:{number}", prefix(number));
    world.weft_ok(&["addconf", NAME, &file("more", &sections(IN_THE_FILE..PEERS, more))]);
    let asked = |number: u32| format!("AllowedIPs = {}\nPersistentKeepalive = 77", prefix(number));
    world.weft_ok(&["addconf", NAME, &file("asked", &sections(4_900..IN_THE_FILE, asked))]);
    let secret = file("secret", &key(7).to_base64());
    for (number, words) in [
        (17, ["allowed-ips", "10.200.0.0/24"]),
        (18, ["preshared-key", &secret]),
        (7_000, ["endpoint", "192.0.2.2:9"]),
        (PEERS, ["allowed-ips", "10.201.0.0/24"]),
        // The file gives it to another one.
        (PEERS + 1, ["allowed-ips", "10.100.0.20/32"]),
    ] {
        world.weft_ok(&["set", NAME, "peer", &silent(number), words[0], words[1]]);
    }
    for number in [19, 7_001] {
        world.weft_ok(&["set", NAME, "peer", &silent(number), "remove"]);
    }
}

#[test]
fn ten_thousand_peers_are_as_they_were_and_a_stream_goes_on() {
    let file = file_of_a() + &sections(1..IN_THE_FILE, |number| format!("AllowedIPs = {}", prefix(number)));
    let Some(mut world) = World::up(&file, &file_of_b()) else { return };
    let stream = world.stream(2);
    add_and_change(&world);
    let wanted = configured(&world);
    assert_eq!(wanted.len(), PEERS as usize);
    let line = |number: u32, rest: &str| format!("{} {rest}", silent(number));
    for line in [
        format!("{} (none) 192.0.2.2:51820 10.77.0.2/32 off", public(2)),
        line(16, "(none) (none) 10.100.0.16/32 off"),
        line(17, "(none) (none) 10.200.0.0/24 off"),
        line(18, &format!("{} (none) 10.100.0.18/32 off", *key(7).to_base64())),
        line(20, "(none) (none) (none) off"),
        line(4_950, "(none) (none) 10.100.19.86/32 77"),
        line(7_000, "(none) 192.0.2.2:9 10.100.27.88/32 off"),
        line(9_999, "(none) 192.0.2.2:9999 10.100.39.15/32 off"),
        line(PEERS + 1, "(none) (none) 10.100.0.20/32 off"),
    ] {
        assert!(wanted.contains(&line), "{line}");
    }
    let (picture, descriptors, memory) = (world.picture(), kept(&world), world.peak_memory_kib());
    assert!(descriptors.iter().map(|(name, _)| name).eq(&world.kept_names()), "{descriptors:?}");
    let initiations = world.initiations();
    world.stop_for_restart();
    assert_eq!(world.picture(), picture);
    world.start();
    stream.end();
    let now = configured(&world);
    let differ: Vec<_> = now.symmetric_difference(&wanted).collect();
    assert!(differ.is_empty(), "{} peers: {differ:#?}", now.len());
    assert_eq!(kept(&world), descriptors);
    assert_eq!(world.picture(), picture, "number, addresses and routes of the device");
    initiations.assert_one();
    let peak = world.peak_memory_kib();
    assert!(peak < memory * 3 / 2, "what was left is not kept twice: {peak} KiB, and before {memory} KiB");
    world.stop();
    assert!(!world.has_device());
}
