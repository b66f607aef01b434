//! Tests with programs in the place of launchctl, service and sysrc, and with another service control
//! manager, which keep a state and write down their calls.

use std::collections::BTreeMap;
use std::process::Command;

use super::super::error::MARKER;
use super::super::launchd::Launchd;
use super::super::rc_d::RcD;
use super::super::windows::Windows;
use super::super::windows::fake::Fake;
use super::*;

#[path = "lifecycle_tests/failures.rs"]
mod failures;

/// What every program does first: it writes down a call that changes something. The call whose number is in
/// `fail` fails at once, and that in `fail-late` when it is done. The user interrupts that in `interrupt`.
const PRELUDE: &str = r#"
program=${0##*/}
changing() {
    echo "$program $*" >>calls
    number=$(($(wc -l <calls)))
    if [ "$number" = "$(cat interrupt 2>/dev/null)" ]; then : >interrupted; fi
    if [ "$number" = "$(cat fail 2>/dev/null)" ]; then echo refused >&2; exit 6; fi
    if [ "$number" = "$(cat fail-late 2>/dev/null)" ]; then trap 'echo refused >&2; exit 6' EXIT; fi
}
"#;

const LAUNCHCTL: &str = r#"
case $1 in
print)
    if [ -s ending ]; then rm ending; elif [ -f ending ]; then rm ending loaded; fi
    [ -f loaded ] || { echo "Could not find service" >&2; exit 113; }
    printf 'system/weft.utun7 = {\n\tpath = %s\n' "$(cat loaded)"
    [ -f pid ] && printf '\tpid = %s\n' "$(cat pid)"
    printf '\tlast exit code = 78: EX_CONFIG\n\tspawn = {\n\t\tpid = 1\n\t}\n}\n' ;;
bootstrap)
    changing "$@"
    if [ -s busy ]; then sed -i 1d busy; echo "Bootstrap failed: 5" >&2; exit 5; fi
    if [ -f loaded ] || [ ! -f "$3" ]; then echo "Bootstrap failed: 5" >&2; exit 5; fi
    echo "$3" >loaded; echo 4711 >pid ;;
kickstart)
    changing "$@"
    echo 4712 >pid ;;
bootout)
    changing "$@"
    rm -f pid; : >ending ;;
esac
"#;

const SERVICE: &str = r#"
changing "$@"
case $2 in
start)
    [ -x "files/$1" ] || exit 9
    [ "$(cat rc.conf 2>/dev/null)" = "$1_enable=YES" ] || exit 8
    echo 4711 >pid ;;
onestop) rm pid ;;
esac
"#;

const SYSRC: &str = r#"
case $1 in
-n) sed 's/.*=//' rc.conf 2>/dev/null; exit 0 ;;
-x) changing "$@"; rm rc.conf ;;
*) changing "$@"; echo "$1" >rc.conf ;;
esac
"#;

/// Files that only the tests need, and the last status of a service, which nothing takes back.
const TOOLS: [&str; 6] = ["calls", "fail", "fail-late", "interrupt", "interrupted", "status"];

struct Machine {
    directory: tempfile::TempDir,
    manager: Box<dyn Manager>,
    interface: InterfaceName,
}

impl Daemons for Machine {
    fn running(&self, _: &InterfaceName) -> Result<Option<u32>, exit::Error> {
        let pid = fs::read_to_string(self.directory.path().join("pid")).ok();
        Ok(pid.map(|pid| pid.trim().parse().unwrap()))
    }

    fn take_down(&self, _: &InterfaceName) -> Result<(), exit::Error> {
        let _ = fs::remove_file(self.directory.path().join("left"));
        Ok(())
    }
}

fn machine(make: fn(&Path, &InterfaceName) -> Box<dyn Manager>) -> Machine {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["bin", "files"] {
        fs::create_dir(at(name)).unwrap();
    }
    for (name, script) in [("launchctl", LAUNCHCTL), ("service", SERVICE), ("sysrc", SYSRC)] {
        let script = format!("#!/bin/sh\ncd '{}' || exit 9\n{PRELUDE}{script}", directory.path().display());
        fs::write(at("script"), script).unwrap();
        // Another process writes the program: no child of this one holds it open when it is run.
        let mut install = Command::new("install");
        install.args(["-m", "755"]).arg(at("script")).arg(at("bin").join(name));
        assert!(install.status().unwrap().success());
    }
    fs::remove_file(at("script")).unwrap();
    let interface: InterfaceName = "utun7".parse().unwrap();
    let manager = make(directory.path(), &interface);
    Machine { directory, manager, interface }
}

fn launchd() -> Machine {
    machine(|directory, interface| {
        let [files, logs] = ["files", "log"].map(|name| directory.join(name));
        Box::new(Launchd::new(directory.join("bin/launchctl"), &files, &logs, interface).unwrap())
    })
}

fn rc_d() -> Machine {
    machine(|directory, interface| {
        let [programs, files, logs] = ["bin", "files", "log"].map(|name| directory.join(name));
        Box::new(RcD::new(&programs, &files, &logs, interface))
    })
}

fn windows() -> Machine {
    machine(|directory, interface| {
        let fake = Fake { directory: directory.to_owned() };
        let interrupted = directory.join("interrupted");
        Box::new(Windows::new(|_, _| fake, &directory.join("log"), interface, move || interrupted.exists()))
    })
}

const ALL: [fn() -> Machine; 3] = [launchd, rc_d, windows];
/// The managers that read a definition from a file.
const FILES: [fn() -> Machine; 2] = [launchd, rc_d];

impl Machine {
    fn install(&self, configuration: &str) -> Result<Installed, ServiceError> {
        self.asked(|service| service.install(Path::new("/usr/local/bin/weft.exe"), Path::new(configuration)))
    }

    fn remove(&self) -> Result<bool, ServiceError> {
        self.asked(|service| service.remove())
    }

    fn report(&self) -> Result<Report, ServiceError> {
        self.asked(|service| service.report())
    }

    fn asked<T>(&self, what: impl FnOnce(&Service<'_>) -> T) -> T {
        let interrupted = || self.directory.path().join("interrupted").exists();
        let Self { manager, interface, .. } = self;
        what(&Service { manager: &**manager, daemons: self, interface, interrupted: &interrupted })
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    /// The calls since the last question.
    fn calls(&self) -> Vec<String> {
        let path = self.directory.path().join("calls");
        let calls = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        let directory = self.directory.path().to_str().unwrap();
        calls.lines().map(|line| line.replace(directory, "")).collect()
    }

    /// What of the definition is in force.
    fn definition(&self) -> String {
        self.manager.read().unwrap().unwrap_or_default()
    }

    /// Everything that is on the machine, but for what only the tests need.
    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut tree = BTreeMap::new();
        let mut directories = vec![self.directory.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    tree.insert(path.clone(), String::new());
                    directories.push(path);
                } else if !TOOLS.iter().any(|name| path.ends_with(name)) {
                    tree.insert(path.clone(), fs::read_to_string(path).unwrap());
                }
            }
        }
        tree
    }
}

#[test]
fn a_service_is_installed_started_and_removed_by_these_calls() {
    let machine = launchd();
    assert_eq!(machine.install("/etc/wireguard/utun7.conf").unwrap(), Installed::Started);
    assert_eq!(machine.calls(), ["launchctl bootstrap system /files/weft.utun7.plist"]);
    assert!(machine.remove().unwrap());
    assert_eq!(machine.calls(), ["launchctl bootout system/weft.utun7"]);
    let machine = rc_d();
    assert_eq!(machine.install("/etc/wireguard/utun7.conf").unwrap(), Installed::Started);
    assert_eq!(machine.calls(), ["sysrc weft_utun7_enable=YES", "service weft_utun7 start"]);
    assert!(machine.remove().unwrap());
    assert_eq!(machine.calls(), ["service weft_utun7 onestop", "sysrc -x weft_utun7_enable"]);
    let machine = windows();
    assert_eq!(machine.install("/etc/wireguard/utun7.conf").unwrap(), Installed::Started);
    assert_eq!(machine.calls(), ["create", "change auto", "start"]);
    assert!(machine.remove().unwrap());
    assert_eq!(machine.calls(), ["stop", "change demand", "delete"]);
}

#[test]
fn the_same_again_changes_nothing_and_another_file_restarts_the_service() {
    for make in ALL {
        let machine = make();
        machine.install("/a/utun7.conf").unwrap();
        let (tree, _) = (machine.tree(), machine.calls());
        assert_eq!(machine.install("/a/utun7.conf").unwrap(), Installed::Unchanged);
        assert_eq!((machine.tree(), machine.calls().len()), (tree, 0));
        assert_eq!(machine.install("/b/utun7.conf").unwrap(), Installed::Replaced);
        let calls = machine.calls();
        assert!(calls.len() >= 2 && calls[0].contains("out") | calls[0].contains("stop"), "{calls:?}");
        assert!(machine.definition().contains("/b/utun7.conf"));
        assert!(machine.report().unwrap().running);
    }
}

#[test]
fn a_service_that_ended_is_started_by_another_installation() {
    for make in ALL {
        let machine = make();
        machine.install("/a/utun7.conf").unwrap();
        fs::remove_file(machine.directory.path().join("pid")).unwrap();
        machine.calls();
        assert_eq!(machine.install("/a/utun7.conf").unwrap(), Installed::Started);
        let calls = machine.calls();
        let starts = ["launchctl kickstart system/weft.utun7", "service weft_utun7 start", "start"];
        assert!(starts.contains(&&*calls[0]), "{calls:?}");
        assert!(machine.report().unwrap().running);
    }
}

#[test]
fn a_file_of_someone_else_is_left_alone() {
    for make in FILES {
        let machine = make();
        let file = machine.manager.file();
        let foreign = |machine: &Machine| {
            let tree = machine.tree();
            let results = [machine.install("/a/utun7.conf").err(), machine.remove().err()];
            for error in results {
                assert!(matches!(error, Some(ServiceError::Foreign { .. })), "{error:?}");
            }
            assert_eq!((machine.tree(), machine.calls().len()), (tree, 0));
        };
        fs::write(file, "#!/bin/sh\n# my own\n").unwrap();
        foreign(&machine);
        fs::remove_file(file).unwrap();
        // A link was made by someone else, also one to a file of weft.
        machine.write("elsewhere", MARKER);
        std::os::unix::fs::symlink(machine.directory.path().join("elsewhere"), file).unwrap();
        let error = machine.install("/a/utun7.conf").unwrap_err();
        assert!(matches!(error, ServiceError::Foreign { .. }), "{error}");
        assert!(file.is_symlink());
    }
    // A service of the name that was loaded from another file.
    let machine = launchd();
    machine.write("loaded", "/Users/me/utun7.plist");
    assert!(matches!(machine.remove(), Err(ServiceError::Foreign { .. })));
    assert_eq!(machine.calls().len(), 0);
}

#[test]
fn an_interface_that_runs_without_a_service_stays_as_it_is() {
    for make in ALL {
        let machine = make();
        machine.write("pid", "99");
        let tree = machine.tree();
        let error = machine.install("/a/utun7.conf").unwrap_err().to_string();
        assert!(error.contains("process 99") && error.contains("weft down utun7"), "{error}");
        assert!(!machine.remove().unwrap(), "it is no service");
        assert_eq!((machine.tree(), machine.calls().len()), (tree, 0));
    }
}

#[test]
fn removing_leaves_the_tree_as_it_was_also_after_a_crash() {
    for make in ALL {
        let machine = make();
        let before = machine.tree();
        machine.install("/a/utun7.conf").unwrap();
        assert!(machine.remove().unwrap());
        assert_eq!(machine.tree(), before);
        assert!(!machine.remove().unwrap(), "nothing is left to remove");
        machine.install("/a/utun7.conf").unwrap();
        fs::remove_file(machine.directory.path().join("pid")).unwrap();
        machine.write("left", "routes of a daemon that crashed");
        assert!(machine.remove().unwrap());
        assert_eq!(machine.tree(), before);
    }
}

#[test]
fn the_status_tells_what_is_there_and_what_runs() {
    for make in ALL {
        let machine = make();
        let report = machine.report().unwrap();
        assert!(!report.installed && !report.running && !report.enabled);
        assert!(report.outcome().unwrap_err().to_string().ends_with("is not installed"));
        machine.install("/a/utun7.conf").unwrap();
        let report = machine.report().unwrap();
        assert!(report.installed && report.running && report.enabled);
        assert_eq!((report.pid, report.file.as_path()), (Some(4711), machine.manager.file()));
        assert!(report.text().contains("installed, running, process 4711"), "{}", report.text());
        report.outcome().unwrap();
        fs::remove_file(machine.directory.path().join("pid")).unwrap();
        let report = machine.report().unwrap();
        assert!(report.outcome().unwrap_err().to_string().ends_with("is not running"));
    }
    let machine = launchd();
    machine.install("/a/utun7.conf").unwrap();
    assert_eq!(machine.report().unwrap().last_exit_status, Some(78));
    let machine = rc_d();
    machine.install("/a/utun7.conf").unwrap();
    machine.write("rc.conf", "weft_utun7_enable=NO");
    let report = machine.report().unwrap();
    assert!(!report.enabled && report.text().contains("not started with the machine"));
}

#[test]
fn launchd_may_refuse_to_load_a_service_soon_after_its_end() {
    let machine = launchd();
    machine.write("busy", "1\n");
    let error = machine.install("/a/utun7.conf").unwrap_err().to_string();
    assert!(error.contains("Bootstrap failed"), "a first installation does not wait: {error}");
    machine.install("/a/utun7.conf").unwrap();
    machine.write("busy", "1\n2\n");
    assert_eq!(machine.install("/b/utun7.conf").unwrap(), Installed::Replaced);
}
