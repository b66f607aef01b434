use std::io;

use weft_config::exit;

use super::*;

fn none() -> Rules {
    Rules::none("wg0".parse().unwrap())
}

fn to(endpoints: &[&str]) -> Rules {
    let endpoints = endpoints.iter().map(|endpoint| endpoint.parse::<SocketAddr>().unwrap());
    let own = OwnPackets::new(0, endpoints);
    Rules { kill_switch: Some(KillSwitch { own, local: Local::Blocked }), ..none() }
}

fn full_tunnel(ipv4: bool, ipv6: bool) -> Rules {
    let addresses = vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let mark = NonZeroU32::new(0xca6c).unwrap();
    Rules { full_tunnel: Some(FullTunnel { mark, addresses, ipv4, ipv6 }), ..none() }
}

#[test]
fn rules_that_do_the_same_are_equal() {
    assert_eq!(
        to(&["192.0.2.1:1", "192.0.2.2:1"]),
        to(&["192.0.2.2:1", "[::ffff:192.0.2.1]:1", "192.0.2.2:1"])
    );
    assert_eq!(to(&["[fe80::1%3]:1"]), to(&["[fe80::1]:1"]));
    assert_ne!(to(&["192.0.2.1:1"]), to(&["192.0.2.1:2"]));
    // With a mark it does not matter where the peers are.
    let endpoint = "192.0.2.1:1".parse().unwrap();
    assert_eq!(OwnPackets::new(7, [endpoint]), OwnPackets::new(7, []));
}

#[test]
fn nothing_wanted_is_nothing_to_do() {
    assert!(none().is_empty() && none().to_string().is_empty());
    assert!(full_tunnel(false, false).is_empty());
    assert!(!full_tunnel(false, true).is_empty());
    assert!(!to(&[]).is_empty());
    assert!(!Rules { mss_clamp: true, ..none() }.is_empty());
}

#[test]
fn what_is_done_is_told_line_by_line() {
    let dns = BTreeSet::from(["192.168.1.1".parse().unwrap()]);
    let own = OwnPackets::new(0xca6c, []);
    let rules = Rules {
        kill_switch: Some(KillSwitch { own, local: Local::Allowed { dns } }),
        mss_clamp: true,
        ..full_tunnel(true, true)
    };
    let expected = "\
nftables table ip wg-quick-wg0: take packets to 10.0.0.2 through wg0 only, and give answers to the tunnel's UDP packets \
its mark 0xca6c back
nftables table ip6 wg-quick-wg0: take packets to fd00::2 through wg0 only, and give answers to the tunnel's UDP packets \
its mark 0xca6c back
nftables table inet weft-wg0: let nothing leave but through wg0, except DHCP, neighbour discovery, UDP with the mark \
0xca6c, and to local networks all but DNS, which 192.168.1.1 may be asked
nftables table inet weft-wg0: clamp the MSS of TCP forwarded through wg0 to the MTU of its route";
    assert_eq!(rules.to_string(), expected);
    let clamp = Rules { mss_clamp: true, mtu: Some(1420), ..none() };
    assert!(clamp.to_string().ends_with("clamp the MSS of TCP forwarded through wg0 to its MTU of 1420"));
    let many: Vec<String> = (1..=6).map(|host| format!("192.0.2.{host}:51820")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let text = to(&many).to_string();
    assert!(
        text.ends_with("UDP to 192.0.2.1:51820, 192.0.2.2:51820, 192.0.2.3:51820, 192.0.2.4:51820, 2 more"),
        "{text}"
    );
    assert!(to(&[]).to_string().ends_with("neighbour discovery"));
}

#[test]
fn errors_have_the_exit_codes_of_the_program() {
    let (action, program, advice) = (|| "do it".to_owned(), "nft", "");
    let code = |error: FirewallError| error.exit_code();
    assert_eq!(code(FirewallError::Permission { action: action(), advice }), exit::Code::Permission);
    assert_eq!(code(FirewallError::Missing { action: action(), program, advice }), exit::Code::Failure);
    let error = io::ErrorKind::PermissionDenied.into();
    assert_eq!(code(FirewallError::Run { action: action(), program, error }), exit::Code::Permission);
}
