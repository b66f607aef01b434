//! What the records of other interfaces say.

use std::collections::BTreeSet;
use std::path::Path;

use weft_config::InterfaceName;

use super::{Record, Step, record_path};
use crate::routes::Rule;

impl Record {
    /// Returns the marks of the other interfaces that have a record in this directory.
    pub(crate) fn marks_of_others(directory: &Path, interface: &InterfaceName) -> BTreeSet<u32> {
        Self::of_others(directory, interface).map(|record| record.mark).filter(|mark| *mark != 0).collect()
    }

    /// Returns the policy routing rules that are on record in this directory for other interfaces, which have
    /// added them or are about to.
    pub(crate) fn rules_of_others(directory: &Path, interface: &InterfaceName) -> Vec<Rule> {
        let rules_of = |record: Self| record.steps.into_iter().filter_map(|step| step.as_rule().copied());
        Self::of_others(directory, interface).flat_map(rules_of).collect()
    }

    /// Returns the value that a sysctl had before other interfaces set it, if one that has a record in this
    /// directory has. The last of them to end restores it, whichever that is.
    pub(crate) fn sysctl_before_others(
        directory: &Path,
        interface: &InterfaceName,
        name: &str,
    ) -> Option<String> {
        let before = |step| match step {
            Step::Sysctl { name: other, before, .. } if other == name => Some(before),
            _ => None,
        };
        Self::of_others(directory, interface).find_map(|record| record.steps.into_iter().find_map(before))
    }

    /// Returns the records of other interfaces, one at a time: each may be large. A file that is not a valid
    /// record is skipped, so that it cannot prevent this interface from starting.
    pub(crate) fn of_others(directory: &Path, interface: &InterfaceName) -> impl Iterator<Item = Self> {
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        entries.filter_map(move |entry| {
            let name = entry.ok()?.file_name().to_str()?.parse().ok().filter(|name| name != interface)?;
            let looked = Self::read_file(&record_path(directory, &name), &name);
            let (record, _) = looked.inspect_err(|error| tracing::debug!("{error}")).ok()??;
            // Another network namespace has other rules.
            Some(record).filter(|record| !record.is_elsewhere())
        })
    }
}
