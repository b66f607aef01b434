//! A start waits for a predecessor that is ending, for as long as that may take, and for no other process.
//!
//! The predecessor holds the lock of the interface as long as it has anything else ([`Owner`]). What is left
//! without a lock is that of a process which was killed, of a daemon for another interface, and of another
//! program, such as wireguard-go.

use std::path::Path;
use std::time::{Duration, Instant};

use weft_config::InterfaceName;
use weft_ipc::holder::{Held, Holder};
use weft_ipc::runtime_dir;

use super::HostError;
use super::record::{NOTICE, Owner, PATIENCE_WITH_ENDING};

/// How long the kernel may take to close what a killed process had.
const PATIENCE_WITH_KERNEL: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(20);

/// Waits for a predecessor that takes the interface down.
///
/// # Errors
/// Those of [`Owner::claim`], except that the claim cannot be written down.
pub fn wait_for_predecessor(directory: &Path, interface: &InterfaceName) -> Result<(), HostError> {
    match Owner::claim(directory, interface) {
        Ok(owner) => {
            owner.note_end();
            Ok(())
        }
        Err(error) if error.is_held() => Err(error),
        Err(error) => {
            tracing::debug!("the interface cannot be claimed: {error}");
            Ok(())
        }
    }
}

/// Waits until no process that is ending has the name. Returns at once if nothing has it, and soon if a
/// process has it that is not about to end: then the name cannot be had.
pub fn wait_for_release(directory: &Path, held: Held<'_>) {
    let start = Instant::now();
    let mut is_told = false;
    loop {
        let holder = Holder::of(held);
        let patience = match &holder {
            Holder::Unknown => return,
            Holder::Process { id, .. } if Owner::is_ending(directory, *id) => PATIENCE_WITH_ENDING,
            Holder::Process { .. } => NOTICE,
            Holder::OutOfSight => PATIENCE_WITH_KERNEL,
        };
        if start.elapsed() >= patience {
            return;
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::debug!(?held, ?holder, "waiting until it is free");
        }
        std::thread::sleep(TICK);
    }
}

impl Owner {
    /// Reports whether a process is about to end: it takes down its interface, or its device was removed.
    fn is_ending(directory: &Path, process: u32) -> bool {
        let notes = |interface: InterfaceName| Self::is_marked(directory, &interface, process);
        super::platform::has_lost_its_device(process)
            || runtime_dir::interfaces(directory).unwrap_or_default().into_iter().any(notes)
    }
}
