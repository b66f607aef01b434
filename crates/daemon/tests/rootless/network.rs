//! What a command reaches, and what the host sees of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weft_lab::{Process, until, wait_until_ok};

use crate::capture::Port;
use crate::support::{BEHIND, Ended, PAGE, World, page};

#[test]
fn a_command_reaches_the_tunnel_over_ipv4_and_ipv6_and_nothing_else() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    let mut outside = [Port::open(&world.gateway, "wan"), Port::open(&world.client, "wan")];
    let [gateway, client] = &mut outside;
    let mut seen = BTreeSet::new();
    for (address, own) in BEHIND.iter().zip(["10.77.0.2", "fd77::2"]) {
        let host = if address.contains(':') { format!("[{address}]") } else { (*address).to_owned() };
        let ended = world.run(&["curl", "-sS", "--max-time", "60", &format!("http://{host}/")]);
        assert_eq!((ended.code, ended.stdout.len()), (Some(0), PAGE), "{}", ended.stderr);
        assert!(ended.stdout == page(own), "the page of {own} differs");
        // The socket that sees all packets has room for those of a page.
        seen.extend(gateway.take(client));
    }
    let outside: Vec<_> = seen.iter().filter(|packet| *packet != "udp 192.0.2.2 51820").collect();
    // The kernel reports its multicast groups, and refuses datagrams of the peer after the end of weft.
    let is_of_kernel =
        |packet: &str| packet.starts_with("icmpv6 ff02::") || packet == "icmp 192.0.2.2 type 3";
    assert!(outside.iter().all(|packet| is_of_kernel(packet)), "past the tunnel: {outside:?}");
    assert!(seen.contains("udp 192.0.2.2 51820"), "{seen:?}");
}

#[test]
fn ping_works_without_a_capability() {
    let Some(world) = World::with(&["ping"]) else { return };
    for address in BEHIND {
        let ended = world.run(&["ping", "-c", "1", "-W", "60", address]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

/// What a user may see changed on the host, one item a line.
fn picture(world: &World) -> Vec<String> {
    let output = |arguments: &[&str]| {
        let output = world.client.command("ip").args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let mut items = Vec::new();
    for arguments in [
        &["-o", "address"][..],
        &["-4", "rule"],
        &["-6", "rule"],
        &["-4", "route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
        &["-o", "link"],
    ] {
        items.extend(output(arguments).lines().map(|line| format!("{arguments:?}: {line}")));
    }
    for file in ["/etc/resolv.conf", "/etc/nsswitch.conf", "/proc/self/mountinfo"] {
        items.push(std::fs::read_to_string(file).unwrap());
    }
    items
}

#[test]
fn the_host_is_the_same_before_during_and_after() {
    let Some(world) = World::new() else { return };
    // The kernel adds the routes of IPv6 addresses a moment later.
    let settled = || {
        wait_until_ok(|| {
            let now = picture(&world);
            if now.iter().any(|item| item.contains("tentative")) { Err(format!("{now:#?}")) } else { Ok(now) }
        })
    };
    let before = settled();
    let command =
        world.exec(&world.file("DNS = 10.77.0.1"), &[], &["sh", "-c", "ip -br address; echo inside; cat"]);
    let (input, writer) = std::io::pipe().unwrap();
    let mut command = command;
    command.stdin(input).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let inside: Vec<String> =
        lines.by_ref().map(Result::unwrap).take_while(|line| line != "inside").collect();
    let during = settled();
    drop(writer);
    assert!(child.wait().unwrap().success());
    assert_eq!(during, before);
    assert_eq!(settled(), before);
    let names: Vec<&str> = inside.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["lo", "office"], "{inside:?}");
    assert!(inside[1].contains("10.77.0.2/24") && inside[1].contains("fd77::2/64"), "{inside:?}");
    until("no process of the user is left", || world.processes().is_empty());
}

#[test]
fn the_mtu_of_the_file_and_the_buffers_of_tcp_are_set() {
    let Some(world) = World::new() else { return };
    let script = "ip -o link show office; cat /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_wmem";
    let ended: Ended =
        world.exec(&world.file("MTU = 1300"), &[], &["sh", "-c", script]).output().unwrap().into();
    let text = ended.text();
    assert!(text.contains("mtu 1300"), "{ended:?}");
    let limits: Vec<u64> =
        text.lines().skip(1).map(|line| line.split_whitespace().last().unwrap().parse().unwrap()).collect();
    assert!(limits.len() == 2 && limits.iter().all(|limit| *limit >= 4 << 20), "{text}");
    // Without one in the file, it is that of the way to the peer.
    let ended = world.run(&["ip", "-o", "link", "show", "office"]);
    assert!(ended.text().contains("mtu 1420"), "{ended:?}");
}

#[test]
fn after_sigkill_nothing_is_left_and_the_command_is_told() {
    let Some(world) = World::new() else { return };
    let script = "trap 'exit 0' HUP; echo ready; while :; do sleep 0.05; done";
    let command = world.exec(&world.file(""), &[], &["sh", "-c", script]);
    let mut weft = Process::start(&world.client, command).unwrap();
    weft.wait_for_line("ready");
    let names = world.processes();
    assert!(names.iter().filter(|name| name.contains("weft")).count() >= 2, "{names:?}");
    weft.signal(nix::sys::signal::Signal::SIGKILL);
    weft.wait();
    until("no process of the user is left", || world.processes().is_empty());
}

#[test]
fn threads_of_the_packet_path_are_confined() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    let url = format!("http://{}/", BEHIND[0].parse::<IpAddr>().unwrap());
    let script = format!("curl -sS --max-time 60 -o /dev/null {url} && echo ready && sleep 60");
    let weft =
        Process::start(&world.client, world.exec(&world.file(""), &[], &["sh", "-c", &script])).unwrap();
    weft.wait_for_line("ready");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", world.tunnel())).unwrap().flatten();
    let status: Vec<String> =
        tasks.map(|task| std::fs::read_to_string(task.path().join("status")).unwrap()).collect();
    let packets: Vec<&String> =
        status.iter().filter(|text| text.starts_with("Name:\tweft-packets")).collect();
    assert!(!packets.is_empty() && packets.iter().all(|text| text.contains("Seccomp:\t2")), "{status:#?}");
}

/// Names of congestion control, as this host has them.
pub(crate) fn congestion(kind: &str) -> Vec<String> {
    let names = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{kind}_congestion_control")).unwrap();
    names.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn congestion_control_is_one_that_the_host_allows_and_a_choice_of_the_first_command() {
    let Some(world) = World::new() else { return };
    let file = world.file("DNS = 10.77.0.1");
    let read = ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"];
    let run = |name: &str, command: &[&str]| -> Ended {
        let command = world.exec(&file, &["--congestion", name], command);
        world.in_session(command).output().unwrap().into()
    };
    let allowed = congestion("allowed");
    for name in &allowed {
        let ended = run(name, &read);
        assert_eq!((ended.code, ended.text().trim()), (Some(0), &**name), "{ended:?}");
    }
    let told = format!("this host allows {}", allowed.join(" "));
    let unknown = run("no-such", &["true"]);
    assert!(unknown.code == Some(125) && unknown.stderr.contains(&told), "{unknown:?}");
    if let Some(restricted) = congestion("available").iter().find(|name| !allowed.contains(name)) {
        let ended = run(restricted, &["true"]);
        assert!(ended.code == Some(77) && ended.stderr.contains(&told), "{ended:?}");
    }
    until("no process of the user is left", || world.processes().is_empty());

    let script = "cat /proc/sys/net/ipv4/tcp_congestion_control; echo ready; sleep 600";
    let first = world.exec(&file, &["--congestion", &allowed[0]], &["sh", "-c", script]);
    let first = Process::start(&world.client, world.in_session(first)).unwrap();
    first.wait_for_line("ready");
    assert_eq!(run(&allowed[0], &["true"]).code, Some(0));
    let other = run("no-such", &["true"]);
    let told = format!("the tunnel has {}, and its other commands keep that", allowed[0]);
    assert!(other.code == Some(125) && other.stderr.contains(&told), "{other:?}");
}
