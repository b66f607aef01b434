//! The systemd journal, through its native protocol: fields stay fields, so that `journalctl INTERFACE=wg0
//! PEER=…` finds them.

use std::io;

use nix::sys::stat::fstat;
use tracing_journald::Layer;

/// Set by systemd for processes that write to the journal: device and inode of the stream (systemd.exec(5)).
const STREAM: &str = "JOURNAL_STREAM";

/// Returns a layer that logs into the journal. `None` if standard error is not the journal, or the journal
/// cannot be reached.
pub(super) fn connect(interface: Option<&str>) -> Option<Layer> {
    if !is_stderr(&std::env::var(STREAM).ok()?) {
        return None;
    }
    let layer = Layer::new().ok()?.with_field_prefix(None).with_syslog_identifier("weft".to_owned());
    Some(layer.with_custom_fields(interface.map(|name| ("INTERFACE", name))))
}

/// Reports whether standard error is the stream that the variable names: a process may inherit the variable
/// while its output goes elsewhere.
fn is_stderr(stream: &str) -> bool {
    fstat(io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stream_behind_standard_error_is_the_journal() {
        let stat = fstat(io::stderr()).unwrap();
        assert!(is_stderr(&format!("{}:{}", stat.st_dev, stat.st_ino)));
        for other in ["", "1", "1:2", &format!("{}:{}", stat.st_dev, stat.st_ino + 1)] {
            assert!(!is_stderr(other), "{other}");
        }
    }
}
