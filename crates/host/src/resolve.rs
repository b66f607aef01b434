//! Resolves the host names of endpoints, with retries: a machine that starts has no name servers at first.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_config::Endpoint;
use weft_config::endpoint::missing_scope;

mod look_up;
mod names;
#[cfg(target_os = "linux")]
mod outside;
#[cfg(not(target_os = "linux"))]
#[path = "resolve/not_outside.rs"]
mod outside;
mod service;
mod tunnel;

pub use look_up::LookUp;
pub use names::{Name, Names, Watched};
pub use service::Resolver;
pub use tunnel::Tunnel;

/// The environment variable with the number of retries, or `infinity`.
pub const RETRIES_VARIABLE: &str = "WG_ENDPOINT_RESOLUTION_RETRIES";

/// The first pause between two tries; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// How many times a failed lookup is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retries {
    /// At most this many times.
    Limited(u32),
    /// Without limit.
    Infinite,
}

/// The number of retries of wg-quick.
const DEFAULT_RETRIES: u32 = 15;

impl Default for Retries {
    fn default() -> Self {
        Self::Limited(DEFAULT_RETRIES)
    }
}

impl Retries {
    /// Parses the value of [`RETRIES_VARIABLE`]. The error is a message with the expected values.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "infinity" {
            return Ok(Self::Infinite);
        }
        text.parse()
            .map(Self::Limited)
            .map_err(|_| format!("{RETRIES_VARIABLE}: write a number or `infinity`"))
    }

    /// Reads [`RETRIES_VARIABLE`]. An invalid value is ignored with a warning.
    pub fn from_environment() -> Self {
        let Ok(text) = std::env::var(RETRIES_VARIABLE) else { return Self::default() };
        Self::parse(&text).unwrap_or_else(|problem| {
            tracing::warn!("{problem}; trying {:?}", Self::default());
            Self::default()
        })
    }

    /// Returns the pause before the retry after `failures` failed tries: 1 s, 2 s, 4 s … 20 s. `None`: give
    /// up.
    pub fn pause_after(self, failures: u32) -> Option<Duration> {
        match self {
            Self::Limited(limit) if failures > limit => None,
            _ => {
                let doubled = 2u32.saturating_pow(failures.saturating_sub(1));
                Some(FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE))
            }
        }
    }
}

/// Ends what waits for names, from another thread. Clones share one flag.
#[derive(Clone, Default)]
pub struct Cancel {
    shared: Arc<(Mutex<Cancellation>, Condvar)>,
}

#[derive(Default)]
struct Cancellation {
    is_cancelled: bool,
    calls: Vec<Box<dyn FnOnce() + Send>>,
}

impl Cancel {
    /// Ends the pause under way, and all later pauses at once.
    pub fn cancel(&self) {
        let mut state = self.lock();
        state.is_cancelled = true;
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        self.shared.1.notify_all();
        calls.into_iter().for_each(|call| call());
    }

    /// Has [`Self::cancel`] call this, or calls it now if that was called.
    pub fn then(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        if !state.is_cancelled {
            return state.calls.push(Box::new(call));
        }
        drop(state);
        call();
    }

    /// Reports whether [`Self::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.lock().is_cancelled
    }

    /// Waits for `pause`, or until [`Self::cancel`] is called. Returns whether it was called.
    pub fn wait(&self, pause: Duration) -> bool {
        let waited = self.shared.1.wait_timeout_while(self.lock(), pause, |state| !state.is_cancelled);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_cancelled
    }

    fn lock(&self) -> MutexGuard<'_, Cancellation> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

/// Why an endpoint has no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name has no address, or the name servers cannot be reached.
    #[error("cannot resolve the endpoint {endpoint}: {error}; {}", advice(endpoint))]
    Failed {
        endpoint: Endpoint,
        /// The error of the last try.
        error: io::Error,
    },
    /// [`Cancel::cancel`] was called.
    #[error("resolving the endpoint {endpoint} was cancelled")]
    Cancelled { endpoint: Endpoint },
}

impl ResolveError {
    /// Reports whether the endpoint is on an interface that does not exist: no name server helps.
    pub fn lacks_interface(&self) -> bool {
        matches!(self, Self::Failed { endpoint: Endpoint::Name { host, .. }, .. } if missing_scope(host).is_some())
    }
}

fn advice(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Name { host, .. } if host.contains('%') => {
            "write the name of an interface of this machine behind the %, see `ip link`".to_owned()
        }
        _ => format!(
            "check the name and the name servers, or write an address ({RETRIES_VARIABLE} says how often to try)"
        ),
    }
}

/// Returns the address of an endpoint. Blocks while a name is looked up, and between the tries.
///
/// A lookup under way cannot be interrupted; run this on a separate thread where that matters.
pub fn resolve(
    endpoint: &Endpoint,
    retries: Retries,
    cancel: &Cancel,
    look_up: &LookUp,
) -> Result<SocketAddr, ResolveError> {
    resolve_with(endpoint, retries, |host, port| look_up.first(host, port), |pause| cancel.wait(pause))
}

fn resolve_with(
    endpoint: &Endpoint,
    retries: Retries,
    mut look_up: impl FnMut(&str, u16) -> io::Result<SocketAddr>,
    mut wait: impl FnMut(Duration) -> bool,
) -> Result<SocketAddr, ResolveError> {
    let (host, port) = match endpoint {
        Endpoint::Address(address) => return Ok(*address),
        Endpoint::Name { host, port } => (host, *port),
    };
    let mut failures = 0;
    loop {
        let error = match look_up(host, port) {
            Ok(address) => return Ok(address),
            Err(error) => error,
        };
        failures += 1;
        let Some(pause) = retries.pause_after(failures) else {
            return Err(ResolveError::Failed { endpoint: endpoint.clone(), error });
        };
        tracing::warn!(
            "cannot resolve the endpoint {endpoint}: {error}; trying again in {} s",
            pause.as_secs()
        );
        if wait(pause) {
            return Err(ResolveError::Cancelled { endpoint: endpoint.clone() });
        }
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Endpoint {
        Endpoint::Name { host: "vpn.example".to_owned(), port: 7 }
    }

    fn refused(_: &str, _: u16) -> io::Result<SocketAddr> {
        Err(io::Error::other("no such host"))
    }

    #[test]
    fn pauses_double_up_to_20_seconds_and_end_after_the_retries() {
        let pauses: Vec<_> = (1..=7).map(|n| Retries::default().pause_after(n).unwrap().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 20, 20]);
        assert!(Retries::default().pause_after(15).is_some());
        assert_eq!(Retries::default().pause_after(16), None);
        assert_eq!(Retries::Limited(0).pause_after(1), None);
        assert_eq!(Retries::Infinite.pause_after(u32::MAX), Some(LONGEST_PAUSE));
    }

    #[test]
    fn the_environments_value_is_a_number_or_infinity() {
        assert_eq!(Retries::parse("3"), Ok(Retries::Limited(3)));
        assert_eq!(Retries::parse("infinity"), Ok(Retries::Infinite));
        for wrong in ["", "-1", "many", "Infinity"] {
            assert!(Retries::parse(wrong).unwrap_err().contains(RETRIES_VARIABLE), "{wrong}");
        }
    }

    #[test]
    fn a_name_is_tried_until_it_resolves() {
        let mut answers = vec![Ok("192.0.2.1:7".parse().unwrap()), refused("", 0), refused("", 0)];
        let mut pauses = Vec::new();
        let found = resolve_with(
            &name(),
            Retries::default(),
            |_, _| answers.pop().unwrap(),
            |pause| {
                pauses.push(pause.as_secs());
                false
            },
        );
        assert_eq!(found.unwrap(), "192.0.2.1:7".parse().unwrap());
        assert_eq!(pauses, [1, 2]);
    }

    #[test]
    fn it_gives_up_after_the_retries_and_names_the_endpoint() {
        let mut waits = 0;
        let error = resolve_with(&name(), Retries::Limited(2), refused, |_| {
            waits += 1;
            false
        });
        assert_eq!(waits, 2);
        assert!(error.unwrap_err().to_string().contains("vpn.example:7: no such host"));
    }

    #[test]
    fn cancelling_ends_a_pause_at_once() {
        let cancel = Cancel::default();
        let other = cancel.clone();
        let waiter = std::thread::spawn(move || other.wait(Duration::from_secs(3600)));
        cancel.cancel();
        assert!(waiter.join().unwrap());
        assert!(cancel.wait(Duration::ZERO));
        let result = resolve_with(&name(), Retries::Infinite, refused, |pause| cancel.wait(pause));
        assert!(matches!(result, Err(ResolveError::Cancelled { .. })));
    }

    #[test]
    fn an_address_needs_no_lookup() {
        let endpoint = Endpoint::Address("192.0.2.1:7".parse().unwrap());
        let found = resolve(&endpoint, Retries::Limited(0), &Cancel::default(), &LookUp::by_system());
        assert_eq!(found.unwrap(), "192.0.2.1:7".parse().unwrap());
    }
}
