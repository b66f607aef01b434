//! `weft up` with a peer that has a name.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ipnet::Ipv4Net;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weft_host::dns::{Choice, Method, System};
use weft_host::record_path;
use weft_host::routes::Netlink;
use weft_ipc::runtime_dir::instance;
use weft_lab::{here, mounts, until, wait_until_ok};
use weft_tunnel::PrivateKey;
use weft_uapi::SOCKET_DIRECTORY;

use crate::name_server::{Records, set};
use crate::names::with_name_server;
use crate::support::{Machine, Resolvconf, read_only};

pub(crate) const NAME: &str = "weftdns0";

/// `weft up` in the namespaces of this thread. Dropping it ends it in good order.
struct Up(Child);

impl Up {
    fn crash(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

pub(crate) fn weft(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.env("WEFT_RUNTIME_DIR", directory).env_remove("RUST_LOG").stdin(Stdio::null());
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", directory.join("bin").display()));
    // What fails once fails for good.
    command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "0");
    command
}

fn up(directory: &Path, setting: &str) -> Up {
    up_to("vpn.weft.example:51820", directory, setting)
}

fn up_to(endpoint: &str, directory: &Path, setting: &str) -> Up {
    let (own, peer) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.77.0.1/24\n{setting}\n[Peer]\nPublicKey = {}\n\
         Endpoint = {endpoint}\nAllowedIPs = 10.77.0.2/32\n",
        own.to_base64().as_str(),
        peer.public_key()
    );
    let file = directory.join(format!("{NAME}.conf"));
    fs::write(&file, text).unwrap();
    let child = weft(directory).arg("up").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Up(child.unwrap())
}

/// Waits until the peer's endpoint is this one.
#[track_caller]
fn wait_for_endpoint(directory: &Path, endpoint: &str) {
    wait_for(directory, "/peers/0/endpoint", &endpoint.into());
}

/// Waits until `weft status --json` has this value in this place of the interface.
#[track_caller]
fn wait_for(directory: &Path, place: &str, value: &Value) {
    wait_until_ok(|| {
        let output = weft(directory).args(["status", NAME, "--json", "--sample", "0"]).output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let is = json["interfaces"][0].pointer(place).unwrap_or(&Value::Null);
        if is == value { Ok(()) } else { Err(format!("{place} is not {value} but {is}")) }
    });
}

/// Brings an interface up with a peer that is found by its name, at 192.0.2.1, and does `work` with the
/// records of all names and the directory of the interface.
fn with_daemon(setting: &str, work: impl FnOnce(&Records, &Path, Up) + Send) {
    if !here::tun_permitted() {
        return;
    }
    let records = Records::default();
    set(&records, &[1]);
    with_name_server(&records, || {
        let directory = tempfile::tempdir().unwrap();
        let up = up(directory.path(), setting);
        wait_for_endpoint(directory.path(), "192.0.2.1:51820");
        // It is answered when the start has ended.
        let file = directory.path().join(format!("{NAME}.conf"));
        let is_up = weft(directory.path()).args(["reload", "--dry-run"]).arg(file).output().unwrap();
        assert!(is_up.status.success(), "{is_up:?}");
        work(&records, directory.path(), up);
    });
}

/// Reloads the file after `edit`; gives whether that went well, and what was said.
fn reload(directory: &Path, edit: impl FnOnce(String) -> String) -> (bool, String) {
    let file = directory.join(format!("{NAME}.conf"));
    fs::write(&file, edit(fs::read_to_string(&file).unwrap())).unwrap();
    let output = weft(directory).arg("reload").arg(&file).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn another_address_of_the_name_is_used_when_the_network_changes() {
    with_daemon("", |records, directory, _up| {
        set(records, &[2]);
        let netlink = Netlink::open().unwrap();
        let loopback = netlink.link(&"lo".parse().unwrap()).unwrap();
        netlink.add_address(&loopback, "198.51.100.7/32".parse().unwrap()).unwrap();
        wait_for_endpoint(directory, "192.0.2.2:51820");
    });
}

/// Whether the kernel could not tell a socket of this namespace everything (/proc/net/netlink).
fn is_netlink_overrun() -> bool {
    let text = fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    let drops = |line: &str| line.split_whitespace().nth(8).and_then(|count| count.parse().ok());
    text.lines().skip(1).filter_map(drops).any(|count: u64| count > 0)
}

#[test]
fn a_change_of_which_the_kernel_could_not_tell_everything_is_followed_all_the_same() {
    with_daemon("", |records, directory, up| {
        wait_for(directory, "/mtu", &1420.into());
        let netlink = Netlink::open().unwrap();
        let link = |name: &str| netlink.link(&name.parse().unwrap()).unwrap();
        let daemon = Pid::from_raw(up.0.id().cast_signed());
        kill(daemon, Signal::SIGSTOP).unwrap();
        let loopback = link("lo");
        for number in 0_u32.. {
            if number.is_multiple_of(100) && is_netlink_overrun() {
                break;
            }
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + number);
            netlink.add_address(&loopback, Ipv4Net::from(address).into()).unwrap();
        }
        // Of this nothing is told.
        netlink.set_mtu(&link(NAME), 1300).unwrap();
        set(records, &[2]);
        kill(daemon, Signal::SIGCONT).unwrap();
        wait_for_endpoint(directory, "192.0.2.2:51820");
        wait_for(directory, "/mtu", &1300.into());
    });
}

/// A daemon crashes with its kill switch in force, `then` is done, and another one starts behind the switch.
fn start_behind_the_kill_switch_of_a_crash(then: impl FnOnce(&Path) + Send) {
    with_daemon("# weft: KillSwitch = on", |records, directory, crashed| {
        let file = record_path(directory, &NAME.parse().unwrap());
        let is_there = || fs::read_to_string(&file).unwrap().contains("192.0.2.1:51820");
        until("the address is written down", is_there);
        crashed.crash();
        // There is no such name any more.
        set(records, &[]);
        then(directory);
        let _up = up(directory, "# weft: KillSwitch = on");
        wait_for_endpoint(directory, "192.0.2.1:51820");
    });
}

#[test]
fn a_start_behind_the_kill_switch_of_a_crash_finds_the_peer_without_name_servers() {
    start_behind_the_kill_switch_of_a_crash(|_| {});
}

#[test]
fn a_start_behind_the_kill_switch_that_a_clean_up_kept_finds_the_peer_without_name_servers() {
    start_behind_the_kill_switch_of_a_crash(|directory| {
        for _ in 0..2 {
            let output = weft(directory).args(["down", "--keep-kill-switch", NAME]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    });
}

/// A daemon gives the machine a name server that is reached through its tunnel alone, and is killed. Then
/// `then` is done, with what /etc/resolv.conf said before.
fn killed_with_name_servers(prepare: impl FnOnce(&Machine) + Send, then: impl FnOnce(&Path, &str) + Send) {
    if !here::tun_permitted() {
        return;
    }
    let records = Records::default();
    set(&records, &[1]);
    with_name_server(&records, || {
        // What was in the file before is kept there.
        mounts::empty("/var/lib").unwrap();
        let machine = Machine::new();
        prepare(&machine);
        let takes = System::default().method(Choice::Auto).unwrap();
        if takes != Method::File {
            return here::not_run(&format!("{takes} sets name servers here"));
        }
        let before = resolv_conf();
        let daemon = up(machine.root.path(), "DNS = 10.77.0.2");
        until("the name server is set", || resolv_conf().contains("nameserver 10.77.0.2\n"));
        daemon.crash();
        assert!(resolv_conf().contains("nameserver 10.77.0.2\n"), "{}", resolv_conf());
        then(machine.root.path(), &before);
        assert_eq!(resolv_conf(), before);
    });
}

fn resolv_conf() -> String {
    fs::read_to_string("/etc/resolv.conf").unwrap()
}

/// Gives the machine its own /etc.
pub(crate) fn own_etc() {
    let files = ["/etc/resolv.conf", "/etc/nsswitch.conf"].map(|path| (path, fs::read(path).unwrap()));
    files.iter().for_each(|(path, _)| nix::mount::umount(*path).unwrap());
    mounts::empty("/etc").unwrap();
    files.into_iter().for_each(|(path, content)| fs::write(path, content).unwrap());
}

/// Gives the machine its own /etc, and a resolvconf that writes the file there, and that fails afterwards for
/// the server 10.77.0.66.
fn resolvconf(machine: &Machine) {
    own_etc();
    let script = "#!/bin/sh\nold=\"${0%/*}/before\"\ncase $1 in\n\
                  -a) [ -e \"$old\" ] || cp /etc/resolv.conf \"$old\"\ncat > /etc/resolv.conf\n\
                  ! grep -q 10.77.0.66 /etc/resolv.conf;;\n\
                  -l) [ ! -e \"$old\" ] || { echo '# resolv.conf from weftdns0'; cat /etc/resolv.conf; };;\n\
                  -d) [ ! -e \"$old\" ] || { cat \"$old\" > /etc/resolv.conf; rm \"$old\"; };;\nesac\n";
    machine.program("resolvconf", script);
}

#[test]
fn a_reload_that_fails_leaves_the_name_servers_that_were_there() {
    if !here::tun_permitted() {
        return;
    }
    with_name_server(&Records::default(), || {
        let machine = Machine::new();
        resolvconf(&machine);
        let (directory, before) = (machine.root.path(), resolv_conf());
        let daemon = up_to("192.0.2.1:51820", directory, "DNS = 10.77.0.2");
        until("the name server is set", || resolv_conf() == "nameserver 10.77.0.2\n");
        let (is_ok, said) = reload(directory, |text| text.replace("DNS = 10.77.0.2", "DNS = 10.77.0.66"));
        assert!(!is_ok, "{said}");
        assert_eq!(resolv_conf(), "nameserver 10.77.0.2\n");
        drop(daemon);
        assert_eq!(resolv_conf(), before);
    });
}

/// Another program writes the file, as far as a mount over it allows that.
fn write_over(content: &str) {
    fs::write("/etc/resolv.conf", content).unwrap();
}

fn with_name_servers(work: impl FnOnce(&Path, Up) + Send) {
    if !here::tun_permitted() {
        return;
    }
    with_name_server(&Records::default(), || {
        mounts::empty("/var/lib").unwrap();
        let machine = Machine::new();
        let takes = System::default().method(Choice::Auto).unwrap();
        if takes != Method::File {
            return here::not_run(&format!("{takes} sets name servers here"));
        }
        let daemon = up_to("192.0.2.1:51820", machine.root.path(), "DNS = 10.77.0.2");
        wait_for_endpoint(machine.root.path(), "192.0.2.1:51820");
        work(machine.root.path(), daemon);
    });
}

#[test]
fn what_another_program_writes_is_kept_beneath_the_servers_of_the_tunnel() {
    with_name_servers(|_, daemon| {
        // As dhclient does when a lease changes.
        let lease = "# Generated by dhclient\nnameserver 192.0.2.66\nsearch lan.example\n";
        write_over(lease);
        until("the tunnel's servers are there again", || {
            let text = resolv_conf();
            text.contains("nameserver 10.77.0.2\n") && !text.contains("192.0.2.66")
        });
        drop(daemon);
        assert_eq!(resolv_conf(), lease);
    });
}

#[test]
fn a_program_that_writes_again_and_again_is_reported_and_not_fought_for_ever() {
    with_name_servers(|directory, daemon| {
        let other = "# Generated by NetworkManager\nnameserver 192.0.2.66\n";
        let problem = || {
            let output = weft(directory).args(["status", NAME, "--json", "--sample", "0"]).output().unwrap();
            let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let findings = json["interfaces"][0]["findings"].as_array().cloned().unwrap_or_default();
            findings.into_iter().find(|finding| finding["check"] == "lost_dns")
        };
        until("it is reported", || {
            write_over(other);
            problem().is_some_and(|finding| {
                let says = finding["says"].as_str().unwrap();
                finding["level"] == "problem" && says.contains("# Generated by NetworkManager")
            })
        });
        assert_eq!(resolv_conf(), other);
        drop(daemon);
        assert_eq!(resolv_conf(), other);
    });
}

/// Brings an interface with a name server up where /etc is the test's, with resolvconf if it is given.
fn with_own_etc(kind: Option<Resolvconf>, work: impl FnOnce(&Machine) + Send) {
    if !here::tun_permitted() {
        return;
    }
    with_name_server(&Records::default(), || {
        mounts::empty("/var/lib").unwrap();
        own_etc();
        let machine = Machine::new();
        let takes = System::default().method(Choice::Auto).unwrap();
        if takes != Method::File {
            return here::not_run(&format!("{takes} sets name servers here"));
        }
        if let Some(kind) = kind {
            kind.install(&machine, &machine.path("run"), "/etc/resolv.conf".as_ref());
        }
        let _daemon = up_to("192.0.2.1:51820", machine.root.path(), "DNS = 10.77.0.2");
        wait_for_endpoint(machine.root.path(), "192.0.2.1:51820");
        until("the name server is set", is_ours);
        work(&machine);
    });
}

fn is_ours() -> bool {
    fs::read_to_string("/etc/resolv.conf").is_ok_and(|text| text.contains("nameserver 10.77.0.2\n"))
}

/// What a command says of a check with this name.
pub(crate) fn said(directory: &Path, command: &[&str], findings: &str, check: &str) -> Option<String> {
    let output = weft(directory).args(command).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let findings = json.pointer(findings)?.as_array()?.clone();
    let found = findings.into_iter().find(|finding| finding["check"] == check)?;
    Some(found["says"].as_str()?.to_owned())
}

/// What `weft status` and `weft doctor` say of it.
fn told(directory: &Path, check: &str) -> [Option<String>; 2] {
    let file = directory.join(format!("{NAME}.conf"));
    let status =
        said(directory, &["status", NAME, "--json", "--sample", "0"], "/interfaces/0/findings", check);
    [status, said(directory, &["doctor", file.to_str().unwrap(), "--json"], "/findings", check)]
}

#[test]
fn names_that_commands_give_are_looked_up_past_the_tunnel() {
    if !here::tun_permitted() {
        return;
    }
    let records = Records::default();
    set(&records, &[1]);
    with_name_server(&records, || {
        mounts::empty("/var/lib").unwrap();
        let machine = Machine::new();
        let takes = System::default().method(Choice::Auto).unwrap();
        if takes != Method::File {
            return here::not_run(&format!("{takes} sets name servers here"));
        }
        let directory = machine.root.path();
        fs::create_dir_all(SOCKET_DIRECTORY).unwrap();
        mounts::empty(SOCKET_DIRECTORY).unwrap();
        // The server that the machine has now does not answer.
        let _daemon = up(directory, "DNS = 10.77.0.2");
        wait_for_endpoint(directory, "192.0.2.1:51820");
        until("the name server is set", is_ours);
        let text = fs::read_to_string(directory.join(format!("{NAME}.conf"))).unwrap();
        let peer = text.lines().find_map(|line| line.strip_prefix("PublicKey = ")).unwrap();
        let file = machine.path("peer.conf");
        let peer_lines = format!("[Peer]\nPublicKey = {peer}\nEndpoint = vpn.weft.example:51820\n");
        fs::write(&file, peer_lines).unwrap();
        let file = file.to_str().unwrap();
        for (last, words) in [
            (2, vec!["set", NAME, "peer", peer, "endpoint", "vpn.weft.example:51820"]),
            (3, vec!["addconf", NAME, file]),
            (4, vec!["syncconf", NAME, file]),
            (5, vec!["setconf", NAME, file]),
        ] {
            set(&records, &[last]);
            let output = weft(directory).args(&words).output().unwrap();
            assert!(output.status.success(), "{words:?}: {output:?}");
            wait_for_endpoint(directory, &format!("192.0.2.{last}:51820"));
        }
    });
}

#[test]
fn a_record_that_resolvconf_loses_is_set_again() {
    for kind in [Resolvconf::Openresolv, Resolvconf::Debian] {
        with_own_etc(Some(kind), |machine| {
            let resolvconf = |words: &[&str]| {
                let done =
                    Command::new(machine.path("bin/resolvconf")).args(words).stdin(Stdio::null()).status();
                assert!(done.unwrap().success());
            };
            resolvconf(&["-d", NAME, "-f"]);
            until("it is set again", is_ours);
            fs::remove_dir_all(machine.path("run/interface")).unwrap();
            resolvconf(&["-u"]);
            until("it is set again", is_ours);
            // The entry is there, and the file is of a call that overlapped with the one that made the entry.
            write_over("# Generated by resolvconf\n");
            until("the file is written again", is_ours);
        });
    }
}

#[test]
fn a_program_that_hangs_holds_up_neither_the_kill_switch_nor_the_end_and_is_named() {
    if !here::tun_permitted() || !here::installed(&["nft"]) {
        return;
    }
    with_name_server(&Records::default(), || {
        mounts::empty("/var/lib").unwrap();
        let machine = Machine::new();
        resolvconf(&machine);
        // Notes each call, and hangs in a child process while the file `hangs` exists.
        let script = fs::read_to_string(machine.path("bin/resolvconf")).unwrap();
        let hangs = "dir=\"${0%/*}\"; echo $1 >> \"$dir/calls\"\n\
                     [ ! -e \"$dir/hangs\" ] || { sleep 1000 & echo $! >> \"$dir/children\"; wait; }\n";
        machine.program("resolvconf", &script.replacen('\n', &format!("\n{hangs}"), 1));
        let directory = machine.root.path();
        let daemon = up_to("192.0.2.1:51820", directory, "DNS = 10.77.0.2\n# weft: KillSwitch = on");
        wait_for_endpoint(directory, "192.0.2.1:51820");
        until("the name server is set", is_ours);
        let lines = |name: &str| fs::read_to_string(machine.path("bin").join(name)).unwrap_or_default();
        let called = || lines("calls").lines().count();
        fs::write(machine.path("bin/hangs"), "").unwrap();
        let before = called();
        write_over("nameserver 192.0.2.66\n");
        until("it is called", || called() > before);
        let nft = |words: &[&str]| Command::new("nft").args(words).output().unwrap();
        assert!(nft(&["flush", "ruleset"]).status.success());
        until("the kill switch is back", || {
            String::from_utf8_lossy(&nft(&["list", "tables"]).stdout).contains(NAME)
        });
        let status = ["status", NAME, "--json", "--sample", "0"];
        until("it is named", || {
            said(directory, &status, "/interfaces/0/findings", "program_hangs")
                .is_some_and(|said| said.contains("bin/resolvconf"))
        });
        // By what looks after DNS, a reload, the daemon's end, and the command.
        assert_eq!(called(), before + 1, "{}", lines("calls"));
        let (is_ok, told) = reload(directory, |text| text);
        assert!(!is_ok && told.contains("resolvconf"), "{told}");
        assert_eq!(called(), before + 2, "{}", lines("calls"));
        let output = weft(directory).args(["down", NAME]).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("resolvconf -d"), "{told}");
        assert!(called() <= before + 4, "{}", lines("calls"));
        drop(daemon);
        until("nothing of it is left", || {
            let is_there = |id: &str| {
                fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
            };
            !lines("children").lines().any(is_there)
        });
        fs::remove_file(machine.path("bin/hangs")).unwrap();
        assert!(weft(directory).args(["down", NAME]).status().unwrap().success());
        assert!(!is_ours());
    });
}

#[test]
fn an_exclusive_interface_of_another_program_is_told_and_a_reload_comes_before_it() {
    with_own_etc(Some(Resolvconf::Openresolv), |machine| {
        let directory = machine.root.path();
        let is_told = |is_wanted: bool| {
            let says = |said: &Option<String>| said.as_ref().is_some_and(|said| said.contains("ppp0"));
            told(directory, "dns_past_tunnel").iter().all(|said| says(said) == is_wanted)
        };
        let input = machine.path("theirs");
        fs::write(&input, "nameserver 192.0.2.66\n").unwrap();
        let mut resolvconf = Command::new(machine.path("bin/resolvconf"));
        resolvconf.args(["-a", "ppp0", "-x"]).stdin(fs::File::open(&input).unwrap());
        assert!(resolvconf.status().unwrap().success());
        until("it is told", || is_told(true));
        assert!(!is_ours());
        let (is_ok, said) = reload(directory, |text| text);
        assert!(is_ok && is_ours(), "{said}");
        until("it is told no more", || is_told(false));
    });
}

#[test]
fn a_file_that_cannot_be_restored_is_told_until_it_can() {
    with_own_etc(None, |machine| {
        let directory = machine.root.path();
        let file = Path::new("/etc/resolv.conf");
        let is_told = |part: Option<&str>| {
            let says =
                |said: &Option<String>| said.as_ref().map(|said| said.contains(part.unwrap_or_default()));
            told(directory, "lost_dns").iter().all(|said| says(said) == part.map(|_| true))
        };
        // A link to a file that is removed.
        fs::remove_file(file).unwrap();
        std::os::unix::fs::symlink("/run/gone/resolv.conf", file).unwrap();
        until("a link is replaced", is_ours);
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
        until("a directory is told", || is_told(Some("a directory is in its place")));
        fs::remove_dir(file).unwrap();
        until("it is set again", is_ours);
        until("it is told no more", || is_told(None));
    });
}

/// As a start of the machine does.
fn lose_the_record(directory: &Path) {
    fs::remove_dir_all(instance(directory, &NAME.parse().unwrap())).unwrap();
}

#[test]
fn a_start_after_a_power_cut_finds_its_peer_by_the_name_servers_from_before() {
    killed_with_name_servers(
        |_| {},
        |directory, _| {
            lose_the_record(directory);
            let _up = up(directory, "DNS = 10.77.0.2");
            wait_for_endpoint(directory, "192.0.2.1:51820");
        },
    );
}

#[test]
fn a_start_after_a_crash_finds_its_peer_by_the_name_servers_from_before() {
    killed_with_name_servers(
        |_| {},
        |directory, _| {
            let _up = up(directory, "DNS = 10.77.0.2");
            wait_for_endpoint(directory, "192.0.2.1:51820");
        },
    );
}

#[test]
fn a_start_after_a_crash_takes_its_name_servers_back_from_resolvconf_first() {
    killed_with_name_servers(resolvconf, |directory, _| {
        assert!(!resolv_conf().contains("weft"), "it is resolvconf that wrote it");
        let _up = up(directory, "DNS = 10.77.0.2");
        wait_for_endpoint(directory, "192.0.2.1:51820");
    });
}

#[test]
fn down_repairs_the_file_also_when_the_record_is_gone() {
    killed_with_name_servers(
        |_| {},
        |directory, before| {
            lose_the_record(directory);
            let down = || weft(directory).args(["down", NAME]).output().unwrap();
            let output = down();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(resolv_conf(), before);
            assert_eq!(down().status.code(), Some(1), "there is nothing any more");
        },
    );
}

#[test]
fn down_restores_a_former_content_that_another_program_has_removed() {
    with_name_servers(|directory, _daemon| {
        until("the name server is set", is_ours);
        fs::remove_dir_all("/var/lib/weft").unwrap();
        let output = weft(directory).args(["down", NAME]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(!resolv_conf().contains("10.77.0.2") && resolv_conf().contains("nameserver"));
    });
}

#[test]
fn down_fails_and_names_the_servers_that_stay_where_the_former_content_is_lost() {
    with_name_servers(|directory, daemon| {
        until("the name server is set", is_ours);
        daemon.crash();
        fs::remove_dir_all("/var/lib/weft").unwrap();
        let output = weft(directory).args(["down", NAME]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot restore /etc/resolv.conf") && said.contains("10.77.0.2"), "{said}");
    });
}

#[test]
fn where_only_run_is_writable_the_former_content_is_kept_there() {
    if !here::tun_permitted() {
        return;
    }
    with_name_server(&Records::default(), || {
        // A container with a read-only root is such: a file is mounted over its /etc/resolv.conf.
        ["/var/lib", "/run"].iter().for_each(|path| mounts::empty(path).unwrap());
        read_only("/var/lib".as_ref());
        let machine = Machine::new();
        let (directory, before) = (machine.root.path(), resolv_conf());
        let down = || {
            let output = weft(directory).args(["down", NAME]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(resolv_conf(), before);
        };
        let ended = up_to("192.0.2.1:51820", directory, "DNS = 10.77.0.2");
        until("the name server is set", is_ours);
        down();
        drop(ended);
        let killed = up_to("192.0.2.1:51820", directory, "DNS = 10.77.0.2");
        until("the name server is set", is_ours);
        killed.crash();
        down();
    });
}

#[test]
fn a_reload_does_not_wait_for_name_servers_that_say_nothing() {
    with_daemon("", |_, directory, _up| {
        let _silent = UdpSocket::bind("127.0.0.2:53").unwrap();
        fs::write("/etc/resolv.conf", "nameserver 127.0.0.2\noptions timeout:30 attempts:1\n").unwrap();
        // One after the other they would take longer than the timeout of a reload.
        let hosts = ["a", "b", "c"].map(|host| format!("{host}.weft.example:51820"));
        let peers = hosts.each_ref().map(|host| {
            let peer = PrivateKey::generate().unwrap().public_key();
            format!("[Peer]\nPublicKey = {peer}\nEndpoint = {host}\n")
        });
        let (is_ok, said) = reload(directory, |text| text + &peers.concat());
        assert!(is_ok, "{said}");
        for host in &hosts {
            let warning = format!("cannot resolve the endpoint {host}");
            assert!(said.lines().any(|line| line.contains(&warning)), "{host}: {said}");
        }
        // What was found before stays.
        wait_for_endpoint(directory, "192.0.2.1:51820");
    });
}

#[test]
fn a_name_that_a_reload_did_not_find_is_followed_once_it_leads_somewhere() {
    with_daemon("", |records, directory, _up| {
        set(records, &[]);
        let (is_ok, said) = reload(directory, |text| text.replace("vpn.weft.example", "new.weft.example"));
        assert!(is_ok && said.contains("new.weft.example"), "{said}");
        // Where it was is better than nowhere.
        wait_for_endpoint(directory, "192.0.2.1:51820");
        set(records, &[2]);
        wait_for_endpoint(directory, "192.0.2.2:51820");
    });
}
