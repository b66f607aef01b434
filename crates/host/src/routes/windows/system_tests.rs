//! Calls that change nothing, on Windows and under Wine.

use super::*;
use crate::routes::tables::Tables as _;
use crate::routes::{MAIN_TABLE, Netlink, Via};

#[test]
fn an_address_is_the_same_as_it_was_written() {
    for text in ["192.0.2.1", "0.0.0.0", "2001:db8::1", "fe80::1", "::"] {
        let ip: IpAddr = text.parse().unwrap();
        assert_eq!(address(&sockaddr(ip)), Some(ip));
    }
    assert_eq!(address(&SOCKADDR_INET::default()), None);
}

#[test]
fn the_tables_are_read_and_fit_each_other() {
    let adapters = System.adapters().unwrap();
    let loopback = adapters.iter().find(|adapter| adapter.is_loopback).expect("a loopback interface");
    assert!(loopback.index > 0 && !loopback.name.is_empty() && loopback.is_up, "{loopback:?}");
    assert_eq!(System.luid(loopback.index).unwrap(), loopback.luid);
    assert!(matches!(System.luid(u32::MAX), Err(Refusal::Gone)));
    let local = (loopback.luid, "127.0.0.1/8".parse().unwrap());
    let addresses = System.addresses().unwrap();
    assert!(addresses.contains(&local), "{addresses:?}");
    for row in System.routes().unwrap() {
        assert!(adapters.iter().any(|adapter| adapter.luid == row.luid), "{row:?}");
    }
}

#[test]
fn routes_lead_to_interfaces_that_have_the_name_and_an_mtu() {
    let netlink = Netlink::open().unwrap();
    for route in netlink.tables.routes(MAIN_TABLE).unwrap() {
        let Some(name) = route.via.interface() else { continue };
        let link = netlink.tables.link(name).unwrap();
        assert!(link.index > 0 && link.mtu >= 68, "{link:?}");
        assert_eq!(netlink.tables.mtu(name), Some(link.mtu));
    }
    let missing = netlink.link(&"weft-none".parse().unwrap()).unwrap_err().to_string();
    assert_eq!(missing, "there is no interface weft-none");
}

#[test]
fn the_loopback_interface_is_where_a_route_to_nowhere_leads() {
    let found = Netlink::open().unwrap().tables.endpoint_route("192.0.2.1".parse().unwrap(), &Via::Blackhole);
    let loopback = System.adapters().unwrap().into_iter().find(|adapter| adapter.is_loopback).unwrap();
    assert_eq!(found.unwrap().luid, loopback.luid);
}

#[test]
fn a_call_that_the_library_lacks_is_an_error_that_names_it() {
    let lacking = call(c"WeftNoSuchCall", || panic!("it is not there")).unwrap_err();
    let Refusal::Failed(error) = lacking else { panic!("{lacking:?}") };
    assert_eq!(error.to_string(), "iphlpapi.dll has no WeftNoSuchCall");
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn an_error_of_the_system_has_its_text() {
    assert!(check(NO_ERROR).is_ok());
    assert!(matches!(check(ERROR_OBJECT_ALREADY_EXISTS), Err(Refusal::Exists)));
    assert!(matches!(check(ERROR_NOT_FOUND), Err(Refusal::Gone)));
    let denied = check(windows_sys::Win32::Foundation::ERROR_ACCESS_DENIED).unwrap_err();
    let Refusal::Failed(error) = denied else { panic!("{denied:?}") };
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}
