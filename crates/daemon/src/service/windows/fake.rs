//! A service control manager that keeps its state in files of a directory, writes down the calls that change
//! something, and fails at the numbers in the files `fail` (at once) and `fail-late` (when they are done).

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use super::{
    ALREADY_RUNNING, NEVER_STARTED, NOT_ACTIVE, Phase, ServiceControl, Settings, Start, command_line,
};

pub(in crate::service) struct Fake {
    pub(in crate::service) directory: PathBuf,
}

impl Fake {
    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(name)).ok()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.directory.join(name));
    }

    fn change(&self, call: &str, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut calls = fs::File::options().append(true).create(true).open(self.directory.join("calls"))?;
        writeln!(calls, "{call}")?;
        let number = self.read("calls").unwrap_or_default().lines().count().to_string();
        let is_now = |name: &str| self.read(name).is_some_and(|at| at.trim() == number);
        if is_now("interrupt") {
            self.write("interrupted", "");
        }
        if is_now("fail") {
            return Err(io::Error::other("refused"));
        }
        change()?;
        if is_now("fail-late") { Err(io::Error::other("refused")) } else { Ok(()) }
    }

    fn set(&self, command: &str, start: Start) -> io::Result<()> {
        self.write("service", &format!("{}\n{command}", start.word()));
        Ok(())
    }
}

impl ServiceControl for Fake {
    fn settings(&self) -> io::Result<Option<Settings>> {
        let Some(text) = self.read("service") else { return Ok(None) };
        let (start, command) = text.split_once('\n').unwrap();
        Ok(Some(Settings { command: command.to_owned(), start: Start::of(start).unwrap() }))
    }

    fn create(&self, command: &[String]) -> io::Result<()> {
        assert!(self.read("service").is_none(), "a service is made once");
        self.change("create", || self.set(&command_line::of(command), Start::Demand))
    }

    fn change(&self, command: &[String], start: Start) -> io::Result<()> {
        assert!(self.read("service").is_some());
        self.change(&format!("change {}", start.word()), || self.set(&command_line::of(command), start))
    }

    fn refine(&self) -> Vec<(&'static str, io::Error)> {
        vec![("a SID of the service", io::Error::other("unknown here"))]
    }

    fn delete(&self) -> io::Result<()> {
        assert!(self.read("pid").is_none(), "a service that runs stays until it ends");
        self.change("delete", || {
            self.remove("service");
            self.remove("status");
            Ok(())
        })
    }

    /// The words in `phases` come first, one for each question. Until then it takes no calls.
    fn phase(&self) -> io::Result<Phase> {
        let phases = self.read("phases").unwrap_or_default();
        if let Some((first, rest)) = phases.split_once('\n') {
            self.write("phases", rest);
            return Ok(if first == "starting" { Phase::Starting } else { Phase::Ending });
        }
        let number = |name: &str| self.read(name).map(|number| number.trim().parse().unwrap());
        Ok(match number("pid") {
            Some(pid) => Phase::Running(pid),
            None => Phase::Stopped(number("status").unwrap_or(NEVER_STARTED)),
        })
    }

    /// A service that has `refusal` says so, and ends with status 78.
    fn start(&self) -> io::Result<()> {
        self.change("start", || {
            if self.read("phases").unwrap_or_default().contains("ending") {
                return Err(io::Error::from_raw_os_error(ALREADY_RUNNING));
            }
            let command = self.settings()?.ok_or(io::ErrorKind::NotFound)?.command;
            if self.read("pid").is_some() {
                return Err(io::Error::from_raw_os_error(ALREADY_RUNNING));
            }
            if let Some(refusal) = self.read("refusal") {
                let log = self.read("log/utun7.log").unwrap_or_default();
                self.write("log/utun7.log", &(log + &refusal));
                self.write("status", "78");
            } else {
                assert!(command.contains("up"));
                self.write("pid", "4711");
            }
            Ok(())
        })
    }

    fn stop(&self) -> io::Result<()> {
        self.change("stop", || {
            if self.read("phases").is_some_and(|phases| !phases.is_empty()) {
                return Err(io::Error::other("it takes no controls now"));
            }
            if self.read("pid").is_none() {
                return Err(io::Error::from_raw_os_error(NOT_ACTIVE));
            }
            self.remove("pid");
            self.write("status", "0");
            Ok(())
        })
    }
}
