//! Commands of a file that hang: what waits for them says so, and can be told to stop waiting.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weft_lab::{Process, wait_until};

use crate::beside::weft;
use crate::support::{End, NAME, Network, peer};

/// A command that hangs, with a process below its shell of which it writes down the number.
pub(crate) fn hanging(network: &Network, phase: &str, rest: &str) -> String {
    let path = network.directory.path().join("process");
    let lines = format!("{phase} = sleep 1000 & echo $! > {}; wait; true\n{rest}", path.display());
    End::new(1).interface(&lines) + &peer(End::new(2).public(), "AllowedIPs = 10.88.0.0/16")
}

/// Returns the number of the process below the shell, once it is written down.
pub(crate) fn process_of(network: &Network) -> Option<i32> {
    let path = network.directory.path().join("process");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Waits until the process below the shell has ended.
#[track_caller]
pub(crate) fn assert_is_gone(network: &Network, process: i32) {
    std::fs::remove_file(network.directory.path().join("process")).unwrap();
    wait_until("the process of the command ends", || {
        let is_zombie = || {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            stat.contains(") Z")
        };
        (kill(Pid::from_raw(process), None) == Err(Errno::ESRCH) || is_zombie()).then_some(())
    });
}

/// Checks that the status names the command, after `doing`.
#[track_caller]
fn assert_status_says(network: &Network, doing: &str, phase: &str) {
    let status = network.run(&["status", NAME]);
    // Words are wrapped in the table.
    let said = (status.stdout + &status.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(doing) && said.contains(&format!("waiting for {phase} `sleep 1000")), "{said}");
}

#[test]
fn a_command_of_a_start_that_hangs_is_named_and_ends_with_the_start() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    for (phase, by_signal) in [("PreUp", true), ("PostUp", true), ("PostUp", false)] {
        let file = network.file("weft0.conf", &hanging(&network, phase, "PostDown = false"));
        let mut daemon = Process::start(&network.client, network.weft_up(&file)).unwrap();
        let line = daemon.wait_for_line("waiting for");
        assert!(line.contains(&format!("waiting for {phase} `sleep 1000")), "{line}");
        assert!(line.contains("weft0.conf:4, process "), "{line}");
        assert_status_says(&network, "it is being brought up", phase);
        if by_signal {
            daemon.signal(Signal::SIGTERM);
        } else {
            network.down();
        }
        assert_eq!(daemon.wait().code(), Some(1), "{}", daemon.log());
        assert!(daemon.log().contains("because weft was told to end"), "{}", daemon.log());
        assert_is_gone(&network, process_of(&network).unwrap());
        network.assert_as(&before);
    }
}

#[test]
fn a_command_of_an_end_that_hangs_is_named_and_another_signal_ends_it() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let log = network.directory.path().join("log");
    for phase in ["PreDown", "PostDown"] {
        let rest = format!("PostDown = echo down >> {}", log.display());
        let file = network.file("weft0.conf", &hanging(&network, phase, &rest));
        let mut daemon = network.up(&file);
        let mut down = Process::start(&network.client, network.weft(&["down", NAME])).unwrap();
        for process in [&daemon, &down] {
            let line = process.wait_for_line("waiting for");
            assert!(line.contains(&format!("waiting for {phase} `sleep 1000")), "{line}");
            assert!(line.contains("weft0.conf:4, process "), "{line}");
        }
        assert_status_says(&network, "being taken down", phase);
        daemon.signal(Signal::SIGTERM);
        // The rest is done, and the failure is told.
        assert_eq!(down.wait().code(), Some(1), "{}", down.log());
        assert!(down.log().contains("because weft was told to end"), "{}", down.log());
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert_is_gone(&network, process_of(&network).unwrap());
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "down\n");
        std::fs::remove_file(&log).unwrap();
        network.assert_as(&before);
    }
}

#[test]
fn commands_of_two_interfaces_do_not_wait_for_each_other() {
    let script = r#"
sed "s/^PostUp.*/PostUp = bash \"\$HERE\/ask\"/; s/10\.77\./10.78./; s/fd77/fd78/; s/10\.88\./10.89./" "$FILE" > "$HERE/weft1.conf"
cat > "$HERE/ask" <<'END'
for asked in "reload $FILE" "down weft0" "up -d $FILE"; do
    timeout 60 weft $asked >> "$HERE/answers" 2>&1; echo "$asked: $?" | sed "s|$HERE/||"
done > "$HERE/log"
END
chmod 600 "$HERE/weft1.conf"
up; echo $?; cat "$HERE/log"; weft down weft1 2> /dev/null; echo $?; cat "$HERE/answers" "$HERE/said"
"#;
    let Some(weft) = weft("PostUp = weft up -d \"$HERE/weft1.conf\"", script) else { return };
    let expected = "0\nreload weft0.conf: 1\ndown weft0: 1\nup -d weft0.conf: 78\n0\n";
    assert!(weft.stdout.starts_with(expected), "{}", weft.stdout);
    for reason in ["is not up yet", "cannot take weft0 down", "is up already"] {
        assert!(weft.stdout.contains(reason), "{}", weft.stdout);
    }
}
