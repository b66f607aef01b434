//! Files of keys, files that cannot be read, and files that other users can read.

#[cfg(target_os = "linux")]
use std::process::{Child, Command, Stdio};

#[cfg(target_os = "linux")]
use tempfile::TempDir;

use crate::support::{Ended, KEY, OTHER, OWN, PEER, file, run, weft};

#[test]
fn keys_may_stand_in_files_of_their_own() {
    let text = format!(
        "[Interface]\nprivatekeyfile = own.key # ours\n[Peer]\nPublicKey = {PEER}\nPresharedKeyFile = peer.psk\n"
    );
    let (directory, path) = file("wg0.conf", text.as_bytes());
    let path = path.to_str().unwrap();
    for arguments in [
        &["check", path][..],
        &["strip", path],
        &["setconf", "wg0", path],
        &["addconf", "wg0", path],
        &["syncconf", "wg0", path],
    ] {
        let missing = run(arguments, "");
        assert_eq!((missing.code, missing.stdout.as_str()), (78, ""), "{arguments:?}: {}", missing.stderr);
        for part in [
            "wg0.conf:2: PrivateKeyFile: ",
            "own.key: there is no such file",
            "wg0.conf:5: PresharedKeyFile: ",
        ] {
            assert!(missing.stderr.contains(part), "{part} in:\n{}", missing.stderr);
        }
    }
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("own.key", "not a key\n");
    write("peer.psk", &format!("{OTHER}\n"));
    assert!(run(&["check", path], "").stderr.contains("wg0.conf:2: PrivateKeyFile: "));
    write("own.key", &format!("{KEY}\n"));
    let shown = run(&["check", path], "");
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.contains(OWN), "{}", shown.stdout);
    assert!(!shown.stdout.contains(&OTHER[..20]), "{}", shown.stdout);

    // The service's own comes first.
    let credentials = tempfile::tempdir().unwrap();
    std::fs::write(credentials.path().join("own.key"), OTHER).unwrap();
    let output = weft(&["check", path]).env("CREDENTIALS_DIRECTORY", credentials.path()).output().unwrap();
    let with_credential = Ended::from(output);
    assert_eq!(with_credential.code, 0, "{}", with_credential.stderr);
    assert!(!with_credential.stdout.contains(OWN), "{}", with_credential.stdout);
    // What wg(8) gets has the keys themselves, line by line.
    let stripped = run(&["strip", path], "").stdout;
    let expected =
        format!("[Interface]\nPrivateKey = {KEY}\n[Peer]\nPublicKey = {PEER}\nPresharedKey = {OTHER}\n\n");
    assert_eq!(stripped, expected);
}

#[test]
#[cfg(target_os = "linux")]
fn a_pipe_names_no_interface() {
    let text = format!("[Interface]\nPrivateKey = {KEY}\n");
    for target in ["-", "/dev/stdin", "/proc/self/fd/0"] {
        let ended = run(&["up", "--dry-run", target], &text);
        assert_eq!(ended.code, 78, "{target}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("a pipe has no name for an interface; give `weft up` a --name"),
            "{}",
            ended.stderr
        );
        let named = run(&["up", "--dry-run", "--name", "of-a-pipe7", target], &text);
        assert!(named.stdout.contains("of-a-pipe7"), "{target}: {}", named.stderr);
    }
}

#[test]
fn files_that_cannot_be_read_end_with_78_and_their_name() {
    let ended = run(&["check", "/nonexistent/wg0.conf"], "");
    assert_eq!(ended.code, 78);
    assert!(ended.stderr.starts_with("error: /nonexistent/wg0.conf: "), "{}", ended.stderr);

    // No file can have it: the command line is wrong.
    let ended = run(&["check", "no-such-interface-name"], "");
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("interface name is 1 to 15"), "{}", ended.stderr);

    let (_directory, path) = file("wg0.conf", b"\xff\xfe[\0I\0");
    let ended = run(&["check", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 78);
    assert!(ended.stderr.contains("wg0.conf:1: the file is not UTF-8"), "{}", ended.stderr);
}

#[test]
#[cfg(unix)]
fn a_file_that_others_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, path) = file("wg0.conf", format!("[Interface]\nPrivateKey={KEY}\n").as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let ended = run(&["check", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 0);
    assert!(ended.stderr.contains("mode 0644") && ended.stderr.contains("chmod 600"), "{}", ended.stderr);
}

#[test]
#[cfg(unix)]
fn a_file_that_others_can_change_is_warned_of_as_one_with_commands() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, path) = file("wg0.conf", format!("[Interface]\nPrivateKey={KEY}\n").as_bytes());
    let said = "others can change this file, and its commands run as root";
    let check = || run(&["check", path.to_str().unwrap()], "").stderr;
    assert!(!check().contains(said), "{}", check());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(check().contains(said) && check().contains("mode 0666"), "{}", check());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give a file away.
    if std::os::unix::fs::chown(&path, Some(4321), None).is_ok() {
        assert!(check().contains(said) && check().contains("user 4321"), "{}", check());
    }
}

/// How weft ends for a user who owns nothing; `None` if the test cannot become one. All can read the
/// directory.
#[cfg(target_os = "linux")]
fn run_as_nobody(directory: &TempDir, arguments: &[&str]) -> Option<Ended> {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = if nix::unistd::geteuid().is_root() {
        // The binary is copied to where the other user can run it.
        let binary = directory.path().join("weft");
        // By another process: what this one has open for writing, a child forked meanwhile has too, and such
        // a program cannot be executed.
        assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_weft")).arg(&binary).status().unwrap().success());
        Command::new(&binary).args(arguments).uid(65_534).gid(65_534).output()
    } else {
        weft(arguments).output()
    };
    match output {
        Ok(output) => Some(output.into()),
        Err(reason) => {
            weft_lab::here::not_run(&format!("weft {arguments:?}: {reason}"));
            None
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_key_that_may_not_be_read_ends_with_77_and_its_file_and_line() {
    use std::os::unix::fs::PermissionsExt as _;
    let (directory, path) = file("wg0.conf", b"[Interface]\nListenPort = 1\nPrivateKeyFile = own.key\n");
    let key = directory.path().join("own.key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o000)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [
        &["check", path][..],
        &["strip", path],
        &["setconf", "wg0", path],
        &["addconf", "wg0", path],
        &["syncconf", "wg0", path],
    ] {
        let Some(ended) = run_as_nobody(&directory, arguments) else { return };
        assert_eq!((ended.code, ended.stdout.as_str()), (77, ""), "{arguments:?}: {}", ended.stderr);
        let told =
            ["wg0.conf:3: PrivateKeyFile: ", "own.key: cannot read the key: permission denied", "as root"];
        assert!(told.iter().all(|part| ended.stderr.contains(part)), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_may_not_be_read_ends_with_77() {
    use std::os::unix::fs::PermissionsExt as _;
    let (directory, path) = file("wg0.conf", format!("[Interface]\nPrivateKey={KEY}\n").as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let Some(ended) = run_as_nobody(&directory, &["check", path.to_str().unwrap()]) else { return };
    assert_eq!(ended.code, 77, "{}", ended.stderr);
    assert!(ended.stderr.contains("wg0.conf") && ended.stderr.contains("as root"), "{}", ended.stderr);
}

#[test]
#[cfg(target_os = "linux")]
fn a_start_that_is_not_permitted_says_that_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    // There is something to warn of.
    let (directory, path) = file("weft7.conf", format!("[Interface]\nPrivateKey={KEY}\n").as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let Some(ended) = run_as_nobody(&directory, &["up", path.to_str().unwrap()]) else { return };
    assert_eq!((ended.code, ended.stderr.lines().count()), (77, 1), "{}", ended.stderr);
    let error = "error: not allowed to create interface weft7";
    assert!(ended.stderr.starts_with(error), "{}", ended.stderr);

    let planned = run_as_nobody(&directory, &["up", "--dry-run", path.to_str().unwrap()]).unwrap();
    assert!(planned.code == 77 && planned.stdout.starts_with("create device weft7\n"), "{}", planned.stdout);
    let last = planned.stderr.lines().next_back();
    assert!(last.is_some_and(|last| last.starts_with(error)), "{}", planned.stderr);
    assert!(planned.stderr.contains("mode 0644"), "{}", planned.stderr);
}

#[test]
fn a_file_with_a_name_that_no_interface_can_have_needs_another_for_up_alone() {
    for (name, reason) in [
        ("all", "all and default cannot be names of interfaces; rename the file"),
        ("default", "all and default cannot be names of interfaces; rename the file"),
        ("lo", "lo cannot be the name of a tunnel, it is the loopback interface; rename the file"),
        ("sixteen-letters0", "1 to 15 of the characters"),
    ] {
        let text = format!("[Interface]\nPrivateKey = {KEY}\n");
        let (_directory, path) = file(&format!("{name}.conf"), text.as_bytes());
        let path = path.to_str().unwrap();
        let ended = run(&["up", path], "");
        assert_ne!(ended.code, 0, "{name}");
        assert!(ended.stderr.contains(reason) && ended.stderr.contains("--name"), "{name}: {}", ended.stderr);
        let ended = run(&["up", path, "--name", "wg7", "--dry-run"], "");
        assert!(ended.stdout.contains("wg7"), "{name}: {}", ended.stderr);
        let ended = run(&["check", path], "");
        assert!(ended.stdout.contains(OWN) && ended.stderr.contains("--name"), "{name}: {}", ended.stderr);
    }
}

/// Ended even if a test fails while it waits.
#[cfg(target_os = "linux")]
struct Waiting(Child);

#[cfg(target_os = "linux")]
impl Drop for Waiting {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_fifo_that_no_program_writes_to_holds_no_command_up_and_a_shells_pipe_is_read() {
    let text = format!("[Interface]\nPrivateKey = {KEY}\n");
    let (directory, path) = file("wg0.conf", text.as_bytes());
    let path = path.to_str().unwrap();
    let fifo = directory.path().join("fifo.conf");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fifo = fifo.to_str().unwrap();
    let commands = [
        &["check", fifo][..],
        &["doctor", fifo],
        &["strip", fifo],
        &["up", fifo],
        &["reload", fifo],
        &["exec", fifo, "--", "true"],
        &["setconf", "wg0", fifo],
        &["addconf", "wg0", fifo],
        &["syncconf", "wg0", fifo],
        &["set", "wg0", "private-key", fifo],
        &["set", "wg0", "peer", PEER, "preshared-key", fifo],
        &["proxy", path, "--socks5", "1080", "--password-file", fifo],
    ];
    let start = |arguments: &&[&str]| {
        let mut command = weft(arguments);
        Waiting(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let started: Vec<_> = commands.iter().map(start).collect();
    for (arguments, mut waiting) in commands.iter().zip(started) {
        let what = format!("{arguments:?} to end");
        let status = weft_lab::wait_until(&what, || waiting.0.try_wait().unwrap());
        let mut told = String::new();
        std::io::Read::read_to_string(&mut waiting.0.stderr.take().unwrap(), &mut told).unwrap();
        assert!(!status.success(), "{arguments:?}");
        assert!(told.contains(&format!("{fifo}: ")), "{arguments:?}: {told}");
        assert!(told.contains("it is a FIFO, and no program writes to it"), "{arguments:?}: {told}");
    }
    let script =
        r#""$0" strip <(cat "$1") && "$0" strip /dev/stdin < "$1" && cat "$1" | "$0" strip /dev/stdin"#;
    let program = env!("CARGO_BIN_EXE_weft");
    let ended: Ended = Command::new("bash").args(["-c", script, program, path]).output().unwrap().into();
    assert_eq!(ended.stdout, format!("{text}\n").repeat(3), "{}", ended.stderr);
}

#[test]
fn standard_input_is_stripped_as_a_file_is() {
    let stripped = run(&["strip", "-"], &format!("[Interface]\nPrivateKey = {KEY}\nMTU = 1400\n"));
    assert_eq!((stripped.code, stripped.stdout), (0, format!("[Interface]\nPrivateKey = {KEY}\n\n")));
}
