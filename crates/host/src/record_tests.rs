use std::collections::BTreeSet;
use weft_config::HookPhase;

use super::*;

fn name() -> InterfaceName {
    "wg0".parse().unwrap()
}

#[test]
fn an_interface_has_one_owner_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(Owner::running(directory.path(), &name()).unwrap(), None);
    let owner = Owner::claim(directory.path(), &name()).unwrap();
    assert_eq!(Owner::running(directory.path(), &name()).unwrap(), Some(Process::this()));
    let error = Owner::claim(directory.path(), &name()).unwrap_err();
    assert!(matches!(error, HostError::Running { pid, .. } if pid == std::process::id()), "{error}");
    drop(owner);
    assert_eq!(Owner::running(directory.path(), &name()).unwrap(), None);
    drop(Owner::claim(directory.path(), &name()).unwrap());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_claim_waits_for_a_process_that_takes_the_interface_down() {
    let directory = tempfile::tempdir().unwrap();
    let owner = Owner::claim(directory.path(), &name()).unwrap();
    owner.note_end();
    assert_eq!(Owner::running(directory.path(), &name()).unwrap(), Some(Process::this()));
    let (done, claimed) = std::sync::mpsc::channel();
    let place = directory.path().to_owned();
    std::thread::spawn(move || done.send(Owner::claim(&place, &name()).map(drop)));
    let early = claimed.recv_timeout(2 * NOTICE);
    assert!(early.is_err(), "it does not wait: {early:?}");
    drop(owner);
    claimed.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
}

#[test]
fn a_process_that_was_seen_to_end_is_waited_for_also_before_its_note() {
    let mut wait = WaitForHolder::default();
    for is_ending in [true, false] {
        wait.on(Holder { process: Process::this(), is_ending }, &name(), Path::new("lock")).unwrap();
        assert_eq!(wait.running, None, "a start that is refused counts from here");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn another_program_that_holds_the_lock_is_named_and_is_no_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let path = lock_path(&directory.path().canonicalize().unwrap(), &name());
    made(directory.path(), &name());
    // What a daemon leaves that was killed, and what has no signature.
    for signature in ["4194305 7\n", ""] {
        std::fs::write(&path, signature).unwrap();
        let lock = File::open(&path).unwrap();
        lock.lock().unwrap();
        // One that has it open holds no lock.
        let _open = File::open(&path).unwrap();
        // A name that would begin another line.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "printf 'a\\nb' >/proc/$$/comm; echo; read _"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(lock)
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(Owner::running(directory.path(), &name()).unwrap(), None);
        let error = Owner::claim_within(directory.path(), &name(), Duration::ZERO).unwrap_err().to_string();
        let told = format!("another process (process {}, a\\nb) holds {}, ", child.id(), path.display());
        assert!(error.starts_with(&told), "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_process_that_does_not_come_to_its_end_is_named_with_what_it_holds() {
    let lock = lock_path(Path::new("/run/weft"), &name());
    let since = Instant::now().checked_sub(PATIENCE_WITH_ENDING).unwrap();
    let mut wait = WaitForHolder { running: None, ending: Some((Process::this(), since)) };
    let holder = Holder { process: Process::this(), is_ending: true };
    let error = wait.on(holder, &name(), &lock).unwrap_err().to_string();
    let holds = format!("weft (process {}) holds {}", std::process::id(), lock.display());
    assert!(
        error.starts_with("interface wg0 is still being taken down") && error.contains(&holds),
        "{error}"
    );
}

/// Elsewhere no process can remove a file that another one has locked.
#[cfg(unix)]
#[test]
fn what_another_process_has_made_in_its_place_stays() {
    let directory = tempfile::tempdir().unwrap();
    let first = Owner::claim(directory.path(), &name()).unwrap();
    first.write(&Record::new(&name())).unwrap();
    std::fs::remove_dir_all(runtime_dir::instance(directory.path(), &name())).unwrap();
    let second = Owner::claim(directory.path(), &name()).unwrap();
    let record = Record { mark: 7, ..Record::new(&name()) };
    second.write(&record).unwrap();
    assert!(first.write(&Record::new(&name())).is_err());
    first.forget().unwrap();
    drop(first);
    assert_eq!(second.left_behind().unwrap(), Some(record));
    assert_eq!(Owner::running(directory.path(), &name()).unwrap(), Some(Process::this()));
}

#[test]
fn a_record_comes_back_as_it_was_written_and_only_its_owner_may_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let owner = Owner::claim(directory.path(), &name()).unwrap();
    assert_eq!(owner.left_behind().unwrap(), None);
    let mut record = Record::new(&name());
    record.mark = 51_820;
    record.steps = vec![
        Step::Address("10.0.0.1/24".parse().unwrap()),
        Step::Route { prefix: "::/0".parse().unwrap(), table: 51_820 },
    ];
    owner.write(&record).unwrap();
    assert_eq!(owner.left_behind().unwrap(), Some(record));
    let path = record_path(directory.path(), &name());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(Record::marks_of_others(directory.path(), &"wg1".parse().unwrap()), BTreeSet::from([51_820]));
    assert_eq!(Record::marks_of_others(directory.path(), &name()), BTreeSet::new());
    owner.forget().unwrap();
    owner.forget().unwrap();
    assert_eq!(owner.left_behind().unwrap(), None);

    std::fs::write(&path, "{\"version\":99}").unwrap();
    let error = owner.left_behind().unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains("remove it"), "{error}");
}

#[test]
fn nothing_that_only_root_may_do_is_done_because_another_users_record_says_so() {
    let hook = |phase| Hook { phase, command: "true".into(), file: "wg0.conf".into(), line: 1 };
    let sysctl = |name: &str, before: &str| Step::Sysctl {
        name: name.into(),
        value: "1".into(),
        before: before.into(),
    };
    let address = Step::Address("10.0.0.1/24".parse().unwrap());
    let mut record = Record::new(&name());
    record.down = vec![hook(HookPhase::PostDown)];
    record.file = Some("/etc/cron.d/job".into());
    record.steps = vec![
        address.clone(),
        sysctl("//.//.etc.passwd", "root::0:0:::"),
        sysctl(SRC_VALID_MARK, "root::0:0:::"),
        sysctl(SRC_VALID_MARK, "0"),
        Step::Hook(hook(HookPhase::PostUp)),
    ];
    let believed = record.of_another_user();
    assert_eq!((believed.down, believed.file), (vec![], None));
    assert_eq!(believed.steps, [address, sysctl(SRC_VALID_MARK, "0")]);
}

/// Creates the directory of an interface, as if the interface had run.
fn made(directory: &Path, interface: &InterfaceName) -> PathBuf {
    let instance = runtime_dir::instance(directory, interface);
    runtime_dir::make(&instance).unwrap();
    instance
}

/// Returns the result of a call that might block forever.
#[cfg(unix)]
fn within_patience<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    ended.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[cfg(unix)]
#[test]
fn what_another_user_puts_in_place_of_a_lock_or_a_record_holds_nothing_up() {
    let directory = tempfile::tempdir().unwrap();
    let instance = made(directory.path(), &name());
    for file in ["lock", "record.json"] {
        nix::unistd::mkfifo(&instance.join(file), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let place = directory.path().to_owned();
    let claimed = within_patience(move || Owner::claim(&place, &name()));
    assert!(claimed.unwrap_err().to_string().contains("wg0/lock is a FIFO"));
    let place = directory.path().to_owned();
    let running = within_patience(move || Owner::running(&place, &name()));
    assert!(running.unwrap_err().to_string().contains("wg0/lock is a FIFO"));
    let place = directory.path().to_owned();
    let read = within_patience(move || Record::read(&place, &name()));
    assert!(read.unwrap_err().to_string().contains("wg0/record.json is a FIFO"));
    // It does not affect another interface either.
    let place = directory.path().to_owned();
    let other = || "wg1".parse().unwrap();
    let marks = within_patience(move || Record::marks_of_others(&place, &other()));
    assert_eq!(marks, BTreeSet::new());
    Owner::claim(directory.path(), &other()).unwrap();
}

#[test]
fn a_record_that_is_larger_than_any_is_refused_unread() {
    let directory = tempfile::tempdir().unwrap();
    let instance = made(directory.path(), &name());
    File::create(instance.join("record.json")).unwrap().set_len(6 << 40).unwrap();
    let error = Record::read(directory.path(), &name()).unwrap_err();
    assert!(matches!(error, HostError::Untrusted(UntrustedError::Size { .. })), "{error}");
    assert_eq!(Record::marks_of_others(directory.path(), &"wg1".parse().unwrap()), BTreeSet::new());
}

#[test]
fn the_record_of_another_interface_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let owner = Owner::claim(directory.path(), &name()).unwrap();
    owner.write(&Record { mark: 7, ..Record::new(&name()) }).unwrap();
    let other: InterfaceName = "wg1".parse().unwrap();
    let renamed = record_path(directory.path(), &other);
    made(directory.path(), &other);
    std::fs::rename(record_path(directory.path(), &name()), &renamed).unwrap();
    let error = Record::read(directory.path(), &other).unwrap_err().to_string();
    let told = format!("cannot understand {}: it is the record of wg0; ", renamed.display());
    assert!(error.starts_with(&told) && error.contains("remove it"), "{error}");
    assert_eq!(Record::marks_of_others(directory.path(), &name()), BTreeSet::new());
}

#[cfg(unix)]
#[test]
fn a_lock_that_another_user_left_is_replaced() {
    use std::os::unix::fs::{MetadataExt as _, chown};
    let directory = tempfile::tempdir().unwrap();
    let instance = made(directory.path(), &name());
    let path = lock_path(directory.path(), &name());
    std::fs::write(&path, "1 1\n").unwrap();
    // The service's user has the interface until root runs it.
    if chown(&path, Some(65_534), None).and_then(|()| chown(&instance, Some(65_534), None)).is_err() {
        #[cfg(target_os = "linux")]
        weft_lab::here::not_run("needs root");
        return;
    }
    let _owner = Owner::claim(directory.path(), &name()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), 0);
    assert_eq!(Owner::running(directory.path(), &name()).unwrap(), Some(Process::this()));
}

#[cfg(unix)]
#[test]
fn a_link_in_place_of_a_record_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let owner = Owner::claim(elsewhere.path(), &name()).unwrap();
    owner.write(&Record::new(&name())).unwrap();
    let record = record_path(elsewhere.path(), &name());
    made(directory.path(), &name());
    std::os::unix::fs::symlink(record, record_path(directory.path(), &name())).unwrap();
    let error = Record::read(directory.path(), &name()).unwrap_err();
    assert!(matches!(error, HostError::Untrusted(UntrustedError::Kind { .. })), "{error}");
}

#[cfg(unix)]
#[test]
fn a_link_in_place_of_a_lock_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let precious = directory.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    made(directory.path(), &name());
    std::os::unix::fs::symlink(&precious, lock_path(directory.path(), &name())).unwrap();
    let error = Owner::claim(directory.path(), &name()).unwrap_err();
    assert!(matches!(error, HostError::Untrusted(UntrustedError::Kind { .. })), "{error}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
}

/// A daemon of one network namespace crashes, another one starts in another namespace that has the directory
/// in common, and both are undone from where they ran.
#[cfg(target_os = "linux")]
#[test]
fn what_a_crash_left_in_another_network_namespace_is_kept_for_that() {
    use weft_lab::{Namespace, here};

    use crate::{Keep, clean_up};

    if !here::namespaces_permitted() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let [first, second, third] = ["first", "second", "third"].map(|name| Namespace::new(name).unwrap());
    // A namespace is there as long as a process is in it.
    let mut processes =
        [&first, &second, &third].map(|namespace| namespace.command("sleep").arg("600").spawn().unwrap());
    let crash = |mark| {
        let owner = Owner::claim(at, &name()).unwrap();
        assert_eq!(owner.left_behind().unwrap(), None);
        owner.write(&Record { mark, ..Record::new(&name()) }).unwrap();
        owner
    };
    let mark = || Record::read(at, &name()).unwrap().map(|record| record.mark);
    // Also one that is not understood.
    let path = made(at, &name()).join("record.json");
    let ours = crate::netns::NetworkNamespace::ours;
    let unread = first.run(|| serde_json::json!({ "version": 99, "network": ours() })).to_string();
    std::fs::write(&path, &unread).unwrap();
    second.run(|| {
        assert!(!Record::exists(at, &name()).unwrap() && Record::is_of_another_namespace(at, &name()));
        clean_up(at, &name(), Keep::Nothing).unwrap();
        Owner::claim(at, &name()).unwrap().left_behind().unwrap();
    });
    first.run(|| clean_up(at, &name(), Keep::Nothing).unwrap_err());
    assert_eq!(std::fs::read_to_string(path.with_extension("json.unread")).unwrap(), unread);
    first.run(|| drop(crash(1)));
    second.run(|| {
        assert_eq!(mark(), None, "it is not this namespace's");
        assert_eq!(Record::marks_of_others(at, &"wg1".parse().unwrap()), BTreeSet::new());
        let running = crash(2);
        assert_eq!(mark(), Some(2));
        first.run(|| {
            let error = Owner::claim(at, &name()).unwrap_err();
            assert!(
                matches!(error, HostError::Elsewhere { pid, .. } if pid == std::process::id()),
                "{error}"
            );
            assert_eq!(mark(), Some(1));
            clean_up(at, &name(), Keep::Nothing).unwrap();
            assert_eq!(mark(), None);
            clean_up(at, &name(), Keep::Nothing).unwrap_err();
        });
        third.run(|| {
            clean_up(at, &name(), Keep::Nothing).unwrap_err();
        });
        drop(running);
        assert_eq!(mark(), Some(2), "it is left");
    });
    // A record that was put aside is in its place again once its namespace has the name.
    third.run(|| drop(crash(3)));
    second.run(|| {
        let owner = Owner::claim(at, &name()).unwrap();
        assert_eq!(owner.left_behind().unwrap().map(|record| record.mark), Some(2));
        owner.forget().unwrap();
    });
    // With a namespace goes what was in it.
    third.run(|| {
        let owner = Owner::claim(at, &name()).unwrap();
        assert_eq!(owner.left_behind().unwrap().map(|record| record.mark), Some(3));
    });
    for process in &mut processes {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    drop(third);
    second.run(|| {
        let owner = Owner::claim(at, &name()).unwrap();
        assert_eq!(owner.left_behind().unwrap(), None);
    });
}

/// A service's user owns the directory of its interface, and may put a link there before root starts it.
#[cfg(target_os = "linux")]
#[test]
fn a_link_in_place_of_the_directory_of_a_network_namespace_is_not_followed() {
    use weft_lab::{Namespace, here};

    if !here::namespaces_permitted() {
        return;
    }
    let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = directory.path();
    let [first, second] = ["first", "second"].map(|name| Namespace::new(name).unwrap());
    let mut process = first.command("sleep").arg("600").spawn().unwrap();
    let id = first.run(|| {
        Owner::claim(at, &name()).unwrap().write(&Record::new(&name())).unwrap();
        crate::netns::NetworkNamespace::ours().unwrap().id()
    });
    let link = runtime_dir::instance(at, &name()).join(format!("netns-{id}"));
    std::os::unix::fs::symlink(outside.path(), &link).unwrap();
    second.run(|| {
        let owner = Owner::claim(at, &name()).unwrap();
        let error = owner.left_behind().unwrap_err().to_string();
        assert!(error.contains(&format!("netns-{id}")), "{error}");
    });
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "the record went along the link");
    process.kill().unwrap();
    process.wait().unwrap();
}

#[cfg(unix)]
#[test]
fn a_lock_that_another_process_keeps_is_waited_for_in_vain() {
    let directory = tempfile::tempdir().unwrap();
    let [theirs, ours] = [(); 2].map(|()| runtime_dir::lock(directory.path()).unwrap());
    theirs.lock().unwrap();
    assert!(matches!(lock_within(&ours, Duration::ZERO), Err(TryLockError::WouldBlock)));
    theirs.unlock().unwrap();
    lock_within(&ours, Duration::ZERO).unwrap();
}
