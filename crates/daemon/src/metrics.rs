//! The HTTP server of the running interface ([`weft_metrics`]).

use std::sync::Arc;

use weft_config::metrics::{Address, HostName};
use weft_ipc::holder::Held;
use weft_ipc::runtime_dir::runtime_dir;
pub use weft_metrics::{ListenError, Listener, Server};

use crate::control::socket::Manage;

#[cfg(not(target_os = "linux"))]
pub(crate) use crate::unsupported::inherited_metrics as inherited;

/// Listens at the address, if there is one. A predecessor that is ending is waited for.
pub(crate) fn open(address: Option<&Address>) -> Result<Option<Listener>, ListenError> {
    let Some(address) = address else { return Ok(None) };
    weft_host::wait_for_release(
        &runtime_dir(),
        match address {
            Address::Tcp(address) => Held::Tcp(*address),
            Address::Unix(path) => Held::Socket(path),
        },
    );
    Listener::open(address).map(Some)
}

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
