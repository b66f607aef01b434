//! What `weft check` and `weft doctor` foresee of a start on this machine.

use std::fs;
use std::path::{Path, PathBuf};

use weft_host::dns::{Choice, Method, System};
use weft_lab::{Namespace, here, mounts};
use weft_tunnel::PrivateKey;

use crate::daemon::{NAME, own_etc, said, weft};
use crate::name_server::{Records, set};
use crate::names::with_name_server;
use crate::support::{Machine, bind, read_only};

fn write(machine: &Machine, setting: &str, endpoint: &str, allowed_ips: &str) -> PathBuf {
    let (own, peer) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.77.0.1/24\n{setting}\n[Peer]\nPublicKey = {}\n\
         Endpoint = {endpoint}\nAllowedIPs = {allowed_ips}\n",
        own.to_base64().as_str(),
        peer.public_key()
    );
    let file = machine.path(&format!("{NAME}.conf"));
    fs::write(&file, text).unwrap();
    file
}

/// A start fails with this part of a message, and the check says so before, with the same exit code.
#[track_caller]
fn fails_as_foreseen(setting: &str, part: &str, is_wrong: bool) {
    let takes = System::default().method(Choice::Auto).unwrap();
    if takes != Method::File {
        return here::not_run(&format!("{takes} sets name servers here"));
    }
    let machine = Machine::new();
    let directory = machine.root.path();
    let file = write(&machine, setting, "192.0.2.1:51820", "10.77.0.2/32");
    let code = if is_wrong { 78 } else { 1 };
    for command in ["check", "up"] {
        let output = weft(directory).arg(command).arg(&file).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(part), "{command}: {text}");
        assert_eq!(output.status.code(), Some(code), "{command}: {text}");
    }
    let found = said(directory, &["doctor", file.to_str().unwrap(), "--json"], "/findings", "dns_refused");
    assert!(found.is_some_and(|says| says.contains(part)));
}

#[test]
fn name_servers_that_a_start_cannot_set_are_foreseen() {
    if !here::tun_permitted() {
        return;
    }
    with_name_server(&Records::default(), || {
        mounts::empty("/var/lib").unwrap();
        own_etc();
        let file = Path::new("/etc/resolv.conf");
        fails_as_foreseen("DNS = 192.0.2.53, ~corp.example", "corp.example only", true);
        bind(file, file);
        read_only(file);
        fails_as_foreseen("DNS = 192.0.2.53", "make it writable", false);
        nix::mount::umount(file).unwrap();
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
        fails_as_foreseen("DNS = 192.0.2.53", "a directory is in its place", false);
    });
}

#[test]
fn a_file_of_another_network_namespace_is_foreseen() {
    if !here::tun_permitted() || !here::namespaces_permitted() {
        return;
    }
    Namespace::new("check").unwrap().run(|| {
        fails_as_foreseen("DNS = 192.0.2.53", "that of another network namespace too", true);
    });
}

#[test]
fn a_name_server_on_this_machine_is_told_if_its_queries_go_through_the_tunnel() {
    let records = Records::default();
    set(&records, &[1]);
    with_name_server(&records, || {
        let machine = Machine::new();
        for (endpoint, allowed_ips, is_told) in [
            ("vpn.weft.example:51820", "0.0.0.0/0", true),
            ("vpn.weft.example:51820", "10.0.0.0/8", false),
            ("192.0.2.1:51820", "0.0.0.0/0", false),
        ] {
            let file = write(&machine, "", endpoint, allowed_ips);
            let words = ["doctor", file.to_str().unwrap(), "--json"];
            let found = said(machine.root.path(), &words, "/findings", "local_resolver");
            assert_eq!(found.is_some(), is_told, "{endpoint} {allowed_ips}: {found:?}");
        }
    });
}
