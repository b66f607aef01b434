//! The client changes from one uplink to the other, and the address before remains its own: nothing fails,
//! but what is sent from the old address by the new uplink is thrown away there, as by most providers.
//!
//! ```text
//!             up1 10.92.1.2 ─── 10.92.1.1 in1
//!   client                                     router  out ─── wan 10.92.9.2  server
//!             up2 10.92.2.2 ─── 10.92.2.1 in2
//! ```

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, here, until};

use crate::conversation::MIB;
use crate::weft::{PORT, Pair, options, talk};

const SERVER_AT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 92, 9, 2));

struct Uplinks {
    client: Namespace,
    _router: Namespace,
    server: Namespace,
}

impl Uplinks {
    fn new() -> std::io::Result<Self> {
        let [client, router, server] =
            ["client", "router", "server"].map(|name| Namespace::new(name).unwrap());
        for (end, subnet, name, at_router) in
            [(&client, 1, "up1", "in1"), (&client, 2, "up2", "in2"), (&server, 9, "wan", "out")]
        {
            let address = |host| vec![format!("10.92.{subnet}.{host}/24").parse().unwrap()];
            let options = LinkOptions {
                name_a: name.to_owned(),
                name_b: at_router.to_owned(),
                addresses_a: address(2),
                addresses_b: address(1),
                ..LinkOptions::default()
            };
            link::join(end, &router, &options)?;
        }
        router.set_sysctl("net/ipv4/ip_forward", "1")?;
        router.set_sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        client.set_sysctl("net/ipv4/conf/all/rp_filter", "0")?;
        link::add_route(&server, "0.0.0.0/0".parse().unwrap(), "10.92.9.1".parse().unwrap())?;
        let this = Self { client, _router: router, server };
        this.route_by(1);
        Ok(this)
    }

    /// Lets the client's default route go by an uplink.
    fn route_by(&self, uplink: u8) {
        let mut command: Command = self.client.command("ip");
        let gateway = format!("10.92.{uplink}.1");
        command.args(["route", "replace", "default", "via", &gateway]);
        assert!(self.client.start(command).unwrap().wait().unwrap().success());
    }
}

#[test]
fn a_flow_goes_on_by_the_other_uplink() {
    if !here::tun_permitted() || !here::installed(&["ip"]) {
        return;
    }
    let lab = match Uplinks::new() {
        Ok(lab) => lab,
        Err(error) => return here::not_run(&error.to_string()),
    };
    let pair = Pair::start(&lab.client, &lab.server, SERVER_AT, None, &options());
    let conversation = talk(&lab.client, &lab.server);
    for uplink in [2, 1, 2] {
        lab.route_by(uplink);
        let expected = SocketAddr::from(([10, 92, uplink, 2], PORT));
        until("the server sees the other address", || pair.server.peer().endpoint == Some(expected));
        conversation.wait_for_more(2 * MIB);
    }
    conversation.finish();
    // Neither end had to wait for a silence to start a new handshake.
    assert_eq!(pair.client.handshakes(), 1);
}
