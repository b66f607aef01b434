//! The HTTP server of the running interface ([`weft_metrics`]).

use std::sync::Arc;

use weft_config::metrics::HostName;
pub use weft_metrics::{ListenError, Listener, Server};

use crate::control::socket::Manage;

#[cfg(not(target_os = "linux"))]
pub(crate) use crate::unsupported::inherited_metrics as inherited;

/// Serves the reports of `manage`; `hosts` are names that requests may use.
pub(crate) fn serve(
    listener: Listener,
    hosts: &[HostName],
    manage: Arc<dyn Manage>,
) -> Result<Server, ListenError> {
    Server::start(listener, hosts, Arc::new(move || manage.status()))
}

/// Returns the socket that the service manager passed for metrics (systemd.socket(5), with
/// `FileDescriptorName=metrics`), if any. An unusable socket is logged.
#[cfg(target_os = "linux")]
pub(crate) fn inherited() -> Option<Listener> {
    const NAME: &str = "metrics";
    let inherited = crate::service_manager::take(|name| name == NAME).into_iter().next()?;
    let adopted = Listener::adopt(inherited.descriptor);
    adopted.inspect_err(|error| tracing::warn!("cannot serve metrics on the socket `{NAME}`: {error}")).ok()
}
