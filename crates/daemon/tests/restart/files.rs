//! A file that was edited before the service is started again.

use crate::world::{World, file_of, file_of_a, file_of_b, key, public};

#[test]
fn an_edit_is_applied_and_nothing_else_is_touched() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let stream = world.stream(2);
    world.weft_ok(&["set", "weft0", "peer", &public(5).to_string(), "allowed-ips", "10.5.0.0/16"]);
    let before = world.picture();
    let peer = "Endpoint = 192.0.2.2:51820\nPersistentKeepalive = 33";
    let more = format!("[Peer]\nPublicKey = {}\nAllowedIPs = 10.88.0.0/16\n", public(8));
    world.write(&(file_of(1, "Address = 10.78.0.1/24", peer) + &more));
    world.restart();
    stream.goes_on();
    let after = world.picture();
    let new: Vec<&String> = after.iter().filter(|item| !before.contains(item)).collect();
    assert!(before.iter().all(|item| after.contains(item)), "{before:#?} {after:#?}");
    assert!(new.iter().all(|item| item.contains("10.78.0.") || item.contains("10.88.0.0/16")), "{new:#?}");
    assert!(new.len() >= 3, "an address, its network, and a route: {new:#?}");
    let configured = world.weft_ok(&["showconf", "weft0"]);
    for line in ["PersistentKeepalive = 33", "AllowedIPs = 10.88.0.0/16", "AllowedIPs = 10.5.0.0/16"] {
        assert!(configured.contains(line), "{line} in:\n{configured}");
    }

    // And back: what the edit had added goes, what `weft set` had added stays.
    world.write(&file_of_a());
    world.restart();
    stream.end();
    assert_eq!(world.picture(), before);
    let configured = world.weft_ok(&["showconf", "weft0"]);
    assert!(!configured.contains("10.88.0.0/16") && configured.contains("10.5.0.0/16"), "{configured}");
}

#[test]
fn another_port_in_the_file_is_used() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let stream = world.stream(1);
    world.write(&file_of_a().replace("ListenPort = 51820", "ListenPort = 51821"));
    world.restart();
    stream.end();
    assert_eq!(world.weft_ok(&["show", "weft0", "listen-port"]).trim(), "51821");
    // The old one is closed everywhere.
    drop(world.a.bind_udp("0.0.0.0:51820"));
    // A random port stays the one that it is: the peers know it.
    world.write(&file_of_a().replace("ListenPort = 51820\n", ""));
    world.restart();
    let random = world.weft_ok(&["show", "weft0", "listen-port"]);
    assert_ne!(random.trim(), "51821", "the edit asks for a random one");
    world.restart();
    assert_eq!(world.weft_ok(&["show", "weft0", "listen-port"]), random);
}

#[test]
fn a_port_that_was_changed_is_free_at_once() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    for port in ["51999", "51820", "51999"] {
        world.weft_ok(&["set", "weft0", "listen-port", port]);
    }
    drop(world.a.bind_udp("0.0.0.0:51820"));
    let stream = world.stream(1);
    world.restart();
    stream.end();
    assert_eq!(world.weft_ok(&["show", "weft0", "listen-port"]).trim(), "51999");
}

#[test]
fn commands_run_again_only_when_they_are_other_ones() {
    let log = |world: &World| {
        let path = world.directory.path().join("commands");
        std::fs::read_to_string(path).unwrap_or_default().lines().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let Some(mut world) = World::new() else { return };
    let path = world.directory.path().join("commands");
    let file = |number: u8| {
        let hook = |key: &str| format!("{key} = echo {key}-{number} >> {}\n", path.display());
        file_of(1, &["PreUp", "PostUp", "PreDown", "PostDown"].map(hook).concat(), "")
    };
    world.write(&file(1));
    world.start();
    assert_eq!(log(&world), ["PreUp-1", "PostUp-1"]);
    world.write(&format!("# A comment moves them to other lines.\n\n{}", file(1)));
    world.restart();
    assert_eq!(log(&world).len(), 2, "{:?}", log(&world));
    world.write(&file(2));
    world.restart();
    assert_eq!(log(&world)[2..], ["PreDown-1", "PostDown-1", "PreUp-2", "PostUp-2"]);
    world.stop();
    assert_eq!(log(&world)[6..], ["PreDown-2", "PostDown-2"]);
}

#[test]
fn keys_that_pre_up_has_written_stay_when_their_files_are_gone() {
    let Some(mut world) = World::new() else { return };
    let place = world.directory.path().join("own.key");
    let path = place.display();
    let lines = format!(
        "PrivateKeyFile = {path}\nPreUp = echo {} > {path}\nPostUp = rm {path}\n",
        *key(1).to_base64()
    );
    let text = file_of(1, &lines, "");
    let own = text.lines().find(|line| line.starts_with("PrivateKey =")).unwrap().to_owned();
    world.write(&text.replace(&own, ""));
    world.start();
    let before = world.weft_ok(&["show", "weft0", "public-key"]);
    assert_eq!(before.trim(), public(1).to_string());
    world.restart();
    assert!(!place.exists());
    assert_eq!(world.weft_ok(&["show", "weft0", "public-key"]), before);
}
