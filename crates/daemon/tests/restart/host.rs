//! What is around the interface while it is started again.

use weft_lab::{self as lab, here};

use crate::world::{NAME, World, file_of, file_of_b};

fn full_tunnel(lines: &str) -> String {
    file_of(1, lines, "AllowedIPs = 0.0.0.0/0, 10.88.0.0/16\nEndpoint = 192.0.2.2:51820")
}

#[test]
fn a_full_tunnel_keeps_its_rules_its_mark_and_its_packet_filter() {
    let Some(mut world) = World::up(&full_tunnel("# weft: KillSwitch = on"), &file_of_b()) else { return };
    let stream = world.stream(1);
    let before = world.picture();
    let mark = world.weft_ok(&["show", "weft0", "fwmark"]);
    world.stop_for_restart();
    assert_eq!(world.picture(), before);
    assert!(world.filter().contains("weft0"), "nothing may leave beside the tunnel meanwhile");
    world.start();
    stream.end();
    assert_eq!(world.picture(), before);
    assert_eq!(world.weft_ok(&["show", "weft0", "fwmark"]), mark);
    assert!(world.filter().contains("weft0"));

    // Without a full tunnel in the file nothing of it stays.
    world.write(&file_of(1, "", "Endpoint = 192.0.2.2:51820"));
    world.restart();
    assert!(!world.ip("-4 rule").contains("fwmark"));
    assert!(!world.filter().contains("weft0"), "{}", world.filter());
    world.stop();
}

#[test]
fn what_others_removed_comes_back_with_a_restart() {
    let Some(mut world) = World::up(&full_tunnel(""), &file_of_b()) else { return };
    let before = world.picture();
    let filter = world.filter();
    world.ip("route del 10.88.0.0/16 dev weft0");
    world.ip("rule del table main suppress_prefixlength 0");
    world.ip("address add 10.79.0.1/24 dev weft0");
    world.command("nft").args(["flush", "ruleset"]).status().unwrap();
    world.restart();
    let after = world.picture();
    assert!(before.iter().all(|item| after.contains(item)), "{before:#?} {after:#?}");
    assert!(after.iter().any(|item| item.contains("10.79.0.1")), "what others added is theirs");
    assert_eq!(world.filter(), filter);
}

#[test]
fn a_restart_leaves_a_device_silent_and_what_a_user_made_of_it() {
    let Some(mut world) = World::up(&full_tunnel(""), &file_of_b()) else { return };
    let device = |world: &World| {
        let link = world.ip("-d link show dev weft0");
        assert!(link.contains("addrgenmode none"), "{link}");
        link.contains("MULTICAST")
    };
    assert!(!device(&world));
    world.restart();
    assert!(!device(&world));
    // A routing daemon that runs through the tunnel needs multicast.
    world.ip("link set dev weft0 multicast on");
    world.restart();
    assert!(device(&world), "a user has switched it on");

    // A version of weft that left no such record, and another program, leave devices as the kernel makes
    // them.
    world.stop_for_restart();
    world.ip("link set dev weft0 addrgenmode eui64");
    world.edit_record(|record| assert_eq!(record.remove("is_silent"), Some(true.into())));
    world.start();
    assert!(!device(&world));
    world.stop();
}

#[test]
fn other_addresses_by_a_restart_are_as_good_as_by_a_start_and_so_are_the_routes() {
    let Some(mut world) = World::new() else { return };
    // The kernel's own choice: with an address go the others of its network.
    for name in ["all", "default"] {
        world.a.set_sysctl(&format!("net/ipv4/conf/{name}/promote_secondaries"), "0").unwrap();
    }
    let networks =
        "AllowedIPs = 10.77.0.0/24, 10.88.0.0/16, fd77::/64, fd88::/48\nEndpoint = 192.0.2.2:51820";
    let file = |addresses: &str| {
        let file = file_of(1, "", networks).replace("AllowedIPs = 10.77.0.2/32\n", "");
        file.replace("10.77.0.1/24", addresses)
    };
    let base = file("10.77.0.1/24, fd77::1/64");
    let others =
        ["10.77.0.3/24, fd77::1/64", "10.77.0.1/24, fd77::1/128", "10.77.0.1/32, fd77::1/64", "fd77::1/64"];
    let others = others.map(file);
    // One address may be told before another one, and the link-local one of a device is its own.
    let own = |world: &World| {
        let mut own: Vec<String> =
            world.picture().iter().map(|item| item.replace(" secondary", "")).collect();
        own.retain(|item| {
            (item.contains("inet") || item.contains("weft0"))
                && !item.contains("fe80")
                && !item.contains("mtu")
        });
        own.sort();
        own
    };
    world.start_both(&base, &file_of_b().replace("10.77.0.1/32", "10.77.0.1/32, 10.77.0.3/32"));
    let in_the_beginning = own(&world);
    let mut by_restart = Vec::new();
    for other in &others {
        world.write(other);
        world.restart();
        by_restart.push(own(&world));
        // B knows no other addresses of A.
        if other.contains("Address = 10.77.0.") {
            world.stream(1).end();
        }
        world.write(&base);
        world.restart();
        lab::until("it is as it was", || own(&world) == in_the_beginning);
    }
    world.stop();
    world.empty_the_store();
    for (other, by_restart) in others.iter().zip(by_restart) {
        world.write(other);
        world.start();
        lab::wait_until_ok(|| {
            let started = own(&world);
            let differs = || format!("{other}\nby a restart: {by_restart:#?}\nby a start: {started:#?}");
            (started == by_restart).then_some(()).ok_or_else(differs)
        });
        world.stop();
        world.empty_the_store();
    }
}

#[test]
fn a_kill_switch_holds_when_the_next_start_fails() {
    if !here::installed(&["nft"]) {
        return;
    }
    let Some(mut world) = World::up(&full_tunnel("# weft: KillSwitch = on"), &file_of_b()) else { return };
    let filter = world.filter();
    assert!(filter.contains("chain output"), "{filter}");
    world.stop_for_restart();
    world.write(&full_tunnel("# weft: KillSwitch = on\nPostUp = false"));
    world.spawn();
    assert_eq!(world.wait().code(), Some(1), "{}", world.log());
    assert_eq!(world.filter(), filter);
    world.stop_post();
    assert_eq!(world.filter(), filter);
    world.weft_ok(&["down", NAME]);
    assert_eq!(world.filter(), "");
}

#[test]
fn a_record_of_a_newer_weft_is_kept_and_the_interface_goes_on() {
    if !here::installed(&["nft"]) {
        return;
    }
    let Some(mut world) = World::up(&full_tunnel("# weft: KillSwitch = on"), &file_of_b()) else { return };
    let (before, filter) = (world.picture(), world.filter());
    world.stop_for_restart();
    let of_newer = r#"{"version":2,"of":"another form"}"#;
    let record = world.directory.path().join("run/weft0/record.json");
    std::fs::write(&record, of_newer).unwrap();
    world.start();
    let told = "record.json.unread: it is of version 2, of a newer weft; ";
    assert!(world.log().contains(told), "{}", world.log());
    assert_eq!(std::fs::read_to_string(record.with_extension("json.unread")).unwrap(), of_newer);
    assert_eq!((world.picture(), world.filter()), (before, filter));
    world.stream(1).end();
    world.stop();
    assert!(!world.ip("-4 rule").contains("fwmark"));
    assert_eq!(world.filter(), "");
}

#[test]
fn a_kill_switch_holds_until_a_service_whose_device_was_deleted_is_up_again() {
    if !here::installed(&["nft"]) {
        return;
    }
    let Some(mut world) = World::up(&full_tunnel("# weft: KillSwitch = on"), &file_of_b()) else { return };
    world.stream(1).end();
    let filter = world.filter();
    let mark = world.weft_ok(&["show", NAME, "fwmark"]);
    world.ip("link del weft0");
    assert!(!world.wait().success(), "so that it is started again");
    assert_eq!(world.filter(), filter);
    world.stop_post();
    assert_eq!(world.filter(), filter);
    world.start();
    assert_eq!(world.filter(), filter);
    assert_eq!(world.weft_ok(&["show", NAME, "fwmark"]), mark);
    world.stream(1).end();
    world.stop();
    assert_eq!(world.filter(), "");
}
