//! `weft peer` on a running gateway, and the file that it prints in the hands of wg-quick(8) and
//! wireguard-go.

use std::net::UdpSocket;
use std::process::Command;

use weft_lab::{here, wait_until};

use crate::beside::weft;
use crate::support::{End, Ended, NAME, Network};

const PEER: &str = "phone";

struct Phone<'a>(&'a Network);

impl<'a> Phone<'a> {
    /// wg-quick(8) brings the interface up at the server, whose sockets are found by the interface's name.
    fn up(network: &'a Network, text: &str) -> Self {
        let file = network.file(&format!("{PEER}.conf"), text);
        let script =
            "mkdir -p /run/wireguard && mount -t tmpfs none /run/wireguard && exec wg-quick up \"$1\"";
        let mut command: Command = network.server.command("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(file);
        command.env("WG_QUICK_USERSPACE_IMPLEMENTATION", "wireguard-go");
        let guard = Self(network);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        guard
    }

    fn reaches(&self, address: &str) -> bool {
        self.0
            .server
            .command("ping")
            .args(["-c", "1", "-W", "60", address])
            .output()
            .unwrap()
            .status
            .success()
    }
}

impl Drop for Phone<'_> {
    fn drop(&mut self) {
        let _ = self.0.server.command("ip").args(["link", "delete", "dev", PEER]).output();
    }
}

#[test]
fn a_printed_file_works_with_wg_quick_while_the_gateway_runs() {
    if !here::installed(&["wg-quick", "wireguard-go", "wg", "unshare", "ping"]) {
        return;
    }
    let Some(network) = Network::new() else { return };
    let settings = "# weft: Endpoint = 192.0.2.1:51820\n# weft: PeerAllowedIPs = 10.77.0.0/24, fd77::/64";
    let before = End::new(1).interface(&format!("ListenPort = 51820 # open\n{settings}"));
    let file = network.file("weft0.conf", &before);
    let daemon = network.up(&file);
    let run = |arguments: &[&str]| -> Ended {
        let ended = network.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended
    };
    // The only interface that runs is meant.
    let printed = run(&["peer", "add", PEER]).stdout;
    assert!(printed.contains("Address = 10.77.0.2/32, fd77::2/128"), "{printed}");
    let phone = Phone::up(&network, &printed);
    assert!(phone.reaches("10.77.0.1") && phone.reaches("fd77::1"));
    let peers = || run(&["show", NAME, "peers"]).stdout.lines().count();
    let status = run(&["status", NAME, "--json", "--sample", "0"]).stdout;
    assert!(status.contains("\"phone\""), "{status}");
    run(&["peer", "rename", PEER, "Anna", "--interface", NAME]);
    let renamed = || run(&["status", NAME, "--json", "--sample", "0"]).stdout.contains("\"Anna\"");
    wait_until("its new name", || renamed().then_some(()));
    // A new name ends no session.
    assert!(phone.reaches("10.77.0.1"));
    run(&["peer", "disable", "Anna"]);
    assert_eq!(peers(), 0);
    run(&["peer", "enable", "Anna"]);
    assert_eq!(peers(), 1);
    run(&["peer", "remove", "Anna"]);
    assert_eq!((peers(), std::fs::read_to_string(&file).unwrap()), (0, before));
    daemon.stop();
}

#[test]
fn a_change_that_the_daemon_refuses_is_not_in_the_file() {
    let Some(network) = Network::new() else { return };
    let taken = network.client.run(|| UdpSocket::bind("0.0.0.0:4567")).unwrap();
    let text = End::new(1).interface("ListenPort = 51820");
    let file = network.file("weft0.conf", &text);
    let daemon = network.up(&file);
    // An edit that was not reloaded yet asks for a port that is in use.
    let edited = text.replace("51820", "4567");
    std::fs::write(&file, &edited).unwrap();
    let out = network.directory.path().join("a.conf");
    let add = ["peer", "add", "a", "--endpoint", "a.example:1", "--out", out.to_str().unwrap()];
    let ended = network.run(&add);
    assert!(ended.code == Some(1) && ended.stderr.contains("the file is as it was"), "{ended:?}");
    assert_eq!((std::fs::read_to_string(&file).unwrap(), out.exists()), (edited, false));
    drop(taken);
    assert_eq!(network.run(&add).code, Some(0));
    assert_eq!(network.run(&["show", NAME, "listen-port"]).stdout, "4567\n");
    daemon.stop();
}

#[test]
fn a_disk_without_room_leaves_the_file_and_nothing_beside_it() {
    let script = r#"
mkdir "$HERE/etc"; mount -t tmpfs -o size=64k none "$HERE/etc"; cp "$FILE" "$HERE/etc"; FILE=$HERE/etc/weft0.conf
up; cat /dev/zero > "$HERE/etc/big" 2> /dev/null
weft peer add a --endpoint a.example:1 --out "$HERE/a.conf"; echo "full $?"; ls "$HERE/etc"; ls "$HERE/a.conf"
rm "$HERE/etc/big"; mount -o remount,ro "$HERE/etc"; weft peer add a --endpoint a.example:1; echo "read-only $?"
mount -o remount,rw "$HERE/etc"; wg show weft0 peers | wc -l; grep -c '^\[Peer\]' "$FILE"
"#;
    let Some(ended) = weft("", script) else { return };
    assert_eq!(ended.stdout, "full 1\nbig\nweft0.conf\nread-only 1\n1\n1\n", "{}", ended.stderr);
    for told in ["No space left", "Read-only file system", "nothing was changed"] {
        assert!(ended.stderr.contains(told), "{}", ended.stderr);
    }
}
