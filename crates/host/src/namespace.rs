//! An interface in a separate network namespace, of which nothing but the tunnel leads out.

use weft_config::{Config, Dns, KillSwitch, Table};

use crate::routes::MAIN_TABLE;

/// Removes from a configuration what has no meaning for a device in a separate network namespace, while the
/// UDP sockets are outside. Returns the keys whose removal a user may not expect.
///
/// All routes are in the main table, since the tunnel's own packets are routed elsewhere. Name servers are
/// those of the mount namespace, which the caller makes. Commands are written for the system outside.
pub fn keep_what_counts_in_a_namespace(config: &mut Config) -> Vec<&'static str> {
    let interface = &mut config.interface;
    let mut removed: Vec<&'static str> = Vec::new();
    for hook in interface.host.hooks.drain(..) {
        if !removed.contains(&hook.phase.key()) {
            removed.push(hook.phase.key());
        }
    }
    if interface.settings.fw_mark != 0 {
        interface.settings.fw_mark = 0;
        removed.push("FwMark");
    }
    if std::mem::take(&mut interface.host.save_config) {
        removed.push("SaveConfig");
    }
    if std::mem::take(&mut interface.host.speed_test) {
        removed.push("SpeedTest");
    }
    interface.table = Table::Number(MAIN_TABLE);
    interface.host.dns = Dns::default();
    interface.host.kill_switch = KillSwitch::Off;
    interface.host.mss_clamp = false;
    removed
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Plan, Step, SystemState};

    const FILE: &str = "\
[Interface]
PrivateKey = AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=
Address = 10.0.0.2/24
DNS = 10.0.0.1
FwMark = 7
Table = off
SaveConfig = true
PostUp = iptables -A FORWARD -i %i -j ACCEPT
PostUp = echo up
# weft: KillSwitch = on
[Peer]
PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
AllowedIPs = 0.0.0.0/0, 10.0.0.0/24
Endpoint = 192.0.2.1:51820
";

    #[test]
    fn everything_is_routed_into_the_tunnel_and_nothing_else_is_touched() {
        let parsed = weft_config::parse(FILE, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap();
        let mut config = parsed.config;
        assert_eq!(keep_what_counts_in_a_namespace(&mut config), ["PostUp", "FwMark", "SaveConfig"]);
        let facts = SystemState { default_mtu: 1420, ..SystemState::default() };
        let plan = Plan::new(&config, &[], &facts);
        let route = |prefix: &str| Step::Route { prefix: prefix.parse().unwrap(), table: MAIN_TABLE };
        let steps = [
            Step::Address("10.0.0.2/24".parse().unwrap()),
            Step::Mtu(1420),
            Step::LinkUp,
            route("10.0.0.0/24"),
            route("0.0.0.0/0"),
        ];
        assert_eq!((plan.mark, plan.steps.as_slice(), plan.down.len()), (0, &steps[..], 0));
    }
}
