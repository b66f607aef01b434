//! `weft reload` while streams pass: what does not differ is not touched.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use weft_lab::traffic::Amount;
use weft_lab::{Namespace, Transfer, link, until, wait_until_ok};

use crate::support::{
    Conf, End, Ends, Family, NAME, PeerConf, Running, addresses_of, alone, answers, links_of, routes_of,
};

const FLOWS: u32 = 4;
const BYTES: u64 = 8 << 20;

#[test]
fn a_reload_under_load_ends_no_session_and_loses_nothing() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf_a, &[]);
    let b = Running::up(&ends.b, &conf_b, &[]);
    assert!(answers(&ends.a, End::B.inner(Family::V4)));
    assert!(a.reload(&conf_a, &[]).is_empty(), "nothing differs");

    let mut more = conf_a.clone();
    more.addresses.push("10.78.0.1/24".to_owned());
    more.peers[0].persistent_keepalive = Some(25);
    let mut stranger = PeerConf::new(Conf::new().private_key.public_key());
    stranger.allowed_ips.push("10.88.0.0/16".to_owned());
    more.peers.push(stranger);

    let transfer = ends.transfer(End::A, Family::V4, FLOWS, Amount::Count(BYTES));
    let mut reloads = 0;
    while !transfer.is_finished() || reloads < 2 {
        let told = a.reload(if reloads % 2 == 0 { &more } else { &conf_a }, &[]);
        assert_eq!(told.len(), 4, "a peer, its route, an address and a keepalive: {told:?}");
        reloads += 1;
    }
    assert_eq!(transfer.finish(), u64::from(FLOWS) * BYTES);
    let report = a.status("0");
    assert_eq!(report["tunnel"]["handshakes"], 1, "{report:#}");
    // On a machine that is busy with other things datagrams arrive faster than they can be opened, and TCP
    // sends them again; nothing else may be dropped.
    assert!(
        report["drops"].as_array().unwrap().iter().all(|drop| drop["reason"] == "overload"),
        "{report:#}"
    );

    a.reload(&more, &[]);
    assert!(addresses_of(&ends.a).iter().any(|address| address.contains("10.78.0.1")));
    assert!(routes_of(&ends.a).iter().any(|route| route.contains("10.88.0.0/16")));
    let told = a.reload(&conf_a, &["--dry-run"]);
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(routes_of(&ends.a).iter().any(|route| route.contains("10.88.0.0/16")), "that was only told");
    a.stop();
    b.stop();
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_applied_whole_or_not_at_all() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf_a, &[]);
    let b = Running::up(&ends.b, &conf_b, &[]);
    let transfer = Transfer::endless(&ends.a, &ends.b, End::B.inner(Family::V4)).unwrap();
    let mut more = conf_a.clone();
    more.addresses.push("10.78.0.1/24".to_owned());
    for number in 0..10 {
        let mut peer = PeerConf::new(Conf::new().private_key.public_key());
        peer.allowed_ips.push(format!("10.88.{number}.0/24"));
        more.peers.push(peer);
    }
    let texts = [conf_a.text(), more.text()];
    let file = a.directory().join(format!("{NAME}.conf"));
    let is_over = AtomicBool::new(false);
    // By another file in its place, and in place: then it is empty for a moment.
    let replace = || {
        for (number, text) in texts.iter().cycle().enumerate() {
            if is_over.load(Relaxed) {
                return;
            }
            if number % 4 < 2 {
                let new = file.with_extension("new");
                weft_lab::write_private(&new, text).unwrap();
                std::fs::rename(&new, &file).unwrap();
            } else {
                weft_lab::write_private(&file, text).unwrap();
            }
        }
    };
    let peers = || a.status("0")["peers"].as_array().unwrap().len();
    std::thread::scope(|scope| {
        scope.spawn(replace);
        let _end = EndWriter(&is_over);
        let (mut done, mut seen) = (0, [false; 2]);
        while done < 20 || seen != [true; 2] {
            let before = peers();
            let output = a.weft(&["reload", file.to_str().unwrap()]);
            match output.status.code() {
                Some(0) => done += 1,
                Some(78) => assert_eq!(peers(), before, "{output:?}"),
                _ => panic!("{output:?}"),
            }
            let addresses = addresses_of(&ends.a);
            let has_more = addresses.iter().any(|address| address.contains("10.78.0.1"));
            let routes = routes_of(&ends.a).iter().filter(|route| route.contains("10.88.")).count();
            assert_eq!((peers(), routes), if has_more { (11, 10) } else { (1, 0) }, "{output:?}");
            seen[usize::from(has_more)] = true;
        }
    });
    assert_eq!(a.status("0")["tunnel"]["handshakes"], 1);
    transfer.end();
    a.stop();
    b.stop();
}

/// Ends the thread that writes, also where the test fails.
struct EndWriter<'a>(&'a AtomicBool);

impl Drop for EndWriter<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_reload_that_is_wrong_or_fails_changes_nothing() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, _) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf_a, &[]);
    let own = own_of(&ends.a);

    let file = conf_a.write(a.directory(), NAME);
    std::fs::write(&file, conf_a.text().replace("AllowedIPs", "AlowedIPs")).unwrap();
    let output = a.weft(&["reload", file.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("AlowedIPs") && stderr.contains("did you mean `AllowedIPs`"), "{stderr}");

    // Another program has the port: what was done for the new addresses is taken back.
    let taken = ends.a.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap();
    let mut conf = conf_a.clone();
    conf.listen_port = Some(taken.local_addr().unwrap().port());
    for others in [&["10.78.0.1/24"][..], &["10.77.0.3/24", "fd77::1/128"], &["10.77.0.1/32"]] {
        conf.addresses = others.iter().map(|&address| address.to_owned()).collect();
        let file = conf.write(a.directory(), NAME);
        let output = a.weft(&["reload", file.to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("in use"), "{stderr}");
        // The kernel adds the routes of an IPv6 address a moment after the address.
        wait_until_ok(|| {
            let now = own_of(&ends.a);
            (now == own).then_some(()).ok_or_else(|| format!("{others:?}: {now:#?}, not {own:#?}"))
        });
    }
    assert_eq!(a.status("0")["listen_port"], conf_a.listen_port.unwrap());
    assert!(a.reload(&conf_a, &[]).is_empty(), "it is as it was");
    a.stop();
}

#[test]
fn an_mtu_set_by_hand_outlives_a_reload_and_a_configured_one_comes_back() {
    let Some(ends) = Ends::new(1500) else { return };
    let (mut conf, _) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf, &[]);
    let mtu = || links_of(&ends.a).into_iter().find(|(name, ..)| name == NAME).unwrap().1;
    let set_by_hand = |mtu| link::set_mtu(&ends.a, NAME, mtu).unwrap();
    assert_eq!(mtu(), 1420);

    set_by_hand(1300);
    assert!(a.reload(&conf, &[]).is_empty());
    assert_eq!((mtu(), &a.status("0")["mtu"]), (1300, &1300.into()));
    link::set_mtu(&ends.a, "eth0", 1400).unwrap();
    conf.peers[0].persistent_keepalive = Some(25);
    assert_eq!(a.reload(&conf, &[]).len(), 1, "the keepalive");
    assert_eq!((mtu(), &a.status("0")["mtu"]), (1300, &1300.into()));

    conf.mtu = Some(1350);
    assert_eq!(a.reload(&conf, &[]), ["set mtu 1350 dev weft0"]);
    assert_eq!(mtu(), 1350);
    set_by_hand(1300);
    assert_eq!(a.reload(&conf, &[]), ["set mtu 1350 dev weft0"]);
    assert_eq!((mtu(), &a.status("0")["mtu"]), (1350, &1350.into()));

    conf.mtu = None;
    assert_eq!(a.reload(&conf, &[]), ["set mtu 1320 dev weft0"]);
    assert_eq!(mtu(), 1320);
    link::set_mtu(&ends.a, "eth0", 1500).unwrap();
    until("it follows the way to the peer", || mtu() == 1420);
    assert!(a.reload(&conf, &[]).is_empty());
    a.stop();
}

#[test]
fn an_endpoint_that_was_set_goes_back_to_that_of_the_file_and_one_that_was_learnt_stays() {
    let Some(ends) = Ends::new(1500) else { return };
    let (mut conf, conf_b) = Conf::pair(Family::V4);
    let of_b = conf.peers[0].endpoint.replace("192.0.2.99:9".parse().unwrap()).unwrap().to_string();
    let a = Running::up(&ends.a, &conf, &[]);
    let b = Running::up(&ends.b, &conf_b, &[]);
    let key = conf.peers[0].public_key.to_string();
    let set = || {
        let output = a.weft(&["set", NAME, "peer", &key, "endpoint", "192.0.2.98:9"]);
        assert!(output.status.success(), "{output:?}");
    };
    let endpoint = || a.status("0")["peers"][0]["endpoint"].as_str().unwrap().to_owned();
    set();
    assert_eq!(endpoint(), "192.0.2.98:9");
    assert!(answers(&ends.b, End::A.inner(Family::V4)));
    assert!(a.reload(&conf, &[]).is_empty());
    assert_eq!(endpoint(), of_b, "it was heard from there");

    // What it sends would be learnt.
    b.stop();
    set();
    let steps = [format!("change endpoint of peer {key}")];
    assert_eq!((a.reload(&conf, &["--dry-run"]), endpoint()), (steps.to_vec(), "192.0.2.98:9".to_owned()));
    assert_eq!((a.reload(&conf, &[]), endpoint()), (steps.to_vec(), "192.0.2.99:9".to_owned()));
    assert!(a.reload(&conf, &[]).is_empty());
    a.stop();
}

/// Addresses and routes of the device, without those that it has anyway.
fn own_of(namespace: &Namespace) -> Vec<String> {
    let (addresses, routes) = (addresses_of(namespace), routes_of(namespace));
    let is_own =
        |item: &String| item.ends_with(" dev weft0") && !item.contains("fe80:") && !item.contains("ff00:");
    let mut own: Vec<String> = addresses.into_iter().chain(routes).filter(is_own).collect();
    own.sort();
    own
}

#[test]
fn other_addresses_by_a_reload_are_as_good_as_by_a_start_and_so_are_the_routes() {
    let Some(ends) = Ends::new(1500) else { return };
    // The kernel's own choice: with an address go the others of its network.
    for name in ["all", "default"] {
        ends.a.set_sysctl(&format!("net/ipv4/conf/{name}/promote_secondaries"), "0").unwrap();
    }
    let (mut base, mut conf_b) = Conf::pair(Family::V4);
    base.peers[0].allowed_ips =
        ["10.77.0.0/24", "10.88.0.0/16", "fd77::/64", "fd88::/48"].map(str::to_owned).into();
    conf_b.peers[0].allowed_ips =
        ["10.77.0.1", "10.77.0.3", "10.78.0.1", "fd77::1"].map(str::to_owned).into();
    let with = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
        Conf { addresses, ..base.clone() }
    };
    let others = [
        with(&["10.77.0.3/24", "fd77::1/64"]),
        with(&["10.77.0.3/24", "10.77.0.1/24", "fd77::1/64"]),
        with(&["10.77.0.1/24", "fd77::1/128"]),
        with(&["10.77.0.1/32", "fd77::1/64"]),
        with(&["10.78.0.1/24", "fd77::1/48"]),
        with(&["fd77::1/64"]),
        with(&["10.77.0.1/24"]),
    ];
    let started = others.each_ref().map(|conf| {
        let a = Running::up(&ends.a, conf, &[]);
        let own = own_of(&ends.a);
        a.stop();
        own
    });
    let b = Running::up(&ends.b, &conf_b, &[]);
    let a = Running::up(&ends.a, &base, &[]);
    let in_the_beginning = own_of(&ends.a);
    let expect = |conf: &Conf, expected: &Vec<String>| {
        a.reload(conf, &[]);
        // The kernel adds the routes of an IPv6 address a moment after the address.
        wait_until_ok(|| {
            let own = own_of(&ends.a);
            (own == *expected)
                .then_some(())
                .ok_or(format!("{:?}: {own:#?}, not {expected:#?}", conf.addresses))
        });
        for family in [Family::V4, Family::V6] {
            let has_address = |address: &String| address.contains(':') == (family == Family::V6);
            if conf.addresses.iter().any(has_address) {
                assert!(answers(&ends.a, End::B.inner(family)), "{:?}", conf.addresses);
            }
        }
        assert!(a.reload(conf, &[]).is_empty(), "nothing is left to do: {:?}", conf.addresses);
    };
    for (conf, expected) in others.iter().zip(&started) {
        expect(conf, expected);
        expect(&base, &in_the_beginning);
    }
    a.stop();
    b.stop();
}
