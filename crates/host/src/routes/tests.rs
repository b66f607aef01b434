//! Tests of what is decided without the kernel.

use weft_config::{Config, parse};

use super::*;

pub(crate) fn config(interface: &str, allowed_ips: &str) -> Config {
    let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    let peer = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
    let text = format!(
        "[Interface]\nPrivateKey={key}\n{interface}\n[Peer]\nPublicKey={peer}\nAllowedIPs={allowed_ips}\n"
    );
    parse(&text, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config
}

fn routes(interface: &str, allowed_ips: &str) -> Option<(u32, Vec<String>)> {
    let config = config(interface, allowed_ips);
    let (table, prefixes) = planned_routes(&config.interface, &config.peers)?;
    Some((table, prefixes.iter().map(IpNet::to_string).collect()))
}

#[test]
fn routes_come_longest_first_and_only_where_the_kernel_has_none() {
    let (table, prefixes) =
        routes("Address=10.0.0.1/24, fd00::1/64", "10.0.0.2, 10.0.0.0/8, 10.1.0.0/16, fd00::2, fd00::/8")
            .unwrap();
    assert_eq!(table, MAIN_TABLE);
    assert_eq!(prefixes, ["10.1.0.0/16", "10.0.0.0/8", "fd00::/8"]);
}

#[test]
fn a_single_ipv4_address_has_no_connected_route() {
    assert_eq!(routes("Address=10.0.0.1", "10.0.0.1/32").unwrap().1, ["10.0.0.1/32"]);
    assert_eq!(routes("Address=fd00::1", "fd00::1").unwrap().1, [""; 0]);
    assert_eq!(routes("Address=0.0.0.1/8", "0.0.0.2").unwrap().1, ["0.0.0.2/32"]);
}

#[test]
fn another_table_gets_all_routes_and_off_none() {
    let (table, prefixes) = routes("Table=51820\nAddress=10.0.0.1/24", "10.0.0.2, 0.0.0.0/0").unwrap();
    assert_eq!((table, prefixes.len()), (51_820, 2));
    assert_eq!(routes("Table=off", "0.0.0.0/0"), None);
}

#[test]
fn macos_has_no_names_but_utun_with_a_number() {
    assert!(check_utun("utun0").is_ok() && check_utun("utun4711").is_ok());
    for name in ["wg0", "utun", "utun07", "utun-1", "utun+1", "utun1x", "xutun1"] {
        let error = check_utun(name).unwrap_err();
        assert_eq!(error.exit_code(), exit::Code::Usage);
        let said = error.to_string();
        assert!(said.contains(name) && said.contains("utun70.conf") && !said.contains('\n'), "{said}");
    }
    let wg0 = "wg0".parse().unwrap();
    assert_eq!(check_name(&wg0).is_ok(), !cfg!(target_os = "macos"));
}
