//! The end of a running interface: it is taken down, or left to the next process.

use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use weft_host::{Host, Keep};

use super::{Message, Supervisor};
use crate::service_manager;
use crate::up::UpError;
use crate::up::daemon::Daemon;
use crate::up::leaving::{Leaving, Writer};

/// The time that PreDown and PostDown of a service have: the service manager kills what has not ended in 90 s
/// (TimeoutStopSec of weft@.service).
const COMMANDS_OF_A_SERVICE: Duration = Duration::from_secs(75);

/// Why an interface ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// SIGTERM, perhaps followed by a restart.
    Terminated,
    /// Another signal, or the removal of the UAPI socket.
    Signalled,
    /// A client of the control socket asked for the end, and is told what became of it.
    Asked,
    /// Packets have stopped.
    Failed,
}

impl Supervisor {
    pub(super) fn end(self, end: End, messages: Receiver<Message>, file: &Path) -> Result<(), UpError> {
        service_manager::stopping();
        if service_manager::is_present() {
            weft_host::limit_commands_of_the_end(COMMANDS_OF_A_SERVICE);
        }
        // Dropped last of all: the next daemon then finds nothing in its way.
        let _claim = self.daemon.host().and_then(Host::note_end);
        if let Some(on_ending) = self.on_ending {
            on_ending();
        }
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
            text,
            ..
        } = self;
        // All of this works while PreDown runs. The messages go first: from then on senders fail at once
        // instead of waiting for room.
        let mut around = Some((messages, watchdog, watch, names, uapi, metrics, speed_tests));
        let interface = &config.interface.name;
        let save = |daemon: &Daemon| {
            config
                .interface
                .host
                .save_config
                .then(|| daemon.save(&config, file, text.as_ref().map(|text| text.as_str())))
                .flatten()
        };
        if let Some(mut writer) = leaving.and_then(Leaving::finish) {
            if end == End::Terminated
                && let Some(invocation) = invocation_to_leave_for(&daemon, &mut writer)
            {
                drop(around.take());
                // The peers are in the store: they are not lost with a file that cannot be written.
                let _logged = save(&daemon);
                // What was changed since the state was written is written too.
                let written = writer.leave().map(drop);
                match written.and_then(|()| daemon.hand_over(&invocation).map_err(|error| error.to_string()))
                {
                    Ok(()) => {
                        daemon.leave()?;
                        tracing::info!(%interface, "left as it is, to be started again");
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
        tracing::info!(%interface, "taking the interface down");
        // This end was not requested: the kill switch stays, so that no packet leaves past the tunnel because
        // of it.
        let keep = if end == End::Failed { Keep::KillSwitch } else { Keep::Nothing };
        let failures = daemon.stop_after(keep, |daemon| {
            let failure = save(daemon);
            drop(around.take());
            failure
        })?;
        tracing::info!(%interface, "interface is down");
        let incomplete = UpError::Incomplete { interface: interface.clone(), failures: failures.len() };
        let is_told = failures.is_empty() || end == End::Asked;
        // Behind everything else: a client that waits for the end of its connection then knows that all is
        // undone.
        if let Some(socket) = socket {
            socket.end(failures);
        }
        if is_told { Ok(()) } else { Err(incomplete) }
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
