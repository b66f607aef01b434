//! Name servers: there before PostUp, and gone before PostDown.
use weft_lab::here;

use crate::support::{End, Network, peer};

#[test]
fn name_servers_are_there_while_the_interface_is_up() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["unshare", "mount"]) {
        return;
    }
    let before = network.picture();
    let (up, down) = (network.directory.path().join("up"), network.directory.path().join("down"));
    let lines = format!(
        "DNS = 192.0.2.53, corp.example\nPostUp = cat /etc/resolv.conf > {}\nPostDown = cat /etc/resolv.conf > {}",
        up.display(),
        down.display()
    );
    let text = End::new(1).interface(&lines) + &peer(End::new(2).public(), "AllowedIPs = 10.88.0.0/16");
    let file = network.file("weft0.conf", &text);
    // With a private /etc and /var/lib, and without the system bus and resolvconf.
    let script = "mount -t tmpfs none /etc && mount -t tmpfs none /var/lib && echo nameserver 198.51.100.53 >/etc/resolv.conf \
                  && PATH=/usr/bin:/bin DBUS_SYSTEM_BUS_ADDRESS=unix:path=/nonexistent exec \"$@\"";
    let weft = network.weft_up(&file);
    let mut command = network.command("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(weft.get_program()).args(weft.get_args());
    let daemon = network.start(command);
    let text = std::fs::read_to_string(&up).unwrap();
    assert!(text.contains("nameserver 192.0.2.53") && text.contains("corp.example"), "{text}");
    assert!(!text.contains("nameserver 198.51.100.53"), "{text}");
    daemon.stop();
    assert_eq!(std::fs::read_to_string(&down).unwrap(), "nameserver 198.51.100.53\n");
    network.assert_as(&before);
}
