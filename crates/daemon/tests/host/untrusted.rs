//! Files in the runtime directory that another user put there.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use weft_lab::{Process, here, wait_until};

use crate::support::{End, Ended, NAME, Network, close_tun_device};

/// The directory of an interface that does not run.
fn instance(network: &Network, name: &str) -> PathBuf {
    let instance = network.records().join(name);
    std::fs::create_dir_all(&instance).unwrap();
    instance
}

/// Runs a command that may never end: it is killed then.
fn run(network: &Network, arguments: &[&str]) -> Ended {
    let mut command = network.weft(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_until("the command to end", || child.try_wait().unwrap());
    }));
    if let Err(panic) = ended {
        child.kill().unwrap();
        std::panic::resume_unwind(panic);
    }
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_fifo_or_a_giant_in_place_of_a_file_holds_no_command_up_and_is_named() {
    let Some(network) = Network::new() else { return };
    mkfifo(&instance(&network, "fifo").join("lock"), Mode::S_IRWXU).unwrap();
    mkfifo(&instance(&network, "fifo2").join("record.json"), Mode::S_IRWXU).unwrap();
    File::create(instance(&network, "giant").join("record.json")).unwrap().set_len(6 << 30).unwrap();
    for (name, file, told) in [
        ("fifo", "lock", "is a FIFO, and not a regular file"),
        ("fifo2", "record.json", "is a FIFO, and not a regular file"),
        ("giant", "record.json", "has 6442450944 bytes, and weft writes 33554432 at most"),
    ] {
        let file = network.records().join(name).join(file);
        let ended = run(&network, &["down", name]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(&format!("{} {told}", file.display())), "{ended:?}");
        assert!(ended.stderr.contains("remove it"), "{ended:?}");
    }
    // Nor another interface, which looks at all records.
    let file = network.file("weft0.conf", &End::new(1).interface("# weft: KillSwitch = off"));
    let ended = run(&network, &["up", "-d", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ended = run(&network, &["down", NAME]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_record_under_the_name_of_another_interface_takes_nothing_back() {
    let Some(network) = Network::new() else { return };
    let hooked = network.records().join("hooked");
    let hook = format!("PostDown = touch {}", hooked.display());
    let file = network.file("weft0.conf", &End::new(1).interface(&hook));
    let daemon = network.up(&file);
    let record = network.records().join(NAME).join("record.json");
    let renamed = instance(&network, "other").join("record.json");
    std::fs::copy(&record, &renamed).unwrap();
    let ended = run(&network, &["down", "other"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let is_told = format!("cannot understand {}.unread: it is the record of weft0", renamed.display());
    assert!(ended.stderr.contains(&is_told), "{ended:?}");
    assert!(!hooked.exists(), "{ended:?}");
    assert!(daemon.is_running(), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn root_uses_a_tun_device_that_is_another_users_and_closed_to_others() {
    let Some(network) = Network::new() else { return };
    let file = network.file("weft0.conf", &End::new(1).interface(""));
    let mut command = network.weft(&["up", file.to_str().unwrap()]);
    close_tun_device(&mut command);
    let daemon = match Process::start(&network.client, command) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return here::not_run("no device can be made here");
        }
        started => started.unwrap(),
    };
    daemon.wait_for_line(" is up: port ");
    daemon.stop();
}

/// Every user can open these, and so lock them.
#[test]
fn what_another_user_locks_holds_no_command_of_root_up() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft", "flock"]) {
        return;
    }
    let text =
        End::new(1).interface("ListenPort = 51820\n# weft: Endpoint = a.example:1\n# weft: KillSwitch = on");
    let file = network.file("weft0.conf", &text);
    std::fs::create_dir_all(network.records()).unwrap();
    let [records, directory] =
        [&network.records(), network.directory.path()].map(|path| File::open(path).unwrap());
    let namespace = network.client.run(|| File::open("/proc/thread-self/ns/net").unwrap());
    let strangers = [records, directory, namespace];
    strangers.iter().for_each(|stranger| stranger.lock().unwrap());
    let script = "mkdir -p /var/run/wireguard; chmod 755 /var/run/wireguard; exec 9</var/run/wireguard; flock 9; echo; \
                  exec sleep 1000";
    let mut sockets = network.command("sh").args(["-ec", script]).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(sockets.stdout.as_mut().unwrap(), &mut [0]).unwrap();

    let start = std::time::Instant::now();
    for arguments in [
        &["up", "-d", file.to_str().unwrap()][..],
        &["reload", NAME],
        &["peer", "add", "n1", "--to", NAME],
        &["peer", "remove", "n1"],
        &["save", NAME],
        &["down", NAME],
    ] {
        let ended = network.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    }
    // Each of the locks was waited for, for 1 to 30 s each time, two minutes in all.
    assert!(start.elapsed().as_secs() < 40, "{:?}", start.elapsed());
    sockets.kill().unwrap();
    sockets.wait().unwrap();
}
