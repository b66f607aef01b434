//! Tells whether the process that applied settings still runs.

use std::fs;

use serde::{Deserialize, Serialize};

/// A process, distinguished from a later process with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    process: u32,
    /// The start time of the process, in clock ticks since boot.
    started: Option<u64>,
    /// The boot id of the machine.
    boot: Option<String>,
}

impl Owner {
    /// Returns this process.
    pub(super) fn ours() -> Self {
        let process = std::process::id();
        Self { process, started: started(process), boot: boot() }
    }

    pub(super) fn is_ours_or_ended(&self) -> bool {
        *self == Self::ours() || !self.is_alive()
    }

    pub(super) fn is_alive(&self) -> bool {
        let started = started(self.process);
        started.is_some() && started == self.started && boot() == self.boot
    }
}

fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Returns the start time of a process, if it still runs (proc_pid_stat(5), field 22).
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses, which may contain any character.
    let mut rest = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = rest.next()?;
    if matches!(state, "Z" | "X") { None } else { rest.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ended_or_was_replaced_is_not_alive() {
        let ours = Owner::ours();
        assert!(ours.is_alive());
        assert!(ours.started.unwrap() > 0);
        let earlier = Owner { started: ours.started.map(|started| started + 1), ..ours.clone() };
        assert!(!earlier.is_alive());
        assert!(!Owner { boot: Some("another".to_owned()), ..ours }.is_alive());

        let mut child = std::process::Command::new("true").spawn().unwrap();
        let theirs = Owner { process: child.id(), started: started(child.id()), boot: boot() };
        child.wait().unwrap();
        assert!(!theirs.is_alive());
    }
}
