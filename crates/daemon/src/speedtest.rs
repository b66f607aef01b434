//! The responder of speed tests, which peers may use if the file allows it.

use std::fmt::Display;
use std::sync::Arc;

use weft_config::InterfaceName;
use weft_ipc::holder::{Held, Holder};
use weft_speedtest::{Listener, PORT, Responder, Status};

use crate::control::Managed;
use crate::control::socket::Manage as _;

/// Answers speed tests of peers. Dropping it ends the test that runs.
pub(crate) struct SpeedTests(#[expect(dead_code, reason = "held until it is dropped")] Responder);

impl SpeedTests {
    /// Answers on the addresses of this interface.
    ///
    /// # Errors
    /// The port cannot be opened; the message says why.
    pub(crate) fn answer(interface: &InterfaceName, managed: &Arc<Managed>) -> Result<Self, String> {
        let failed = |error: &dyn Display, advice: &str| {
            format!("{interface} refuses speed tests: cannot listen on TCP port {PORT}: {error}{advice}")
        };
        let listener = Listener::open(interface.as_str()).map_err(|error| {
            let advice = match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    let any = std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, PORT));
                    format!("{}; `ss -ltnp` shows the program that listens there", Holder::of(Held::Tcp(any)))
                }
                _ => String::new(),
            };
            failed(&error, &advice)
        })?;
        let managed = Arc::clone(managed);
        let status: Status = Arc::new(move || managed.status().ok());
        let responder = Responder::start(listener, status);
        let responder = responder.map_err(|error| failed(&error, ""))?;
        tracing::info!(%interface, port = PORT, "answering speed tests of peers");
        Ok(Self(responder))
    }
}
