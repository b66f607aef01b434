//! SaveConfig: the state is in the file when the interface is down.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::{End, NAME, Network, peer};

#[test]
fn what_changed_is_in_the_file_after_down_and_the_rest_is_as_it_was() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let text = "# Mine.\n".to_owned()
        + &End::new(1).interface("ListenPort = 4444\nMTU = 1400\nSaveConfig = true\nPreDown = true # %i")
        + "\n# Theirs.\n"
        + &peer(End::new(2).public(), "Endpoint = 203.0.113.1:1\nAllowedIPs = 10.88.0.0/16 # inside");
    let file = network.file("weft0.conf", &text);
    network.up(&file).stop();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "nothing changed");
    let daemon = network.up(&file);
    for arguments in [
        &["address", "add", "10.78.0.1/24", "dev", NAME][..],
        &["address", "del", "10.77.0.1/24", "dev", NAME],
        &["link", "set", "dev", NAME, "mtu", "1300"],
    ] {
        assert!(network.client.command("ip").args(arguments).status().unwrap().success());
    }
    daemon.stop();
    let expected = text
        .replace("MTU = 1400", "MTU = 1300")
        .replace("Address = 10.77.0.1/24, fd77::1/64", "Address = 10.78.0.1/24, fd77::1/64");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    network.assert_as(&before);
}
