use super::*;

const TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.0
              /8 host LOCAL
     |-- 192.0.2.2
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
     |-- 172.17.0.1
        /32 host LOCAL
     |-- 10.8.0.2
        /32 host LOCAL
     |-- 203.0.113.0
        /24 host LOCAL
";
const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
wg0\t0000080A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
wg0\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";
const INET6: &str = "\
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
20010db8000000000000000000000002 04 40 00 82     eth0
fd170000000000000000000000000001 05 40 00 82  docker0
00000000000000000000000000000001 01 80 10 80       lo
";
const ROUTES6: &str = "\
20010db8000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
20010db8000100000000000000000000 30 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 80200001       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 20010db8000000000000000000000001 00000400 00000003 00000000 00000003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

fn machine(allowed: &[&str]) -> (tempfile::TempDir, Machine) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("fib_trie", TRIE), ("route", ROUTES), ("if_inet6", INET6), ("ipv6_route", ROUTES6)]
    {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
    let machine = Machine::read_from(dir.path().to_owned(), allowed);
    (dir, machine)
}

#[test]
fn this_machine_and_what_it_alone_is_next_to_are_near() {
    let (_dir, machine) = machine(&[]);
    let near = |text: &str| machine.is_near(text.parse().unwrap());
    for own in [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "192.0.2.2",
        "192.0.2.255",
        "172.17.0.1",
        "203.0.113.77",
        "2001:db8::2",
        "2001:db8:1::77",
        "fd17::1",
        // The same addresses by way of what translates them.
        "::ffff:127.0.0.1",
        "::ffff:192.0.2.2",
        "::192.0.2.2",
        "::ffff:0:192.0.2.2",
        "64:ff9b::192.0.2.2",
        "64:ff9b::127.0.0.1",
        "64:ff9b:1::192.0.2.2",
        "2002:c000:0202::1",
        "2001:0:1:2:3:4:3fff:fdfd",
    ] {
        assert_eq!(near(own), Some(Near::Machine), "{own}");
    }
    for local in ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254"] {
        assert_eq!(near(local), Some(Near::LinkLocal), "{local}");
    }
    for several in ["224.0.0.251", "255.255.255.255", "ff02::1", "64:ff9b::224.0.0.1"] {
        assert_eq!(near(several), Some(Near::Several), "{several}");
    }
    for (address, net, device) in [
        ("172.17.0.2", "172.17.0.0/16", "docker0"),
        ("64:ff9b::172.17.0.2", "172.17.0.0/16", "docker0"),
        ("fd17::2", "fd17::/64", "docker0"),
        ("10.8.0.1", "10.8.0.0/24", "wg0"),
    ] {
        let expected = Near::Network(net.parse().unwrap(), device.to_owned());
        assert_eq!(near(address), Some(expected), "{address}");
    }
    // The Internet, neighbours on the way there, and what is behind a tunnel of this machine.
    for far in
        ["198.51.100.1", "192.0.2.3", "2001:db8::3", "2001:db9::1", "10.9.0.1", "64:ff9b::198.51.100.1"]
    {
        assert_eq!(near(far), None, "{far}");
    }
}

#[test]
fn what_is_allowed_by_name_is_reached_but_never_the_loopback() {
    let (_dir, machine) = machine(&["172.17.0.0/16", "169.254.169.254/32", "192.0.2.2/32", "127.0.0.0/8"]);
    for allowed in ["172.17.0.1", "172.17.0.2", "169.254.169.254", "192.0.2.2", "::ffff:172.17.0.2"] {
        assert_eq!(machine.is_near(allowed.parse().unwrap()), None, "{allowed}");
    }
    for refused in ["169.254.0.1", "10.8.0.1", "127.0.0.1"] {
        assert!(machine.is_near(refused.parse().unwrap()).is_some(), "{refused}");
    }
}

#[test]
fn an_address_counts_as_soon_as_it_is_there_and_nothing_is_reached_if_it_cannot_be_known() {
    let (dir, machine) = machine(&[]);
    let address = "198.51.100.7".parse().unwrap();
    assert_eq!(machine.is_near(address), None);
    let trie = format!("{TRIE}     |-- 198.51.100.7\n        /32 host LOCAL\n");
    std::fs::write(dir.path().join("fib_trie"), trie).unwrap();
    machine.look_again();
    assert_eq!(machine.is_near(address), Some(Near::Machine));
    std::fs::remove_file(dir.path().join("fib_trie")).unwrap();
    machine.look_again();
    assert!(matches!(machine.is_near("203.0.114.1".parse().unwrap()), Some(Near::Unknown(_))));
    // Without IPv6 the others are enough.
    std::fs::write(dir.path().join("fib_trie"), TRIE).unwrap();
    std::fs::remove_file(dir.path().join("if_inet6")).unwrap();
    std::fs::remove_file(dir.path().join("ipv6_route")).unwrap();
    machine.look_again();
    assert_eq!(machine.is_near(address), None);
}
