//! No half-alive daemon: a thread that panics ends the process.

/// Held by a thread for as long as it runs; ends the process when it is dropped by a panic. The panic's own
/// message has been printed by then.
#[derive(Debug)]
pub struct EndProcessOnPanic;

impl Drop for EndProcessOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("unnamed");
            tracing::error!(thread = name, "a thread panicked; weft ends, since it would be half alive");
            std::process::exit(1);
        }
    }
}
