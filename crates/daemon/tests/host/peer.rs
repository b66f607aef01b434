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
    /// wg-quick(8) brings the interface up at the server. Its socket is found by the interface's name.
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
fn what_the_interface_and_its_file_do_not_share_is_neither_undone_nor_loaded() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("ListenPort = 51820\n# weft: Endpoint = a.example:1");
    let file = network.file("weft0.conf", &text);
    let before = || std::fs::read_to_string(&file).unwrap();
    let run = |arguments: &[&str]| network.run(arguments).code;
    let daemon = network.up(&file);
    let add = |name| network.run(&["peer", "add", name]);
    // Peers get a default route, and the machine does not forward.
    let forward = |value| network.client.set_sysctl("net/ipv4/ip_forward", value).unwrap();
    let told = || {
        ["check", "doctor", "status"].map(|command| {
            let ended = network.run(&[command, file.to_str().unwrap()]);
            (ended.stdout + &ended.stderr).contains("this machine does not forward IPv4")
        })
    };
    forward("0");
    let first = add("a");
    assert!(first.code == Some(0) && !first.stderr.contains("does not forward"), "{first:?}");
    assert_eq!(told(), [true; 3]);
    forward("1");
    assert_eq!(told(), [false; 3]);
    // Their addresses are those of the tunnel, until a rule gives them another one.
    if here::installed(&["nft"]) {
        let note = || {
            let doctor = network.run(&["doctor", NAME]).stdout;
            let note = doctor.lines().find(|line| line.contains("routers have a route to 10.77.0.0/24"));
            note.map(|note| {
                note.trim_start().starts_with("note") && doctor.contains("masquerade` in a chain")
            })
        };
        assert_eq!(note(), Some(true));
        assert!(!network.run(&["status", NAME]).stdout.contains("routers"));
        let rules = "table ip nat { chain p { type nat hook postrouting priority srcnat; oifname eth0 masquerade; }; }";
        assert!(network.client.command("nft").arg(rules).status().unwrap().success());
        assert_eq!(note(), None);
    }
    let refused = |told: &str, then: &str| {
        let (edited, peers) = (before(), network.run(&["show", NAME, "peers"]).stdout);
        for arguments in [&["peer", "add", "b"][..], &["peer", "rename", "a", "c"], &["peer", "disable", "a"]]
        {
            let ended = network.run(arguments);
            assert!(ended.code == Some(1) && ended.stdout.is_empty(), "{ended:?}");
            assert!(ended.stderr.contains(told) && ended.stderr.contains(then), "{ended:?}");
        }
        assert_eq!((before(), network.run(&["show", NAME, "peers"]).stdout), (edited, peers));
    };
    // What wg(8) has set, with the address that is free in the file.
    let key = End::new(3).public().to_string();
    assert_eq!(run(&["set", NAME, "peer", &key, "allowed-ips", "10.77.0.3/32"]), Some(0));
    refused(&format!("remove peer {key}"), "`weft save weft0`");
    assert_eq!(run(&["save", NAME]), Some(0));
    assert!(add("b").stdout.contains("Address = 10.77.0.4/32"));
    // What was saved of where a peer is, and what was set later.
    let moves = |endpoint: &str| run(&["set", NAME, "peer", &key, "endpoint", endpoint]);
    assert_eq!((moves("192.0.2.1:1"), run(&["save", NAME])), (Some(0), Some(0)));
    assert_eq!((add("moved").code, moves("192.0.2.2:2")), (Some(0), Some(0)));
    refused(&format!("change endpoint of peer {key}"), "`weft save weft0`");
    assert_eq!((run(&["save", NAME]), add("again").code), (Some(0), Some(0)));
    assert!(before().contains("Endpoint = 192.0.2.2:2"), "{}", before());
    // What another program has wiped, as `wg-quick save` does.
    let comments = "[Peer]\n# friendly_name = again\n";
    std::fs::write(&file, before().replace(comments, "[Peer]\n")).unwrap();
    assert_eq!(run(&["save", NAME]), Some(0));
    assert!(before().contains(comments), "{}", before());
    // What was edited, and asks for a port that is in use.
    let taken = network.client.run(|| UdpSocket::bind("0.0.0.0:4567")).unwrap();
    std::fs::write(&file, before().replace("51820", "4567")).unwrap();
    refused("listen on port 4567", "`weft reload weft0`");
    assert_eq!(run(&["reload", NAME]), Some(1));
    drop(taken);
    assert_eq!(run(&["reload", NAME]), Some(0));
    assert_eq!(add("d").code, Some(0));
    daemon.stop();
}

#[test]
fn an_interface_with_another_name_than_its_file_takes_the_change_over() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("ListenPort = 1\n# weft: Endpoint = a.example:1");
    let file = network.file("weft0.conf", &text);
    let path = file.to_str().unwrap();
    let daemon = network.start(network.weft(&["up", "--name", "other0", path]));
    let peers = || network.run(&["show", "other0", "peers"]).stdout.lines().count();
    // It is no other interface with its key.
    let told = network.run(&["check", path]);
    assert!(told.code == Some(0) && !told.stderr.contains("the same private key"), "{told:?}");
    for (arguments, count) in [
        (&["add", "a"][..], 1),
        (&["add", "b", "--to", path], 2),
        (&["disable", "a", "--to", "other0"], 1),
        (&["remove", "b"], 0),
    ] {
        let ended = network.run(&[&["peer"], arguments].concat());
        assert_eq!((ended.code, peers()), (Some(0), count), "{arguments:?}: {ended:?}");
    }
    daemon.stop();
}

#[test]
fn a_disk_without_room_leaves_the_file_and_nothing_beside_it() {
    let script = r#"
mkdir "$HERE/etc"; mount -t tmpfs -o size=64k none "$HERE/etc"; cp "$FILE" "$HERE/etc"; FILE=$HERE/etc/weft0.conf
up; cat /dev/zero > "$HERE/etc/big" 2> /dev/null
weft peer add a --endpoint a.example:1 --out "$HERE/a.conf"; echo "full $?"; ls "$HERE/etc"; ls "$HERE/a.conf"
rm "$HERE/etc/big"; mount -o remount,ro "$HERE/etc"; weft peer add a --endpoint a.example:1 > "$HERE/printed"; echo "read-only $?"
mount -o remount,rw "$HERE/etc"; wg show weft0 peers | wc -l; grep -c '^\[Peer\]' "$FILE"
"#;
    let Some(ended) = weft("ListenPort = 1", script) else { return };
    assert_eq!(ended.stdout, "full 1\nbig\nweft0.conf\nread-only 1\n1\n1\n", "{}", ended.stderr);
    for told in [
        "No space left",
        "Read-only file system",
        "nothing was changed",
        "the file that was printed is not valid",
    ] {
        assert!(ended.stderr.contains(told), "{}", ended.stderr);
    }
}

#[test]
fn a_signal_between_the_file_and_the_interface_waits_until_they_agree() {
    let script = r#"
up; mkfifo "$HERE/out"; exec 3<> "$HERE/out"; head -c 65536 /dev/zero >&3
daemon=$(weft status weft0 --json --sample 0 | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*$')
soon() { for _ in $(seq 600); do "$@" && return; sleep 0.1; done; echo "not soon: $*"; }
weft peer add a --endpoint a.example:1 >&3 2> "$HERE/told" & command=$!
soon grep -q PeerDNS "$HERE/told"; kill -STOP "$daemon"; head -c 65536 <&3 > /dev/null
soon grep -q 'friendly_name = a$' "$FILE"; kill -TERM $command; soon grep -q SIGTERM "$HERE/told"
kill -CONT "$daemon"; wait $command; echo "$? $(wg show weft0 peers | wc -l)"
"#;
    let Some(ended) = weft("ListenPort = 1", script) else { return };
    assert_eq!(ended.stdout, "0 2\n", "{}", ended.stderr);
}
