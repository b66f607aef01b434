//! Failures and interruptions at each step.

use super::*;

#[test]
fn a_failure_at_any_call_leaves_everything_as_it_was() {
    for make in ALL {
        // Of a first installation, and of one in the place of another.
        for earlier in [None, Some("/a/utun7.conf")] {
            let prepared = || {
                let machine = make();
                if let Some(earlier) = earlier {
                    machine.install(earlier).unwrap();
                    machine.calls();
                }
                machine
            };
            let whole = prepared();
            whole.install("/b/utun7.conf").unwrap();
            let count = whole.calls().len();
            assert!(count > 0);
            for (number, late) in (1..=count).flat_map(|number| [(number, "fail"), (number, "fail-late")]) {
                let machine = prepared();
                let before = machine.tree();
                machine.write(late, &number.to_string());
                let error = machine.install("/b/utun7.conf").err();
                // A service that has ended is no failure, whatever launchctl said.
                let Some(error) = error.map(|error| error.to_string()) else {
                    assert_eq!(late, "fail-late");
                    continue;
                };
                assert!(error.contains("refused"), "{error}");
                assert_eq!(machine.tree(), before, "{late} {number}: {:?}", machine.calls());
            }
        }
    }
}

#[test]
fn an_interruption_at_any_call_leaves_everything_as_it_was() {
    for make in ALL {
        for earlier in [None, Some("/a/utun7.conf")] {
            let mut number = 0;
            loop {
                number += 1;
                let machine = make();
                if let Some(earlier) = earlier {
                    machine.install(earlier).unwrap();
                    machine.calls();
                }
                let before = machine.tree();
                machine.write("interrupt", &number.to_string());
                match machine.install("/b/utun7.conf") {
                    Err(error) => assert!(matches!(error, ServiceError::Interrupted), "{error}"),
                    Ok(_) => break,
                }
                assert_eq!(machine.tree(), before, "{number}");
                let calls = machine.calls();
                assert!(calls.len() <= 2 * number, "it went on: {calls:?}");
            }
            assert!(number > 1);
        }
    }
}

#[test]
fn ctrl_c_in_a_terminal_does_not_reach_the_programs() {
    let group = "cut -d' ' -f5 /proc/$$/stat; echo $$";
    let said = crate::service::program::run(Path::new("/bin/sh"), &["-c", group]).unwrap();
    let [group, process] = said.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(group, process);
}

#[test]
fn a_file_that_cannot_be_written_leaves_everything_as_it_was() {
    for make in FILES {
        let machine = make();
        fs::remove_dir(machine.directory.path().join("files")).unwrap();
        let before = machine.tree();
        let error = machine.install("/a/utun7.conf").unwrap_err().to_string();
        assert!(error.contains("cannot write"), "{error}");
        assert_eq!((machine.tree(), machine.calls().len()), (before, 0));
    }
}

#[test]
fn a_removal_that_failed_can_be_repeated() {
    for make in ALL {
        for number in 1..=2 {
            let machine = make();
            let before = machine.tree();
            machine.install("/a/utun7.conf").unwrap();
            machine.calls();
            machine.write("fail", &number.to_string());
            let first = machine.remove();
            machine.write("fail", "");
            if first.is_err() {
                assert!(machine.remove().unwrap());
            }
            assert_eq!(machine.tree(), before);
        }
    }
}

#[test]
fn an_earlier_setting_comes_back_after_a_failure() {
    let machine = rc_d();
    machine.write("rc.conf", "weft_utun7_enable=NO\n");
    let before = machine.tree();
    machine.write("fail", "2");
    machine.install("/a/utun7.conf").unwrap_err();
    assert_eq!(machine.tree(), before);
}

#[test]
fn paths_that_no_file_can_name_are_refused() {
    for make in ALL {
        let machine = make();
        let before = machine.tree();
        let error = machine.install("/a\n/utun7.conf").unwrap_err();
        assert!(matches!(error, ServiceError::Path { .. }), "{error}");
        assert_eq!(machine.tree(), before);
    }
}
