//! What a shell completes on a machine with interfaces, and one peer of `weft show`.

use std::process::Command;

use weft_ipc::runtime_dir::VARIABLE;
use weft_lab::mounts::Mounts;

use crate::support::{End, Ended, NAME, Network, peer};

/// A machine with an interface that runs, and with two files.
struct Machine {
    network: Network,
    mounts: Mounts,
}

impl Machine {
    fn new() -> Option<Self> {
        let network = Network::new()?;
        let machine = Self { mounts: Mounts::with_empty(&["/etc", "/var/run"]).unwrap(), network };
        let script = "mkdir /etc/wireguard; cd /etc/wireguard
            printf '[Interface]\\n#[disabled] [Peer]\\n#[disabled] # friendly_name = old phone\\n' > office.conf
            printf '#[disabled] PublicKey = %s\\n' 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=' >> office.conf
            touch notes.txt 'wg (1).conf'";
        assert!(machine.within("sh", &["-ec", script]).status().unwrap().success());
        Some(machine)
    }

    fn within(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.network.client.command(program);
        command.args(arguments).env_remove("RUST_LOG").env(VARIABLE, self.network.records());
        self.mounts.apply(&mut command).unwrap();
        command
    }

    /// Returns what bash offers for the last word of a line.
    fn complete(&self, line: &str) -> String {
        let weft = env!("CARGO_BIN_EXE_weft");
        let script = format!(
            "cd {}; PATH={}:$PATH; source <(weft completions bash); COMP_WORDS=({line}); [[ '{line}' != *' ' ]] || COMP_WORDS+=('')
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9; _clap_complete_weft weft \"${{COMP_WORDS[COMP_CWORD]}}\" ''
            IFS='|'; printf '%s' \"${{COMPREPLY[*]}}\"",
            self.network.directory.path().display(),
            std::path::Path::new(weft).parent().unwrap().display()
        );
        let ended: Ended = self.within("bash", &["--norc", "-c", &script]).output().unwrap().into();
        assert!(ended.code == Some(0) && ended.stderr.is_empty(), "{line}: {ended:?}");
        ended.stdout
    }
}

#[test]
fn interfaces_peers_and_files_are_completed_and_show_takes_a_peer() {
    let Some(machine) = Machine::new() else { return };
    let [own, laptop, phone, nameless] = [1, 2, 3, 4].map(End::new);
    let text = own.interface("ListenPort = 51820")
        + &peer(laptop.public(), "# friendly_name = laptop\nAllowedIPs = 10.77.0.2/32")
        + &peer(phone.public(), "# friendly_name = Anna's phone\nAllowedIPs = 10.77.0.3/32")
        + &peer(nameless.public(), "AllowedIPs = 10.77.0.4/32");
    let file = machine.network.file("weft0.conf", &text);
    let _daemon = machine.network.up(&file);
    let key = nameless.public().to_string();
    let mut peers = ["Anna\\'s\\ phone", key.as_str(), "laptop"];
    peers.sort_unstable();
    for (line, expected) in [
        ("weft sync", "syncconf"),
        ("weft status ", "weft0"),
        ("weft down w", "weft0"),
        ("weft check o", "office"),
        ("weft check ", "office|weft0"),
        ("weft peer remove --to office ", "old\\ phone"),
        ("weft status weft0 lap", "laptop"),
        ("weft status weft0 Anna", "Anna\\'s\\ phone"),
        ("weft top weft0 lap", "laptop"),
        ("weft show weft0 la", "laptop|latest-handshakes"),
        ("weft show inter", "interfaces"),
        ("weft set weft0 peer lap", "laptop"),
        ("weft capture --peer lap", "laptop"),
        ("weft check ./wef", "./weft0.conf"),
        ("weft up --r", "--realtime"),
    ] {
        assert_eq!(machine.complete(line), expected, "{line}");
    }
    let offered = machine.complete("weft status weft0 ");
    let offered: Vec<&str> = offered.split('|').filter(|word| !word.starts_with('-')).collect();
    assert_eq!(offered, peers);
    let options = machine.complete("weft up --");
    assert!(options.contains("--kill-switch"), "{options}");
    for hidden in ["--ring", "--launchd", "--no-offload", "--service", "--join-segments"] {
        assert!(!options.contains(hidden), "{options}");
    }

    let show = |arguments: &[&str]| machine.network.run(&[&["show", NAME], arguments].concat());
    for wanted in ["Anna's phone", &phone.public().to_string(), &phone.public().to_string()[..10]] {
        let shown = show(&[wanted]);
        let has = |end: &End| shown.stdout.contains(&end.public().to_string());
        assert!(shown.code == Some(0) && has(&phone) && !has(&laptop) && !has(&nameless), "{shown:?}");
        let json: serde_json::Value = serde_json::from_str(&show(&[wanted, "--json"]).stdout).unwrap();
        let text = json.to_string();
        assert!(text.contains(&phone.public().to_string()) && !text.contains(&key), "{text}");
    }
    assert_eq!(show(&["latest-handshakes"]).stdout.lines().count(), 3);
    let wrong = show(&["lapto"]);
    assert!(wrong.code == Some(1) && wrong.stderr.contains("laptop"), "{wrong:?}");
    assert_eq!(show(&["dump", "--json"]).code, Some(2));
}
