//! The commands of a configuration: when they run, what they see, and what becomes of a failure.

use nix::sys::signal::Signal;

use crate::beside::{both, weft};
use crate::support::{End, Ended, NAME, Network, make_proc_sys_read_only, peer};

/// A file with commands that write what they see into `log`.
fn text(network: &Network, lines: &str) -> String {
    let log = network.directory.path().join("log").display().to_string();
    let end = End::new(1);
    end.interface(&lines.replace("{log}", &log)) + &peer(End::new(2).public(), "AllowedIPs = 10.88.0.0/16")
}

fn log(network: &Network) -> Vec<String> {
    let text = std::fs::read_to_string(network.directory.path().join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

const EVERY: &str = r#"PostDown = echo "postdown %i $(ip -o link show %i 2>/dev/null | wc -l)" >> {log}
PreUp = echo "preup %i $(ip -o -4 address show %i | wc -l)" >> {log} # a comment of the shell's
PreUp = echo second#%i >> {log}
PostUp = echo "postup %i $(ip -4 route show 10.88.0.0/16 | wc -l) $MARKED" >> {log}
PreDown = echo "predown %i $(ip -4 route show 10.88.0.0/16 | wc -l)" >> {log}
PostDown = if [[ %i == weft* ]]; then echo bash >> {log}; fi"#;

#[test]
fn hooks_run_in_their_order_at_their_time_with_the_interface() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let file = network.file("weft0.conf", &text(&network, EVERY));
    let mut command = network.weft_up(&file);
    command.env("MARKED", "environment");
    let daemon = network.start(command);
    assert_eq!(log(&network), ["preup weft0 0", "second#weft0", "postup weft0 1 environment"]);
    daemon.stop();
    assert_eq!(log(&network)[3..], ["predown weft0 1", "postdown weft0 0", "bash"]);
    network.assert_as(&before);
}

#[test]
fn a_hook_that_fails_on_the_way_up_leaves_nothing() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    for key in ["PreUp", "PostUp"] {
        let lines =
            format!("{key} = exit 7\nPreDown = echo down >> {{log}}\nPostDown = echo down >> {{log}}");
        let file = network.file("weft0.conf", &text(&network, &lines));
        let ended = network.run(&["up", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let place = format!("weft0.conf:4: {key}: the command `exit 7` failed with exit code 7");
        assert!(ended.stderr.contains(&place), "{ended:?}");
        network.assert_as(&before);
        assert_eq!(log(&network), [""; 0], "what is for the way down does not run");
    }
}

#[test]
fn what_the_unit_of_a_service_forbids_a_hook_is_told() {
    let Some(network) = Network::new() else { return };
    let line = "PostUp = echo 1 > /proc/sys/net/ipv4/ip_forward";
    let file = network.file("weft0.conf", &text(&network, line));
    for (in_unit, part) in [
        (
            "0123456789abcdef0123456789abcdef",
            "does not let it have write access to sysctls (ProtectKernelTunables=no)",
        ),
        ("", "failed with exit code 1; try it by hand"),
    ] {
        let mut command = network.weft_up(&file);
        command.env("INVOCATION_ID", in_unit);
        make_proc_sys_read_only(&mut command);
        let ended = Ended::from(command.output().unwrap());
        assert!(ended.code == Some(1) && ended.stderr.contains(part), "{ended:?}");
    }
}

#[test]
fn a_hook_that_fails_on_the_way_down_is_told_to_what_caused_the_end_and_the_rest_goes_on() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let lines = "PreDown = exit 7\nPreDown = echo pre >> {log}\nPostDown = no-such-command\nPostDown = echo post >> {log}";
    let file = network.file("weft0.conf", &text(&network, lines));
    let tells_both =
        |said: &str| said.contains("weft0.conf:4: PreDown: ") && said.contains("weft0.conf:6: PostDown: ");

    let mut daemon = network.up(&file);
    let down = network.run(&["down", NAME]);
    assert_eq!(down.code, Some(1), "{down:?}");
    assert!(tells_both(&down.stderr), "{down:?}");
    // Its end was asked for, and is told of: a service manager does not start it again.
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert_eq!(log(&network), ["pre", "post"]);
    network.assert_as(&before);

    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = network.up(&file);
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(1));
        assert!(tells_both(&daemon.log()), "{}", daemon.log());
        network.assert_as(&before);
    }

    // A daemon that is killed leaves its commands to `weft down`.
    let mut daemon = network.up(&file);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let down = network.run(&["down", NAME]);
    assert_eq!(down.code, Some(1), "{down:?}");
    assert!(tells_both(&down.stderr), "{down:?}");
    network.assert_as(&before);
}

#[test]
fn the_device_may_be_changed_by_hand_on_the_way() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    // A route that exists already through the device is not added, and goes with the device.
    let lines = "PreUp = ip link set %i up && ip route add 10.88.0.0/16 dev %i\nPostUp = ip route add 10.99.0.0/16 dev %i";
    let file = network.file("weft0.conf", &text(&network, lines));
    let daemon = network.up(&file);
    let now = network.picture();
    assert!(now.has("10.88.0.0/16") && now.has("10.99.0.0/16") && now.has(NAME), "{now:#?}");
    daemon.stop();
    network.assert_as(&before);
}

#[test]
fn a_start_fails_where_it_fails_with_wg_quick() {
    let table = [
        ("false; true", 1),
        ("no-such-firewall -I OUTPUT -j REJECT; true", 1),
        ("cat /nonexistent | cat", 1),
        ("(exit 3); echo ok", 1),
        ("x=$(false); true", 1),
        ("for i in 1 2; do false; done; true", 1),
        ("exit 3", 1),
        ("unclosed (", 1),
        ("false || true; ! true; if false; then :; fi", 0),
        ("false && true; case weft0 in @(weft|wg)+([0-9])) exit 0 ;; esac; exit 1", 0),
        ("test -n \"$UNSET\" || [[ $INTERFACE == %i && $CONFIG_FILE == \"$FILE\" ]]", 0),
    ];
    for (command, fails) in table {
        let script = "up; echo $(($? != 0)); ip link show weft0 2>&1 | grep -c UP";
        let Some(both) = both(&format!("PostUp = {command}"), script) else { return };
        assert_eq!(
            both.wg_quick.stdout,
            format!("{fails}\n{}\n", 1 - fails),
            "{command}: {:?}",
            both.wg_quick
        );
        assert_eq!(both.weft.stdout, both.wg_quick.stdout, "{command}: {:?}", both.weft);
    }
}

/// Tells the state of the shell that reads it.
const TELL: &str = r#"
exec >> "$HERE/log"
set -o; shopt; umask; pwd; ulimit -a; echo "$PHASE $INTERFACE $CONFIG_FILE ${PATH##*/sbin}"
for name in $(compgen -e); do
    case $name in PATH|SHLVL|WEFT_COMMAND_OF|_) ;; *) echo "$name=${!name}" ;; esac
done
while read -r key value; do
    case $key in
        # glibc ignores its own two signals in a process that it starts.
        SigIgn:) printf 'ignored %x\n' $((16#$value & 0x7fffffff)) ;;
        SigBlk:|NoNewPrivs:|Seccomp:|Cap???:|Groups:|Cpus_allowed:) echo "$key $value" ;;
    esac
done < <(cat /proc/self/status)
for fd in /proc/$BASHPID/fd/*; do
    # Bash reads its script from the last one.
    case ${fd##*/} in 255) ;; *) test ! -e "$fd" || echo "descriptor ${fd##*/}" ;; esac
done
nice; cat /proc/$BASHPID/oom_score_adj /proc/$BASHPID/timerslack_ns
"#;

/// Closes what the caller of the tests has left open: commands of the end have none of it with weft, since a
/// daemon keeps no descriptor of its caller.
const CLOSE: &str = "for fd in /proc/$BASHPID/fd/*; do fd=${fd##*/}; \
                     case $fd in 0|1|2|255) ;; *) eval \"exec $fd>&-\" ;; esac; done\n";

#[test]
fn a_command_runs_in_the_shell_that_wg_quick_has() {
    let hooks = ["PreUp", "PostUp", "PreDown", "PostDown"]
        .map(|phase| format!("{phase} = PHASE={phase}; . \"$HERE/tell\"\n"));
    let script = format!(
        "{CLOSE}cat > \"$HERE/tell\" <<'END'{TELL}END\ncd /usr; umask 027; up; down; sed \"s|$HERE|HERE|\" \"$HERE/log\""
    );
    let Some(both) = both(&hooks.concat(), &script) else { return };
    let (is, expected): (Vec<_>, Vec<_>) =
        (both.weft.stdout.lines().collect(), both.wg_quick.stdout.lines().collect());
    assert!(expected.len() > 4 * 60, "{expected:#?}");
    let missing: Vec<_> = expected.iter().filter(|line| !is.contains(line)).collect();
    let more: Vec<_> = is.iter().filter(|line| !expected.contains(line)).collect();
    assert!(missing.is_empty() && more.is_empty(), "missing: {missing:#?}\nmore: {more:#?}");
    assert_eq!(is, expected);
}

#[test]
fn commands_ask_and_change_the_interface_as_with_wg_quick() {
    let script = r#"
cat > "$HERE/ask" <<'END'
exec >> "$HERE/log"
echo "$1: $(ip -o link show weft0 2> /dev/null | wc -l) device, mark $(wg show weft0 fwmark 2> /dev/null || echo refused)"
if test $1 = PreDown; then
    wg set weft0 peer $(wg genkey | wg pubkey) allowed-ips 10.89.0.0/16
    wg show weft0 allowed-ips | wc -l
fi
END
up; down; echo "exit code $?"; cat "$HERE/log"; grep -c '^\[Peer\]' "$FILE"
"#;
    // wg-quick of Debian runs PreUp before there is a device.
    let hooks =
        ["PostUp", "PreDown", "PostDown"].map(|phase| format!("{phase} = bash \"$HERE/ask\" {phase}\n"));
    let Some(both) = both(&(hooks.concat() + "FwMark = 7\nSaveConfig = true"), script) else { return };
    let expected = "exit code 0\nPostUp: 1 device, mark 0x7\nPreDown: 1 device, mark 0x7\n2\n\
                    PostDown: 0 device, mark refused\n2\n";
    assert_eq!(both.wg_quick.stdout, expected, "{:?}", both.wg_quick);
    assert_eq!(both.weft.stdout, expected, "{:?}", both.weft);
}

#[test]
fn commands_get_answers_of_weft_in_each_phase_and_none_waits_for_itself() {
    let script = r#"
cat > "$HERE/ask" <<'END'
for asked in "status weft0" "save weft0" "show weft0" "reload $FILE" "reload --dry-run $FILE" "down weft0"; do
    timeout 20 weft $asked >> "$HERE/answers" 2>&1 && echo -n "$asked, " || echo -n "no $asked, "
done | sed "s|$HERE/||g" >> "$HERE/log"
curl -s -o /dev/null http://127.0.0.1:9586/healthz && echo metrics >> "$HERE/log" || echo no metrics >> "$HERE/log"
END
up; echo $?; down; echo $?; cat "$HERE/log" "$HERE/answers" "$HERE/said"
"#;
    if !weft_lab::here::installed(&["curl", "timeout"]) {
        return;
    }
    let hooks =
        ["PreUp", "PostUp", "PreDown", "PostDown"].map(|phase| format!("{phase} = bash \"$HERE/ask\"\n"));
    let Some(weft) = weft(&(hooks.concat() + "# weft: Metrics = 127.0.0.1:9586"), script) else { return };
    let rest = "no reload weft0.conf, no reload --dry-run weft0.conf, no down weft0";
    // The interface gets its key after PreUp, as with wg-quick, and is not saved without one.
    let early = format!("status weft0, no save weft0, show weft0, {rest}, metrics\n");
    let answered = format!("status weft0, save weft0, show weft0, {rest}, metrics\n");
    let gone = format!("no status weft0, no save weft0, no show weft0, {rest}, no metrics\n");
    let expected = format!("0\n0\n{early}{answered}{answered}{gone}");
    assert!(weft.stdout.starts_with(&expected), "{}", weft.stdout);
    for reason in ["is not up yet", "is being taken down", "cannot take weft0 down"] {
        assert!(weft.stdout.contains(reason), "{}", weft.stdout);
    }
}
