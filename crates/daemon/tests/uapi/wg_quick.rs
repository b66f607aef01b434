//! Debian's wg-quick(8), with weft underneath.

use std::process::Output;

use weft_lab::{here, until};

use crate::support::{Machine, daemon_of, key, public_key};

const IF: &str = "wgq0";

struct Quick {
    machine: Machine,
    file: String,
}

impl Quick {
    fn new(text: &str) -> Option<Self> {
        if std::path::Path::new("/sys/module/wireguard").exists() {
            here::not_run("wg-quick takes the kernel's WireGuard here");
            return None;
        }
        let machine = Machine::new(&["wg", "wg-quick", "ip", "bash"])?;
        let file = machine.file(&format!("{IF}.conf"), text);
        Some(Self { machine, file })
    }

    fn try_run(&self, command: &str) -> Output {
        self.try_run_with("weft", command)
    }

    fn try_run_with(&self, program: &str, command: &str) -> Output {
        let mut wg_quick = self.machine.command("wg-quick");
        wg_quick.args([command, &self.file]).env("WG_QUICK_USERSPACE_IMPLEMENTATION", program);
        wg_quick.output().unwrap()
    }

    #[track_caller]
    fn run(&self, command: &str) -> String {
        let output = self.try_run(command);
        assert!(output.status.success(), "wg-quick {command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn text(more: &str) -> String {
    format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 4567\nAddress = 10.9.0.1/24, fd09::1/64\nMTU = 1380\nTable = 7\n{more}\
         [Peer]\nPublicKey = {}\nAllowedIPs = 10.20.0.0/16, fd20::/64\nEndpoint = 192.0.2.7:7\nPersistentKeepalive = 25\n",
        *key(1).to_base64(),
        public_key(2)
    )
}

#[test]
fn up_and_down() {
    let hooks = "PostUp = echo %i > $MARK\nPostDown = echo gone > $MARK\n";
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("mark");
    let hooks = hooks.replace("$MARK", mark.to_str().unwrap());
    let Some(quick) = Quick::new(&text(&hooks)) else { return };
    let machine = &quick.machine;
    for _ in 0..2 {
        quick.run("up");
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), format!("{IF}\n"));
        let pid = daemon_of(machine, IF).unwrap();
        // It would leave what wg-quick has set up.
        let refused = machine.output("weft", &["down", IF]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(&format!("`wg-quick down {IF}`")), "{said}");
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        assert_eq!(program, std::path::Path::new(env!("CARGO_BIN_EXE_weft")).canonicalize().unwrap());
        let link = machine.run("ip", &["-brief", "address", "show", "dev", IF]);
        assert!(link.contains("10.9.0.1/24") && link.contains("fd09::1/64"), "{link}");
        let link = machine.run("ip", &["link", "show", "dev", IF]);
        assert!(link.contains("mtu 1380") && link.contains("UP"), "{link}");
        let routes = machine.run("ip", &["route", "show", "table", "7"]);
        assert!(routes.contains("10.20.0.0/16"), "{routes}");
        assert_eq!(machine.wg(&format!("show {IF} listen-port")), "4567\n");
        assert_eq!(machine.wg(&format!("show {IF} peers")), format!("{}\n", public_key(2)));
        quick.run("down");
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), "gone\n");
        until("nothing is left", || {
            !machine.has_link(IF) && !machine.has_socket(IF) && daemon_of(machine, IF).is_none()
        });
    }
}

#[test]
fn names_that_are_words_of_a_command_line_come_up() {
    let text = text("PostUp = weft restart 2> /dev/null || true\n");
    let Some(mut quick) = Quick::new(&text) else { return };
    for name in ["office", "list", "status"] {
        quick.file = quick.machine.file(&format!("{name}.conf"), &text);
        quick.run("up");
        assert_eq!(quick.machine.wg("show interfaces"), format!("{name}\n"));
        quick.run("down");
        until("nothing is left", || !quick.machine.has_link(name) && !quick.machine.has_socket(name));
    }
}

#[test]
fn down_and_up_again_at_once() {
    let Some(quick) = Quick::new(&text("")) else { return };
    let machine = &quick.machine;
    let mut predecessors = vec!["weft"];
    predecessors.extend(here::installed(&["wireguard-go"]).then_some("wireguard-go"));
    for before in predecessors {
        for time in 0..10 {
            if before != "weft" {
                // It waits for no predecessor.
                until("nothing is left", || !machine.has_link(IF) && daemon_of(machine, IF).is_none());
            }
            for (program, command) in [(before, "up"), (before, "down"), ("weft", "up"), ("weft", "down")] {
                let output = quick.try_run_with(program, command);
                assert!(output.status.success(), "{program}, {command} {time}: {output:?}");
            }
        }
    }
}

#[test]
fn a_failure_on_the_way_up_leaves_nothing() {
    let Some(quick) = Quick::new(&text("PostUp = false\n")) else { return };
    assert!(!quick.try_run("up").status.success());
    until("nothing is left", || !quick.machine.has_link(IF) && !quick.machine.has_socket(IF));
}

#[test]
fn save_and_strip() {
    let Some(quick) = Quick::new(&text("")) else { return };
    let machine = &quick.machine;
    let stripped = quick.run("strip");
    assert!(stripped.contains("PrivateKey") && !stripped.contains("Address"), "{stripped}");
    quick.run("up");
    machine.wg(&format!("set {IF} peer {} allowed-ips 10.30.0.0/16", public_key(3)));
    quick.run("save");
    let saved = std::fs::read_to_string(&quick.file).unwrap();
    for line in [
        "Address = 10.9.0.1/24",
        "Address = fd09::1/64",
        "MTU = 1380",
        "ListenPort = 4567",
        "AllowedIPs = 10.20.0.0/16, fd20::/64",
        "Endpoint = 192.0.2.7:7",
        "PersistentKeepalive = 25",
        "AllowedIPs = 10.30.0.0/16",
    ] {
        assert!(saved.lines().any(|saved| saved == line), "{line:?} is not in\n{saved}");
    }
    // What was saved comes up again.
    quick.run("down");
    until("it is down", || !machine.has_link(IF) && !machine.has_socket(IF));
    quick.run("up");
    assert_eq!(machine.wg(&format!("show {IF} peers")).lines().count(), 2);
    quick.run("down");
}

#[test]
fn the_default_route_goes_through_it() {
    let text = text("").replace("Table = 7\n", "").replace("10.20.0.0/16", "0.0.0.0/0, ::/0");
    let Some(quick) = Quick::new(&text) else { return };
    let machine = &quick.machine;
    quick.run("up");
    assert_eq!(machine.wg(&format!("show {IF} fwmark")), "0xca6c\n");
    let route = machine.run("ip", &["route", "get", "198.51.100.1"]);
    assert!(route.contains(&format!("dev {IF}")), "{route}");
    quick.run("down");
    until("nothing is left", || !machine.has_link(IF) && !machine.has_socket(IF));
}
