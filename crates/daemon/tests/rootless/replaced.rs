//! The host replaces its files while a command runs: names stay in the tunnel, and other files are the
//! host's.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use weft_lab::mounts;

use crate::names;
use crate::support::World;

const OF_HOST: &str = "nameserver 192.0.2.2\n";
const NSSWITCH_OF_HOST: &str = "passwd: files\nhosts: resolve\n";

/// Covers /etc by a copy of it that a test may change, and /run by an empty directory.
fn prepare() -> io::Result<()> {
    mounts::empty("/mnt")?;
    let copied = Command::new("cp").args(["-a", "/etc", "/mnt/etc"]).output()?;
    assert!(copied.status.success(), "{copied:?}");
    mounts::empty("/run")?;
    fs::create_dir_all("/run/nscd")?;
    names::mount_file("/mnt/etc", "/etc")
}

fn replace(path: &str, text: &str) {
    let new = format!("{path}.of-test");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// A shell in the tunnel, which runs one line after the other.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(world: &World) -> Self {
        let mut command = world.exec(&world.file("DNS = 10.77.0.1"), &[], &["sh"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// Returns what a line writes.
    fn run(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}\necho; echo end").unwrap();
        let mut said = String::new();
        while !said.ends_with("\nend\n") {
            assert!(
                self.output.read_line(&mut said).unwrap() > 0,
                "{line}: the shell has ended after {said}"
            );
        }
        said.trim_end_matches("end\n").trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.input);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn names_stay_in_the_tunnel_while_the_host_replaces_its_files_again_and_again() {
    let Some(world) = World::new() else { return };
    names::serve(&world, "10.77.0.1");
    let stub = "/run/systemd/resolve/stub-resolv.conf";
    let file = |path: &str| {
        fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
        fs::write(path, OF_HOST).unwrap();
    };
    let work = || {
        for what in ["a file", "a link into a hidden directory", "a link to nothing", "missing"] {
            let _ = fs::remove_file("/etc/resolv.conf");
            match what {
                "a file" => file("/etc/resolv.conf"),
                "a link into a hidden directory" => {
                    file(stub);
                    symlink("../run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf").unwrap();
                }
                "a link to nothing" => symlink("/run/nothing", "/etc/resolv.conf").unwrap(),
                _ => fs::remove_file("/etc/nsswitch.conf").unwrap(),
            }
            let mut shell = Shell::start(&world);
            let look_up = "grep ^nameserver /etc/resolv.conf; grep ^hosts /etc/nsswitch.conf; \
                           getent ahostsv4 intranet.example | head -n 1";
            let expected = "nameserver 10.77.0.1\nhosts: files dns\n203.0.113.77    STREAM intranet.example";
            assert_eq!(shell.run(look_up), expected, "{what}");
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        replace("/etc/resolv.conf", OF_HOST);
                        replace("/etc/nsswitch.conf", NSSWITCH_OF_HOST);
                        let _ = fs::remove_file("/etc/resolv.conf");
                        let _ = symlink("/run/nothing", "/etc/resolv.conf");
                    }
                });
                let said: Vec<String> = (0..30).map(|_| shell.run(look_up)).collect();
                is_over.store(true, Ordering::Relaxed);
                assert!(said.iter().all(|said| said == expected), "{what}: {said:?}");
            });
            shell.end();
        }
    };
    mounts::run_separate(prepare, work);
}

#[test]
fn a_command_sees_the_other_files_of_the_host_as_they_are_now() {
    let Some(world) = World::new() else { return };
    let work = || {
        fs::write("/etc/replaced", "old").unwrap();
        fs::write("/etc/removed", "old").unwrap();
        fs::create_dir_all("/etc/directory/certs").unwrap();
        fs::write("/etc/directory/certs/a", "old").unwrap();
        fs::create_dir("/etc/moved").unwrap();
        symlink("../proc/self/comm", "/etc/link").unwrap();
        symlink("../../proc/self/comm", "/etc/directory/link").unwrap();
        let mut shell = Shell::start(&world);
        for (line, expected) in [
            ("cat /etc/replaced /etc/directory/certs/a", "oldold"),
            ("cat /etc/link /etc/directory/link", "cat\ncat"),
            ("ls -d /etc/removed /etc/moved", "/etc/moved\n/etc/removed"),
            ("find /etc -name certs 2> /dev/null | grep directory", "/etc/directory/certs"),
            ("cd /etc/directory && pwd -P; cd /", "/etc/directory"),
        ] {
            assert_eq!(shell.run(line), expected, "{line}");
        }
        replace("/etc/replaced", "new");
        replace("/etc/directory/certs/a", "new");
        fs::remove_file("/etc/removed").unwrap();
        for (line, expected) in
            [("cat /etc/replaced /etc/directory/certs/a", "newnew"), ("cat /etc/removed 2>&1 | wc -l", "1")]
        {
            assert_eq!(shell.run(line), expected, "{line}");
        }
        // What is new is followed.
        fs::write("/etc/new", "new").unwrap();
        fs::create_dir("/etc/new.d").unwrap();
        fs::write("/etc/new.d/file", "new").unwrap();
        fs::rename("/etc/moved", "/etc/moved.d").unwrap();
        fs::remove_file("/etc/link").unwrap();
        symlink("new", "/etc/link").unwrap();
        for test in [
            "-e /etc/new.d/file",
            "-e /etc/new",
            "-d /etc/moved.d -a ! -e /etc/moved",
            "! -h /etc/removed",
            "$(readlink /etc/link) = new",
        ] {
            assert_eq!(shell.run(&until(test)), "seen", "{test}");
        }
        shell.end();
    };
    mounts::run_separate(prepare, work);
}

/// A line that waits for what follows a change of the host.
fn until(test: &str) -> String {
    format!(
        "i=0; until [ {test} ]; do i=$((i+1)); [ $i -lt 500 ] || break; sleep 0.02; done; [ {test} ] && echo seen"
    )
}

#[test]
fn a_service_that_starts_again_stays_hidden() {
    let Some(world) = World::new() else { return };
    let work = || {
        let mut shell = Shell::start(&world);
        assert_eq!(shell.run("ls -A /run/nscd"), "");
        // As the service manager does: the directory goes with the service.
        fs::remove_dir("/run/nscd").unwrap();
        for directory in ["/run/nscd", "/run/systemd/resolve", "/run/avahi-daemon"] {
            fs::create_dir_all(directory).unwrap();
            fs::write(Path::new(directory).join("socket"), "").unwrap();
            let test = format!("-d {directory} -a ! -e {directory}/socket");
            assert_eq!(shell.run(&until(&test)), "seen", "{directory}");
        }
        shell.end();
    };
    mounts::run_separate(prepare, work);
}
