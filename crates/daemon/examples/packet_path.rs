//! The packet path of an interface alone: its device, sockets and threads. Other programs set addresses, routes and
//! the MTU. It is for Windows, where weft does not set up routes and addresses yet: `scripts/test-wine` runs it.
//!
//! `packet_path NAME MTU FILE`: the file has a request of WireGuard's UAPI (`set=1`, keys and peers, an empty line). The
//! interface ends when the standard input ends, and its counters are written then.

use std::fmt::Display;
use std::io::Read as _;
use std::process::ExitCode;
use std::sync::Arc;

use weft::interface::{Inherited, Interface, Options};
use weft_config::device::DeviceChange;
use weft_uapi::{Control as _, Request, RequestParser, Step};
use weft_udp::UdpConfig;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, mtu, file] = &arguments[..] else { return Err("usage: packet_path NAME MTU FILE".into()) };
    let mtu = mtu.parse().map_err(text)?;
    let change = change_in(&std::fs::read(file).map_err(text)?)?;
    let (udp, options) = (UdpConfig::default(), Options::default());
    let mut interface =
        Interface::open(name, Inherited::default(), udp, &options, None, || ()).map_err(text)?;
    interface.run(mtu).map_err(text)?;
    let controller = Arc::clone(interface.controller());
    controller.set(change).map_err(text)?;
    eprintln!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let snapshot = controller.snapshot().map_err(text)?;
    interface.stop().map_err(text)?;
    println!("{:#?}\n{:#?}", snapshot.tun, snapshot.udp);
    for (reason, packets) in snapshot.drops.iter().filter(|(_, packets)| *packets > 0) {
        println!("dropped: {reason:?} {packets}");
    }
    Ok(())
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Returns the change that a request asks for.
fn change_in(request: &[u8]) -> Result<DeviceChange, String> {
    let mut parser = RequestParser::new(|_| None);
    for line in request.split(|byte| *byte == b'\n') {
        match parser.line(line.strip_suffix(b"\r").unwrap_or(line)) {
            Step::More => {}
            Step::Complete(Request::Set(change)) => return Ok(change),
            Step::Rejected(problem) => return Err(text(problem)),
            Step::Complete(Request::Get) | Step::Foreign => break,
        }
    }
    Err("the file has no complete request that begins with set=1".into())
}
