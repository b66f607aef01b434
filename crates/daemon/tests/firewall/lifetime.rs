//! The rules come and go as a whole, and outlive the process that set them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};

use weft::up::{Daemon, Options};
use weft_config::parse;
use weft_host::firewall::{self, FullTunnel, KillSwitch, Local, OwnPackets, Present, Rules};
use weft_lab::mounts::separate_sockets;
use weft_lab::{self as lab, Process, until};
use weft_tunnel::PrivateKey;

use crate::attempts::Attempt;
use crate::scenario::{attempts, forbidden, forbidden_for_clients};
use crate::world::{MARK, NAME, World, kill_switch, lines, marked};

/// Everything at once.
fn full() -> Rules {
    let mark = NonZeroU32::new(MARK).unwrap();
    let addresses = vec!["10.77.0.1".parse().unwrap(), "fd77::1".parse().unwrap()];
    Rules {
        full_tunnel: Some(FullTunnel { mark, addresses, ipv4: true, ipv6: true }),
        kill_switch: Some(KillSwitch { own: OwnPackets::Marked(mark), local: Local::Blocked }),
        mss_clamp: true,
        ..Rules::none(NAME.parse().unwrap())
    }
}

fn present(world: &World) -> Present {
    world.machine.run(|| firewall::present(&NAME.parse().unwrap())).unwrap()
}

#[test]
fn rules_come_and_go_as_often_as_one_likes() {
    let Some(world) = World::without_tunnel() else { return };
    world.nft(&["add table inet weft-weft1; add table inet others; add table ip weft-weft0"]);
    let others = world.nft(&["list", "ruleset"]);
    let remove = || world.machine.run(|| firewall::remove(&NAME.parse().unwrap())).unwrap();
    remove();
    world.apply(&full());
    let once = world.nft(&["list", "ruleset"]);
    world.apply(&full());
    assert_eq!(world.nft(&["list", "ruleset"]), once);
    let tables: Vec<String> = present(&world).tables.iter().map(ToString::to_string).collect();
    assert_eq!(tables, ["ip wg-quick-weft0", "ip6 wg-quick-weft0", "inet weft-weft0"]);
    assert_eq!(present(&world).blocked, Some(0));
    // Less takes away what is not wanted any more.
    world.apply(&Rules { mss_clamp: true, ..Rules::none(NAME.parse().unwrap()) });
    let present = present(&world);
    assert_eq!((present.tables.len(), present.blocked), (1, None));
    remove();
    remove();
    assert_eq!(world.nft(&["list", "ruleset"]), others);
}

/// As contrib/gateway/gateway.nft makes one for an interface of this name.
#[test]
fn a_table_of_an_administrator_with_the_name_of_an_own_one_stays() {
    let Some(world) = World::without_tunnel() else { return };
    world.nft(&["add table inet weft-weft0; add chain inet weft-weft0 forward { type filter hook forward priority 0; }"]);
    let before = world.nft(&["list", "ruleset"]);
    let interface = NAME.parse().unwrap();
    world.machine.run(|| firewall::remove(&interface)).unwrap();
    assert_eq!((present(&world), world.machine.run(firewall::interfaces)), (Present::default(), vec![]));
    let refused = world.machine.run(|| firewall::apply(&full())).unwrap_err().to_string();
    assert!(refused.contains("a table inet weft-weft0, which is not weft's; rename it"), "{refused}");
    assert_eq!(world.nft(&["list", "ruleset"]), before);
}

#[test]
fn a_check_changes_nothing() {
    let Some(world) = World::without_tunnel() else { return };
    world.machine.run(|| firewall::check(&full())).unwrap();
    assert!(present(&world).is_empty());
}

#[test]
fn replacing_the_rules_leaves_no_gap() {
    let Some(world) = World::without_tunnel() else { return };
    let variants = [
        marked(Local::Blocked),
        marked(Local::Allowed { dns: BTreeSet::new() }),
        kill_switch(OwnPackets::new(0, ["203.0.113.1:51820".parse().unwrap()]), Local::Blocked),
        full(),
    ];
    world.apply(&variants[0]);
    let done = AtomicBool::new(false);
    let leaked = std::thread::scope(|scope| {
        // As fast as it can, which is many times in any gap.
        let (machine, done) = (&world.machine, &done);
        let sender = scope.spawn(move || {
            machine.run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                let to: SocketAddr = "203.0.113.9:53".parse().unwrap();
                let (mut tries, mut leaked) = (0_u64, 0_u64);
                while !done.load(Ordering::Relaxed) {
                    tries += 1;
                    leaked += u64::from(socket.send_to(b"leak", to).is_ok());
                }
                (tries, leaked)
            })
        });
        for rules in variants.iter().cycle().take(200) {
            world.apply(rules);
        }
        done.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    assert!(leaked.0 > 1000, "only {} tries", leaked.0);
    assert_eq!(leaked.1, 0, "of {} tries", leaked.0);
}

/// An initiation to the peer of [`configuration`], as the internet sees it.
const INITIATION: &str = "internet: udp 203.0.113.51 51820";

/// A configuration with a peer that is somewhere in the internet and never answers.
fn configuration() -> String {
    let [own, peer] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    format!(
        "[Interface]\nPrivateKey = {}\nFwMark = {MARK}\nAddress = 10.77.0.1/24, fd77::1/64\nTable = off\n\
         [Peer]\nPublicKey = {}\nEndpoint = 203.0.113.51:51820\nAllowedIPs = 0.0.0.0/0, ::/0\n",
        *own.to_base64(),
        peer.public_key()
    )
}

#[test]
fn before_a_handshake_only_the_tunnel_speaks() {
    let Some(mut world) = World::without_tunnel() else { return };
    let config = parse(&configuration(), "test.conf".as_ref(), NAME.parse().unwrap()).unwrap().config;
    let endpoints = config.endpoint_addresses();
    world.apply(&marked(Local::Blocked));
    let start = || Daemon::start(&config, &endpoints, &Options::default(), || {}).unwrap();
    let daemon = world.machine.run(start);
    world.ip(&["route", "add", "203.0.113.0/24", "dev", NAME]);
    world.ip(&["route", "add", "203.0.113.51", "via", "198.51.100.1"]);
    let (machine, client) = (attempts(&[forbidden()]), attempts(&[forbidden_for_clients()]));
    // It takes packets for the tunnel, and what leaves is the handshake that they ask for.
    let mut seen = world.seen(&machine, &client);
    if seen.is_empty() {
        world.ports.internet.wait_for("udp 203.0.113.51 51820");
    }
    seen.retain(|line| line != INITIATION);
    assert_eq!(seen, BTreeSet::new());
    daemon.stop().unwrap();
    assert_eq!(world.seen(&machine, &client), BTreeSet::new());
}

#[test]
fn the_kill_switch_outlives_a_daemon_that_is_killed() {
    let Some(mut world) = World::without_tunnel() else { return };
    world.apply(&marked(Local::Blocked));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(format!("{NAME}.conf"));
    lab::write_private(&file, &configuration()).unwrap();
    let mut command = world.machine.command(env!("CARGO_BIN_EXE_weft"));
    command.env("WEFT_RUNTIME_DIR", directory.path()).arg("up").arg(file);
    separate_sockets(&mut command);
    let daemon = Process::start(&world.machine, command).unwrap();
    let has_device = || world.machine.run(|| nix::net::if_::if_nametoindex(NAME).is_ok());
    until("the device is there", has_device);
    drop(daemon);
    until("the device is gone", || !has_device());
    let machine = attempts(&[forbidden()]);
    let mut seen = world.seen(&machine, &attempts(&[forbidden_for_clients()]));
    // The daemon may have sent one before it was killed: the kernel sends router solicitations into a new
    // device.
    seen.retain(|line| line != INITIATION);
    assert_eq!(seen, BTreeSet::new());
    assert!(present(&world).blocked.is_some_and(|blocked| blocked > 0));
    // What a later `weft down` does, which knows nothing but the name.
    world.machine.run(|| firewall::remove(&NAME.parse().unwrap())).unwrap();
    let free = [Attempt::udp("203.0.113.1", 53)];
    assert_eq!(world.seen(&free, &[]), lines(["internet: udp 203.0.113.1 53"]));
}
