//! The commands of a configuration: when they run, what they see, and what becomes of a failure.

use crate::support::{End, NAME, Network, peer};

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
fn a_hook_that_fails_on_the_way_down_is_warned_of_and_the_rest_goes_on() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let lines = "PreDown = exit 7\nPreDown = echo pre >> {log}\nPostDown = no-such-command\nPostDown = echo post >> {log}";
    let file = network.file("weft0.conf", &text(&network, lines));
    let said = network.up(&file).stop();
    assert!(said.contains("weft0.conf:4: PreDown: ") && said.contains("weft0.conf:6: PostDown: "), "{said}");
    assert_eq!(log(&network), ["pre", "post"]);
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
