//! The time from the start of `weft exec` to the first byte that its command received through the tunnel.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::implementation::{Implementation, Rootless, Side};
use crate::interrupt::Interrupt;
use crate::report::{Figure, Report, Sample, Wanted};
use crate::topology::Tunnel;

const CASE: &str = "first byte";
/// From the start of `weft exec` to the first byte that curl has through it, the handshake included.
const TOOK: Figure = Figure::new("milliseconds", "ms", 0);
/// The port of the server.
const PORT: u16 = 8080;
const ANSWER: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n.";

/// Starts `weft exec` with curl a few times, each with a new handshake.
pub(super) fn add(report: &mut Report, exec: &Rootless, rounds: u32, interrupt: &Interrupt) -> Result<()> {
    let side = Side::new("exec", Implementation::Rootless(exec.clone()));
    let mut tunnel = Tunnel::start(&side, None, interrupt)?;
    tunnel.end_near_daemon();
    let address = (tunnel.server, PORT);
    let listener = tunnel.far.run(|| TcpListener::bind(address)).context("cannot listen in the tunnel")?;
    // Ends with the process.
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let _ = client.read(&mut [0; 1024]).and_then(|_| client.write_all(ANSWER));
        }
    });
    let script = format!("exec curl -s http://{}:{}/", address.0, address.1);
    let directory = &tunnel.near_directory;
    Rootless::wait_for_end(&directory.join("run"), interrupt)?;
    for round in 0..rounds {
        let runtime = directory.join(round.to_string());
        let mut command = exec.command_of_exec(&tunnel.outside, directory, &runtime, &script);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let start = Instant::now();
        let mut child = tunnel.outside.start(command)?;
        let mut byte = [0];
        let read = child.stdout.take().context("no pipe")?.read(&mut byte)?;
        let millis = start.elapsed().as_secs_f64() * 1e3;
        ensure!(child.wait()?.success() && read == 1, "curl got nothing through weft exec");
        report.add(CASE, CASE, "exec", Sample::default().with(TOOK, millis));
        Rootless::wait_for_end(&runtime, interrupt)?;
    }
    report.require([CASE, "exec"], TOOK, Wanted::AtMost(150.0));
    Ok(())
}
