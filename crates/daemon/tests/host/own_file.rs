//! The NAME of a running interface stands for the file that it was brought up from, wherever that is, in each
//! command that reads a file.

use std::process::Command;

use weft_ipc::runtime_dir::VARIABLE;
use weft_lab::Process;
use weft_lab::mounts::Mounts;

use crate::support::{End, Ended, NAME, Network, peer};

const WEFT: &str = env!("CARGO_BIN_EXE_weft");

struct Machine {
    network: Network,
    /// With /etc of the test, in which another file has the interface's name.
    mounts: Mounts,
    ends: [End; 2],
}

impl Machine {
    fn new() -> Option<Self> {
        let network = Network::new()?;
        let mounts = Mounts::with_empty(&["/etc", "/var/lib", "/var/run"]).unwrap();
        let machine = Self { network, mounts, ends: [End::new(1), End::new(2)] };
        let usual = machine.network.file("usual", &machine.text(1301));
        let script = format!("mkdir /etc/wireguard; cp {} /etc/wireguard/weft0.conf", usual.display());
        assert!(machine.within("sh", &["-ec", &script]).status().unwrap().success());
        Some(machine)
    }

    fn text(&self, mtu: u16) -> String {
        let lines = format!("MTU = {mtu}");
        self.ends[0].interface(&lines) + &peer(self.ends[1].public(), "AllowedIPs = 10.88.0.0/16")
    }

    /// A command that is at the client, as weft is.
    fn within(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.network.client.command(program);
        command.args(arguments).env_remove("RUST_LOG").env(VARIABLE, self.network.records());
        self.mounts.apply(&mut command).unwrap();
        command
    }

    fn says(&self, arguments: &[&str]) -> Ended {
        self.within(WEFT, arguments).output().unwrap().into()
    }

    fn mtu(&self) -> u64 {
        let status: serde_json::Value =
            serde_json::from_str(&self.says(&["status", NAME, "--json", "--sample", "0"]).stdout).unwrap();
        status["interfaces"][0]["mtu"].as_u64().unwrap()
    }
}

#[test]
fn a_name_is_the_file_that_the_interface_was_brought_up_from() {
    let Some(machine) = Machine::new() else { return };
    let usual = "/etc/wireguard/weft0.conf";
    for directory in ["own", "linked"] {
        std::fs::create_dir(machine.network.directory.path().join(directory)).unwrap();
    }
    let own = machine.network.file("own/weft0.conf", &machine.text(1302));
    let link = machine.network.directory.path().join("linked/weft0.conf");
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let own_text = own.to_str().unwrap();
    // A relative path names the same file wherever the next command runs.
    let script = format!("cd {}; exec {} up ./weft0.conf", own.parent().unwrap().display(), WEFT);
    let up = machine.within("sh", &["-ec", &script]);
    let daemon = Process::start(&machine.network.client, up).unwrap();
    daemon.wait_for_line(" is up: port ");
    assert_eq!(machine.mtu(), 1302);

    std::fs::write(&own, machine.text(1303) + "# by hand\n").unwrap();
    let strip = machine.says(&["strip", NAME]).stdout;
    assert!(strip.contains("# by hand"), "{strip}");
    let reads = |arguments: &[&str], expected: &str| {
        let said = machine.says(arguments);
        let told = format!("{}{}", said.stdout, said.stderr);
        assert!(told.contains(expected), "{arguments:?}: {told}");
        told
    };
    reads(&["check", NAME, "--json"], "\"mtu\": 1303");
    reads(&["status", NAME], own_text);
    let told = reads(&["reload", NAME, "--dry-run"], "set mtu 1303");
    assert!(!told.contains("brought up from"), "{told}");
    reads(&["reload", NAME], "set mtu 1303");
    assert_eq!(machine.mtu(), 1303);
    let told = reads(&["reload", link.to_str().unwrap()], "nothing to change");
    assert!(!told.contains("brought up from"), "{told}");

    // Another file is taken, and that is told, also to programs.
    let from =
        format!("weft0 was brought up from {own_text}, and takes what is in {usual} until its next start");
    reads(&["reload", usual, "--dry-run", "--json"], &from);
    reads(&["reload", usual], &from);
    assert_eq!(machine.mtu(), 1301);
    reads(&["reload", NAME], "set mtu 1303");
    std::fs::write(&own, "nonsense").unwrap();
    for command in ["reload", "doctor", "check"] {
        let said = machine.says(&[command, NAME]);
        assert!(
            said.code == Some(78) && said.stderr.contains(&format!("{own_text}:1")),
            "{command}: {said:?}"
        );
    }
    daemon.stop();
    // Without an interface the name is that of the usual file.
    reads(&["check", NAME, "--json"], "\"mtu\": 1301");
}

#[test]
fn a_file_is_the_interface_that_was_brought_up_from_it_under_another_name() {
    let Some(machine) = Machine::new() else { return };
    let file = machine.network.file("provider (1).conf", &machine.text(1302));
    let file = file.to_str().unwrap();
    let up = machine.within(WEFT, &["up", file, "--name", NAME]);
    let daemon = Process::start(&machine.network.client, up).unwrap();
    daemon.wait_for_line(" is up: port ");
    for arguments in [
        &["status"][..],
        &["show"],
        &["check"],
        &["doctor"],
        &["save"],
        &["set", "fwmark", "0"],
        &["reload", "--dry-run"],
        &["reload"],
        &["down"],
    ] {
        let (command, options) = arguments.split_first().unwrap();
        let said = machine.says(&[&[*command, file], options].concat());
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}");
        let by_name = machine.says(&[&[*command, NAME], options].concat());
        assert!(by_name.code == Some(0) || *command == "down", "{arguments:?}: {by_name:?}");
    }
    // Without an interface it is the one that a start would make of it.
    let said = machine.says(&["status", file]);
    assert!(said.code == Some(1) && said.stderr.contains("provider-"), "{said:?}");
}

#[test]
fn a_pipe_is_read_once() {
    let Some(machine) = Machine::new() else { return };
    let file = machine.network.file("piped", &machine.text(1302));
    let script = format!("exec {WEFT} up --name {NAME} <(cat {})", file.display());
    let up = machine.within("bash", &["-c", &script]);
    let daemon = Process::start(&machine.network.client, up).unwrap();
    daemon.wait_for_line(" is up: port ");
    assert_eq!(machine.mtu(), 1302);
}

/// As a file that a container is given by itself.
#[test]
fn a_file_with_a_mount_over_it_is_left_alone_and_the_way_out_is_told() {
    let Some(machine) = Machine::new() else { return };
    let given =
        machine.network.file("given", &(machine.text(1302).replacen("MTU", "ListenPort = 1\nMTU", 1) + "\n"));
    let place = machine.network.file("bound.conf", "");
    let before = std::fs::read_to_string(&given).unwrap();
    let (given_text, place) = (given.display(), place.display());
    let script = format!(
        "mount --bind {given_text} {place}; exec {WEFT} peer add phone --interface {place} --endpoint 192.0.2.1:1"
    );
    let said: Ended = machine.within("sh", &["-ec", &script]).output().unwrap().into();
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("mount its directory instead"), "{said:?}");
    assert_eq!(std::fs::read_to_string(&given).unwrap(), before);
    assert!(!given.parent().unwrap().join("bound.conf.new").exists());
}

#[test]
fn what_is_almost_named_is_told_and_peers_are_those_of_a_gateway() {
    let Some(machine) = Machine::new() else { return };
    let near = machine.network.file("near.conf", &machine.text(1302));
    let near = near.to_str().unwrap();
    let usual = "`weft0`, for /etc/wireguard/weft0.conf";
    for (target, meant) in
        [("weft0.conf", usual), ("/etc/wireguard/weft0", usual), (near.strip_suffix(".conf").unwrap(), near)]
    {
        let said = machine.says(&["up", target]);
        let told = said.stderr.contains(&format!("did you mean {meant}?"));
        assert!(said.code == Some(78) && told, "{target}: {said:?}");
    }
    // The file of a client is beside that of a gateway, and runs.
    let gateway = machine.ends[1].interface("ListenPort = 51820")
        + &peer(machine.ends[0].public(), "# friendly_name = phone\nAllowedIPs = 10.77.0.1/32");
    let gateway = machine.network.file("gateway", &gateway);
    let copied = machine.within("cp", &[gateway.to_str().unwrap(), "/etc/wireguard/gateway.conf"]).status();
    assert!(copied.unwrap().success());
    let lists = || machine.says(&["peer", "list"]).stdout.contains("phone");
    assert!(lists());
    let daemon = Process::start(&machine.network.client, machine.within(WEFT, &["up", NAME])).unwrap();
    daemon.wait_for_line(" is up: port ");
    assert!(lists());
    // What stands where a peer should, and what has no terminal.
    for (arguments, told) in
        [(["speedtest", NAME], "weft0 is an interface, and"), (["top", NAME], "`weft top` needs a terminal")]
    {
        let said = machine.says(&arguments);
        assert!(said.code == Some(2) && said.stderr.contains(told), "{said:?}");
    }
    daemon.stop();
}
