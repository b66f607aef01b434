//! A network that changes underneath a tunnel, and a peer that does not answer.

use std::io::Read as _;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use weft_lab::{Process, until};

use crate::support::{BEHIND, WAN, World, page, url};

fn run(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

impl World {
    /// `ip` at the client.
    fn ip(&self, arguments: &str) {
        let mut command = self.client.command("ip");
        command.args(arguments.split(' '));
        run(command);
    }
}

#[test]
fn a_download_goes_on_when_the_host_gets_another_address_and_another_route() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    for (host, own) in BEHIND.into_iter().zip(["10.77.0.2", "fd77::2"]) {
        let curl = ["curl", "-sS", "--max-time", "60", "--limit-rate", "1M", &url(host)];
        let mut command = world.exec(&world.file(""), &[], &curl);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut content = vec![0; 100_000];
        stdout.read_exact(&mut content).unwrap();
        let now = if own.contains(':') { "192.0.2.8" } else { "192.0.2.9" };
        world.ip(&format!("address flush dev {WAN} scope global"));
        world.ip(&format!("address add {now}/24 dev {WAN}"));
        world.ip("route replace default via 192.0.2.2");
        stdout.read_to_end(&mut content).unwrap();
        assert!(child.wait().unwrap().success(), "{own}");
        assert!(content == page(own), "the page of {own} differs");
    }
}

#[test]
fn a_peer_that_does_not_answer_is_named_while_the_command_waits() {
    let Some(world) = World::new() else { return };
    let text = std::fs::read_to_string(world.file("")).unwrap();
    // Nothing listens there.
    let file = world.write("silent.conf", &text.replace(":51820", ":9"));
    let curl = ["curl", "-sS", "--connect-timeout", "600", &url(BEHIND[0])];
    let curl = world.exec(&file, &[], &curl);
    let mut weft = Process::start(&world.client, curl).unwrap();
    weft.wait_for_line(&format!("peer {} at 192.0.2.2:9 does not answer", world.gateway_key()));
    weft.signal(Signal::SIGTERM);
    assert_eq!(weft.wait().code(), Some(128 + 15));
    until("no process of the user is left", || world.processes().is_empty());
}
