//! The end of a running interface: it is taken down, or left to the next process.

use std::path::Path;

use weft_host::{Host, Keep};

use super::Supervisor;
use crate::service_manager;
use crate::up::UpError;
use crate::up::daemon::Daemon;
use crate::up::leaving::{Leaving, Writer};

/// Why an interface ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// SIGTERM, perhaps followed by a restart.
    Terminated,
    /// A user or a program asked for the end.
    Asked,
    /// Packets have stopped.
    Failed,
}

impl Supervisor {
    pub(super) fn end(self, end: End, file: &Path) -> Result<(), UpError> {
        service_manager::stopping();
        // Dropped last of all: the next daemon then finds nothing in its way.
        let _claim = self.daemon.host().and_then(Host::note_end);
        let Self {
            mut daemon,
            config,
            watch,
            names,
            uapi,
            socket,
            leaving,
            watchdog,
            metrics,
            speed_tests,
            ..
        } = self;
        drop((watchdog, watch, names, uapi, metrics, speed_tests));
        if let Some(mut writer) = leaving.and_then(Leaving::finish) {
            if end == End::Terminated
                && let Some(invocation) = invocation_to_leave_for(&daemon, &mut writer)
            {
                if config.interface.host.save_config {
                    daemon.save(&config, file);
                }
                match daemon.hand_over(&invocation) {
                    Ok(()) => {
                        daemon.leave()?;
                        tracing::info!(interface = %config.interface.name, "left as it is, to be started again");
                        drop(socket);
                        return Ok(());
                    }
                    Err(error) => tracing::warn!("the interface cannot be left to the next daemon: {error}"),
                }
            }
            // After a failure the service is started again, and uses what is in the store.
            if end != End::Failed {
                writer.withdraw();
            }
        }
        tracing::info!(interface = %config.interface.name, "taking the interface down");
        // This end was not requested: the kill switch stays, so that no packet leaves past the tunnel because
        // of it.
        let keep = if end == End::Failed { Keep::KillSwitch } else { Keep::Nothing };
        daemon.stop_after(keep, |daemon| {
            if config.interface.host.save_config {
                daemon.save(&config, file);
            }
        })?;
        tracing::info!(interface = %config.interface.name, "interface is down");
        // Behind everything else: a client that waits for the end of its connection then knows that everything is undone.
        drop(socket);
        Ok(())
    }
}

/// Returns the invocation ID of this run of the service, if the service is being restarted and the interface
/// can be left to the next run.
fn invocation_to_leave_for(daemon: &Daemon, writer: &mut Writer) -> Option<String> {
    let invocation = service_manager::invocation()?;
    daemon.host().filter(|host| host.can_be_handed_over())?;
    match writer.leave() {
        Ok(is_restart) => is_restart.then_some(invocation),
        Err(error) => {
            tracing::warn!("a restart would interrupt the interface: {error}");
            None
        }
    }
}
