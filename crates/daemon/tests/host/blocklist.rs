//! A router with a firewall that blocks many addresses.

use std::fmt::Write as _;

use weft_lab::here;
use weft_lab::memory_group::MemoryGroup;

use crate::support::{End, Network};

const ADDRESSES: u32 = 200_000;
/// nft takes 130 MiB if it reads all these addresses.
const MEMORY: u64 = 96 << 20;

#[test]
fn a_router_that_blocks_many_addresses_needs_no_memory_for_them() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let group = match MemoryGroup::new(MEMORY) {
        Ok(group) => group,
        Err(error) => return here::not_run(&error.to_string()),
    };
    let mut set = "table inet blocklist {\n set blocked {\n type ipv4_addr\n elements = {".to_owned();
    for host in 0..ADDRESSES {
        let [_, a, b, c] = host.to_be_bytes();
        write!(set, "11.{a}.{b}.{c},").unwrap();
    }
    set.push_str("}\n }\n}\n");
    let set = network.file("blocklist", &set);
    assert!(network.client.command("nft").arg("-f").arg(set).status().unwrap().success());

    let before = network.picture();
    let file = network.file("weft0.conf", &End::new(1).interface("# weft: KillSwitch = on"));
    let mut up = network.weft_up(&file);
    group.apply(&mut up).unwrap();
    network.start(up).stop();
    network.assert_as(&before);
    assert_eq!(group.killed().unwrap(), 0);
}
