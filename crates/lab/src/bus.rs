//! A private D-Bus daemon, and services on it.

use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

mod service;

pub use service::Service;

/// A private dbus-daemon(1) with a policy that allows everything to every client. It ends when this is
/// dropped.
#[derive(Debug)]
pub struct Bus(Child);

impl Bus {
    /// Starts the daemon at this address (`unix:path=…`) with its configuration in `directory`, and waits
    /// until it listens. The daemon may activate the services described in `directory/services`.
    ///
    /// # Errors
    /// dbus-daemon is not installed, or does not start.
    pub fn start(directory: &Path, address: &str) -> io::Result<Self> {
        let (config, services) = (directory.join("bus.conf"), directory.join("services"));
        std::fs::create_dir_all(&services)?;
        let text = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\"\n\
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\n\
             <busconfig><type>session</type><listen>{address}</listen><auth>EXTERNAL</auth>\n\
             <servicedir>{}</servicedir>\n\
             <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/>\n\
             <allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>\n",
            services.display()
        );
        std::fs::write(&config, text)?;
        let daemon = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--print-address=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("dbus-daemon: {error}")))?;
        let mut bus = Self(daemon);
        // The daemon prints its address once it listens.
        let mut line = String::new();
        if let Some(output) = bus.0.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.starts_with("unix:path=") {
            Ok(bus)
        } else {
            Err(io::Error::other(format!("dbus-daemon does not listen: {line:?}")))
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
