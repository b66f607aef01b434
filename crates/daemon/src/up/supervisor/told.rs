//! Findings that last: told in the log when they begin and end, and kept among those of `weft status` and the
//! metrics meanwhile.

use weft_report::finding::{Finding, Level};

use crate::control::Managed;

/// The findings of one look, as last told.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<Finding>);

impl Told {
    /// Replaces them by those of the next look.
    pub(super) fn tell(&mut self, found: Vec<Finding>, managed: &Managed) {
        if found == self.0 {
            return;
        }
        for new in found.iter().filter(|new| !self.0.contains(new)) {
            let advice = new.advice.as_deref().unwrap_or_default();
            match new.level {
                Level::Ok | Level::Note => tracing::info!("{}; {advice}", new.says),
                Level::Warning => tracing::warn!("{}; {advice}", new.says),
                Level::Problem => tracing::error!("{}; {advice}", new.says),
            }
        }
        for gone in self.0.iter().filter(|gone| !found.contains(gone)) {
            tracing::info!("no longer: {}", gone.says);
        }
        let mut running = managed.running();
        running.findings.retain(|finding| !self.0.contains(finding));
        running.findings.extend(found.iter().cloned());
        drop(running);
        self.0 = found;
    }
}
