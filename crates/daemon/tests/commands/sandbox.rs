//! A /var/run of a test's own.

use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use weft_lab as lab;

/// Where daemons have their sockets.
pub(crate) const SOCKETS: &str = "/var/run/wireguard";

/// Runs `work` on a thread that has an empty /var/run, which its threads and children share; says so for `test` where
/// that is not possible.
pub(crate) fn run(test: &str, work: impl FnOnce() + Send) {
    let inside = || {
        if let Err(error) = enter() {
            return lab::not_run(test, &format!("a mount namespace: {error}"));
        }
        work();
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(test.chars().take(15).collect()).spawn_scoped(scope, inside);
        if let Err(panic) = thread.unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn enter() -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    mount(Some("weft-test"), "/var/run", Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))?;
    std::fs::create_dir(SOCKETS)
}
