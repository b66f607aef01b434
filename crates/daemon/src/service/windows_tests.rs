//! What differs on Windows from the tests that all systems share (`lifecycle_tests.rs`).

use super::fake::Fake;
use super::*;

struct Machine {
    directory: tempfile::TempDir,
    windows: Windows<Fake>,
}

fn machine() -> Machine {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("log")).unwrap();
    let fake = Fake { directory: directory.path().to_owned() };
    let interrupted = directory.path().join("interrupted");
    let interface = "utun7".parse().unwrap();
    let windows =
        Windows::new(|_, _| fake, &directory.path().join("log"), &interface, move || interrupted.exists());
    Machine { directory, windows }
}

impl Machine {
    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    /// Makes the service, without starting it.
    fn made(self) -> Self {
        self.windows.write(&self.windows.text(r"C:\weft\weft.exe", r"C:\a b\utun7.conf")).unwrap();
        self
    }
}

#[test]
fn the_command_line_is_that_of_a_service_that_runs_up() {
    use clap::Parser as _;
    let text = machine().windows.text(r"C:\Program Files\weft\weft.exe", r"C:\a b\utun7.conf");
    assert_eq!(text, r#""C:\Program Files\weft\weft.exe" "--service" "utun7" "up" "C:\a b\utun7.conf""#);
    let cli = crate::cli::Cli::try_parse_from(command_line::words(&text)).unwrap();
    let crate::cli::Command::Up(up) = cli.command else { panic!("not up") };
    assert_eq!((cli.service.as_deref(), up.target.as_str()), (Some("utun7"), r"C:\a b\utun7.conf"));
}

#[test]
fn a_service_is_wefts_by_its_program_and_its_interface() {
    let machine = machine();
    for (command, is_own) in [
        (r#""C:\weft.exe" --service utun7 up C:\utun7.conf"#, true),
        (r"D:\new\WEFT.EXE --service utun7 run -f utun7", true),
        (r#""C:\other.exe" --service utun7 up C:\utun7.conf"#, false),
        (r"C:\weft.exe\other.exe --service utun7 up", false),
        (r"C:\weft.exe --service wg0 up C:\wg0.conf", false),
        (r"C:\weft.exe up C:\utun7.conf", false),
        ("", false),
    ] {
        machine.write("service", &format!("demand\n{command}"));
        let read = machine.windows.read();
        assert_eq!(read.is_ok(), is_own, "{command}");
        if let Err(error) = read {
            assert!(error.to_string().contains("sc.exe delete weft$utun7"), "{error}");
        }
    }
}

#[test]
fn another_definition_leaves_what_starts_the_service() {
    let machine = machine().made();
    machine.windows.set(Some("disabled")).unwrap();
    machine.windows.write(&machine.windows.text(r"D:\weft.exe", r"C:\utun7.conf")).unwrap();
    let expected = "disabled\n\"D:\\weft.exe\" \"--service\" \"utun7\" \"up\" \"C:\\utun7.conf\"";
    assert_eq!(machine.read("service"), expected);
    assert_eq!(machine.windows.setting().unwrap().as_deref(), Some("disabled"));
    assert!(!machine.windows.is_enabled(Some("disabled")) && machine.windows.is_enabled(Some("auto")));
}

#[test]
fn a_start_waits_until_the_interface_is_up() {
    let machine = machine().made();
    assert_eq!(machine.windows.state(None).unwrap(), State::default(), "it has not run yet");
    machine.write("phases", "ending\nending\n");
    machine.windows.start().unwrap();
    assert_eq!(machine.read("phases"), "", "one that ends is not started");
    machine.write("phases", "starting\n");
    machine.windows.start().unwrap();
    assert_eq!(machine.read("phases"), "", "one that runs is waited for");
}

#[test]
fn a_start_that_fails_says_what_the_service_has_logged_since() {
    let machine = machine().made();
    machine.write("log/utun7.log", "error: an earlier one\n");
    machine
        .write("refusal", "INFO weft: begins\nerror: the first\nerror: the adapter is another program's\n");
    let error = machine.windows.start().unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("weft$utun7 ended with status 78: the adapter is another program's; see "),
        "{text}"
    );
    assert!(text.ends_with("utun7.log"), "{text}");
    assert_eq!(weft_config::exit::Error::from(error).code(), weft_config::exit::Code::Configuration);
    // A log that has started again is shorter than before.
    assert!(machine.windows.said(1000).starts_with("the adapter"));
    assert_eq!(machine.windows.state(None).unwrap().last_exit_status, Some(78));
    machine.write("refusal", "nothing that names an error\n");
    let text = machine.windows.start().unwrap_err().to_string();
    assert!(text.starts_with("weft$utun7 ended with status 78: see "), "{text}");
}

#[test]
fn an_interrupted_start_is_given_up_and_the_way_back_is_not() {
    let machine = machine().made();
    machine.write("interrupt", "2");
    machine.write("phases", "starting\nstarting\n");
    // The first question is whether it is ending.
    assert!(matches!(machine.windows.start(), Err(ServiceError::Interrupted)));
    machine.write("phases", "starting\nstarting\nstarting\n");
    machine.windows.start().unwrap();
    assert_eq!(machine.read("phases"), "");
}

#[test]
fn a_service_that_starts_is_stopped_when_it_runs() {
    let machine = machine().made();
    machine.windows.start().unwrap();
    machine.write("phases", "starting\nstarting\n");
    machine.windows.stop().unwrap();
    assert_eq!(machine.read("status"), "0");
    assert!(!machine.windows.state(None).unwrap().is_loaded);
    machine.windows.stop().unwrap();
    assert_eq!(machine.read("calls").lines().filter(|call| *call == "stop").count(), 1);
}

#[test]
fn what_the_system_refuses_says_what_to_do() {
    let failed = |code| {
        let error = machine().windows.failed("make")(io::Error::from_raw_os_error(code));
        (error.to_string(), weft_config::exit::Error::from(error).code())
    };
    let (text, code) = failed(5);
    assert!(
        text.starts_with("cannot make the service weft$utun7: ") && text.contains("administrator"),
        "{text}"
    );
    assert_eq!(code, weft_config::exit::Code::Permission);
    let (text, code) = failed(1072);
    assert!(text.contains("close the windows"), "{text}");
    assert_eq!(code, weft_config::exit::Code::Failure);
}
