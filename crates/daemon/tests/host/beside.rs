//! The same script with weft and with wg-quick(8) and wireguard-go, each in a separate network.

use std::path::Path;
use std::process::{Command, Stdio};

use weft_ipc::runtime_dir::VARIABLE as DIRECTORY_VARIABLE;
use weft_lab::here;

use crate::support::{End, Ended, NAME, Network, peer};

/// What both made of a script.
pub(crate) struct Both {
    pub(crate) weft: Ended,
    pub(crate) wg_quick: Ended,
}

/// Runs a script of bash with each of them. In it `up` and `down` bring the interface of the file up and
/// down, and `$FILE` is the file: `[Interface]` has `lines`, and there is one peer. What is in the directory
/// `$HERE` is removed at the end. `None` where that is not possible, which is said.
#[track_caller]
pub(crate) fn both(lines: &str, script: &str) -> Option<Both> {
    if !here::installed(&["wg-quick", "wireguard-go", "wg"]) {
        return None;
    }
    let weft = weft(lines, script)?;
    let (up, down) = ("wg-quick up \"$FILE\"", "wg-quick down \"$FILE\"");
    Some(Both { weft, wg_quick: run(&Network::new()?, lines, up, down, script) })
}

/// Runs a script with weft alone, see [`both`].
#[track_caller]
pub(crate) fn weft(lines: &str, script: &str) -> Option<Ended> {
    if !here::installed(&["unshare", "bash"]) {
        return None;
    }
    Some(run(&Network::new()?, lines, "weft up -d \"$FILE\"", &format!("weft down {NAME}"), script))
}

fn run(network: &Network, lines: &str, up: &str, down: &str, script: &str) -> Ended {
    let text = End::new(1).interface(lines) + &peer(End::new(2).public(), "AllowedIPs = 10.88.0.0/16");
    let file = network.file("weft0.conf", &text);
    let script = format!(
        "mkdir -p /run/wireguard && mount -t tmpfs none /run/wireguard || exit 99\n\
         up() {{ {up} >> \"$HERE/said\" 2>&1; }}\ndown() {{ {down} >> \"$HERE/said\" 2>&1; }}\n\
         {script}\n{{ down || ip link delete {NAME}; }} > /dev/null 2>&1; true"
    );
    let own = Path::new(env!("CARGO_BIN_EXE_weft")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command: Command = network.client.command("unshare");
    command.args(["--mount", "bash", "-c", &script]).stdin(Stdio::null()).env_remove("RUST_LOG");
    command.env("FILE", file).env("HERE", network.directory.path()).env("LANG", "de_DE.UTF-8");
    command.env("PATH", format!("{}:{path}", own.display())).env(DIRECTORY_VARIABLE, network.records());
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}
