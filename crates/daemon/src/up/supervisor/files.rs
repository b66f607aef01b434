//! Makes the files again by which the interface is found, when another program has removed them: programs
//! that clean directories for temporary files do so.

use std::time::Instant;

use weft_host::Host;
use weft_report::finding::{Finding, Level};

use super::{PAUSE_AFTER_FAILURE, Supervisor};

impl Supervisor {
    /// Makes the record, the lock and the control socket again, if that is due. Returns when to try again.
    pub(super) fn look_after_files(&mut self) -> Option<Instant> {
        if self.files_due.is_none_or(|due| due > Instant::now()) {
            return self.files_due;
        }
        let interface = &self.config.interface.name;
        let mut failure = None;
        match self.daemon.host_mut().map_or(Ok(false), Host::keep_record) {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(%interface, "another program had removed the record of this interface, which was written again");
            }
            Err(error) => failure = Some(error.to_string()),
        }
        if !self.managed.keep_served(&mut self.socket) {
            failure = failure.or_else(|| Some("its control socket was removed".to_owned()));
        }
        self.files_due = failure.is_some().then(|| Instant::now() + PAUSE_AFTER_FAILURE);
        let finding = failure.map(|failure| {
            let says =
                format!("commands such as `weft down {interface}` may not find this interface: {failure}");
            Finding::new("not_found", Level::Warning, says).advise(format!(
                "weft tries it again each minute; `kill {}` takes the interface down",
                std::process::id()
            ))
        });
        self.not_found.tell(finding.into_iter().collect(), &self.managed);
        self.files_due
    }
}
