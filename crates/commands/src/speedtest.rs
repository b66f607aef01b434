//! `weft speedtest`: measures a tunnel together with a responder at the peer, and says what limits it.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use nix::net::if_::if_nametoindex;
use serde::Serialize;
use weft_config::exit::{Code, Error};
use weft_config::{InterfaceName, path_of};
use weft_ipc::OutputFile;
use weft_report::control_socket::{CaptureRequest, Client};
use weft_report::{PeerNameError, PeerReport, StatusReport, short_key};
use weft_speedtest::{
    Datagrams, Direction, Outcome, Outside, PORT, Plan, Probe, Sample, TcpEvents, TestError, Udp, Verdict,
    peer_of, verdicts,
};

use crate::args::{Directions, SpeedtestArgs};
use crate::capture::{Background, Counts};
use crate::own_file::interface_of;
use crate::signals::{self, Signal};
use crate::{output, running};

mod advice;
mod plot;
mod table;

/// Why no test began.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("no interface has a peer with the address {0}; `weft status` shows the peers")]
    NoSuchAddress(String),
    #[error(
        "{target} is an interface, and a test is with one of its peers: `weft speedtest {target} PEER`; `weft status \
         {target}` shows them"
    )]
    Interface { target: String },
    #[error("several interfaces have a peer {target}: say which ({interfaces})")]
    SeveralInterfaces { interfaces: String, target: String },
    #[error(
        "{interface} is in a network namespace of `weft exec` or `weft proxy`: run the test there, by `weft exec FILE \
         -- weft speedtest {interface} {target}`"
    )]
    Elsewhere { interface: String, target: String },
    #[error(transparent)]
    Peer(#[from] PeerNameError),
    #[error(
        "the allowed IPs of {0} have no address of a single host; give the address of the peer in the tunnel"
    )]
    NoAddress(String),
    #[error("{0} is an address of this machine; give one of the peer")]
    OwnAddress(IpAddr),
    #[error(
        "{target} has not connected to {interface} yet, and where it is is not known: start the test when it has, or \
         start it there"
    )]
    NotConnected { interface: String, target: String },
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        let code = match error {
            StartError::Interface { .. }
            | StartError::SeveralInterfaces { .. }
            | StartError::Peer(PeerNameError::Ambiguous { .. }) => Code::Usage,
            _ => Code::Failure,
        };
        Self::new(code, error)
    }
}

/// The headers of a datagram in the tunnel: IPv6 and UDP.
const HEADERS: u16 = 40 + 8;
/// The number of a datagram.
const LEAST_PAYLOAD: u16 = 8;
/// The mode of a new file of `--plot`.
const PLOT_MODE: u32 = 0o666;
/// Bytes of each packet that `--pcap` keeps: all headers, and no content.
const SNAP_BYTES: u32 = 128;

/// Tests one direction or both, and prints the results.
///
/// # Errors
/// The interface does not run, has no such peer, the test fails, or a file cannot be written;
/// [`Code::Permission`] without root.
pub fn run(args: &SpeedtestArgs) -> Result<(), Error> {
    let found = find(args)?;
    // Before the test, which may take a minute.
    let plot = args.plot.as_deref().map(PlotFile::create).transpose()?;
    let capture = args.pcap.as_deref().map(|path| capture(path, &found)).transpose()?;
    let capture = Arc::new(Mutex::new(capture));
    let end_capture = {
        let capture = Arc::clone(&capture);
        move || {
            let capture = capture.lock().unwrap_or_else(PoisonError::into_inner).take();
            capture.map(Background::end).transpose()
        }
    };
    if args.pcap.is_some() {
        end_with_signals(end_capture.clone())?;
    }
    let result = test_all(args, found);
    // Also of a test that failed: its packets may show why.
    let captured = end_capture();
    let result = result?;
    if let (Some(path), Some(Counts { written, dropped })) = (&args.pcap, captured?) {
        let path = path.display();
        output::progress(&format!("{path}: {written} packets captured, {dropped} dropped by the capture\n"));
    }
    if let Some(plot) = plot {
        plot.write(&result)?;
    }
    if args.json { output::print_json(&result) } else { Ok(()) }
}

/// Ends the process at a signal, once the file of the capture is finished; at a second one at once.
fn end_with_signals(
    end_capture: impl Fn() -> Result<Option<Counts>, Error> + Clone + Send + 'static,
) -> io::Result<()> {
    let is_ending = AtomicBool::new(false);
    signals::watch(move |signal| {
        let code = 128
            + match signal {
                Signal::Interrupt => libc::SIGINT,
                Signal::Terminate => libc::SIGTERM,
                Signal::HangUp => libc::SIGHUP,
            };
        if is_ending.swap(true, Ordering::Relaxed) {
            std::process::exit(code);
        }
        let end_capture = end_capture.clone();
        std::thread::spawn(move || {
            if let Err(error) = end_capture() {
                output::error(&error);
            }
            std::process::exit(code);
        });
    })
}

fn capture(path: &Path, found: &Found) -> Result<Background, Error> {
    let request = CaptureRequest {
        peer: Some(found.peer.public_key.clone()),
        layer: None,
        snap_bytes: Some(SNAP_BYTES),
    };
    let name: InterfaceName =
        found.report.interface.parse().map_err(|error| Error::new(Code::Failure, error))?;
    Background::start(&name, &request, path)
}

/// The file of `--plot`.
struct PlotFile<'a> {
    path: &'a Path,
    /// One that is opened once, such as a FIFO.
    opened: Option<OutputFile>,
}

impl<'a> PlotFile<'a> {
    /// Finds out whether the file can be written. A test that is ended by a signal leaves nothing behind.
    fn create(path: &'a Path) -> Result<Self, Error> {
        let file = OutputFile::create(path, PLOT_MODE).map_err(|error| Self::failed(path, &error))?;
        Ok(Self { path, opened: Some(file).filter(|file| !file.is_made()) })
    }

    fn write(self, result: &TestReport) -> Result<(), Error> {
        let tests: Vec<_> =
            result.tests.iter().map(|test| (result.heading(test.outcome.direction), &test.outcome)).collect();
        let plot = plot::svg(&tests);
        let written = match self.opened {
            Some(mut file) => file.write_all(plot.as_bytes()).and_then(|()| file.keep()),
            None => OutputFile::write_whole(self.path, PLOT_MODE, plot.as_bytes()),
        };
        written.map_err(|error| Self::failed(self.path, &error))
    }

    fn failed(path: &Path, error: &io::Error) -> Error {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        let code = if is_denied { Code::Permission } else { Code::Failure };
        Error::new(code, format!("cannot write {}: {error}", path.display()))
    }
}

/// Runs the tests, with the tables unless `--json` is given.
fn test_all(args: &SpeedtestArgs, found: Found) -> Result<TestReport, Error> {
    let Found { client, report, peer, address } = found;
    let directions = match args.direction {
        Directions::Up => &[Direction::Up][..],
        Directions::Down => &[Direction::Down],
        Directions::Both => &[Direction::Up, Direction::Down],
    };
    let client = Mutex::new(client);
    let ask = move || client.lock().unwrap_or_else(PoisonError::into_inner).status().ok();
    let probe: Probe = Arc::new(ask);
    let mut result = TestReport {
        interface: report.interface.clone(),
        peer: peer.public_key.clone(),
        friendly_name: peer.settings.friendly_name.clone(),
        address,
        seconds: args.time.as_secs_f64(),
        streams: args.streams,
        congestion: args.congestion.clone(),
        udp: args.udp.map(|rate| Udp {
            bits_per_second: rate.bits_per_second(),
            bytes: report.mtu.saturating_sub(HEADERS).max(LEAST_PAYLOAD),
        }),
        tests: Vec::new(),
    };
    for &direction in directions {
        let plan = Plan {
            target: SocketAddr::new(address, PORT),
            device: report.interface.clone(),
            peer: peer.public_key.clone(),
            daemon: report.pid,
            direction,
            duration: args.time,
            streams: args.streams,
            congestion: args.congestion.clone(),
            udp: result.udp,
        };
        let mut rows = table::Rows::new();
        let title = result.title(direction);
        // Not above the error of a test that does not begin.
        let mut title = (!args.json).then_some(title);
        let mut print_title = || title.take().map_or(Ok(()), |title| output::print(title.as_bytes()));
        let mut printed = Ok(());
        let outcome = weft_speedtest::run(&plan, Arc::clone(&probe), |outcome| {
            if !args.json && printed.is_ok() {
                printed = print_title().and_then(|()| {
                    rows.take(outcome).iter().try_for_each(|row| output::print(row.as_bytes()))
                });
            }
        });
        let measured = Measured::of(outcome.map_err(test_failed)?);
        printed?;
        print_title()?;
        if !args.json {
            rows.rest(&measured.outcome).iter().try_for_each(|row| output::print(row.as_bytes()))?;
            output::print(measured.text().as_bytes())?;
        }
        result.tests.push(measured);
    }
    Ok(result)
}

fn test_failed(error: TestError) -> Error {
    let code = match &error {
        TestError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Code::Permission
        }
        _ => Code::Failure,
    };
    Error::new(code, error)
}

/// The result, as `--json` prints it.
#[derive(Serialize)]
struct TestReport {
    interface: String,
    peer: String,
    friendly_name: Option<String>,
    address: IpAddr,
    seconds: f64,
    streams: u16,
    congestion: Option<String>,
    udp: Option<Udp>,
    tests: Vec<Measured>,
}

impl TestReport {
    /// Returns what is tested in which direction.
    fn heading(&self, direction: Direction) -> String {
        let peer = self.friendly_name.clone().unwrap_or_else(|| short_key(&self.peer));
        let way = match direction {
            Direction::Up => "to",
            Direction::Down => "from",
        };
        let streams = match (self.udp, self.streams) {
            (Some(Udp { bits_per_second, bytes }), _) => {
                format!("datagrams of {bytes} bytes at {}", weft_report::rate(bits_per_second / 8))
            }
            (None, 1) => "one stream".to_owned(),
            (None, streams) => format!("{streams} streams"),
        };
        let (interface, address) = (&self.interface, self.address);
        format!("{interface}: {way} {peer} ({address}), {streams}")
    }

    /// Returns what stands above the rows of the next test.
    fn title(&self, direction: Direction) -> String {
        let line_break = if self.tests.is_empty() { "" } else { "\n" };
        let header = if self.udp.is_some() { table::HEADER_OF_DATAGRAMS } else { table::HEADER };
        format!("{line_break}{}\n{header}", self.heading(direction))
    }
}

/// A test of one direction.
#[derive(Serialize)]
struct Measured {
    /// The rate at which the receiver received, in bits per second.
    bits_per_second: u64,
    /// The datagrams of a test with UDP: those sent, and what the receiver saw of them.
    datagrams: Option<Datagrams>,
    /// Segments that TCP sent again.
    retransmits: u64,
    /// The least round trip, in microseconds.
    min_rtt_us: u64,
    /// What the sender's TCP went through, all connections of that machine together.
    events: TcpEvents,
    /// WireGuard's messages lost and displaced between the daemons.
    outside: Option<Outside>,
    /// What limited the rate, the largest share first.
    limits: Vec<Verdict>,
    /// What to change about the main limit.
    advice: String,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Measured {
    fn of(outcome: Outcome) -> Self {
        let (sender, receiver) = (outcome.sender(), outcome.receiver());
        let last = sender.last().and_then(|sample| sample.tcp.clone()).unwrap_or_default();
        let bits_per_second = receiver
            .last()
            .map_or(0, |sample| (sample.received as f64 * 8e6 / sample.at_us.max(1) as f64) as u64);
        let limits = verdicts(sender, receiver);
        let datagrams = |samples: &[Sample]| samples.last().and_then(|sample| sample.datagrams);
        Self {
            bits_per_second,
            datagrams: datagrams(sender)
                .zip(datagrams(receiver))
                .map(|(Datagrams { sent, .. }, receiver)| Datagrams { sent, ..receiver }),
            retransmits: last.retransmits,
            min_rtt_us: last.min_rtt_us,
            events: events(sender),
            outside: outcome.outside(),
            advice: advice::of(&limits, bits_per_second, sender, outcome.direction),
            limits,
            outcome,
        }
    }

    fn text(&self) -> String {
        let received = weft_report::rate(self.bits_per_second / 8);
        let mut text = match self.datagrams {
            Some(Datagrams { sent, expected, received: arrived, displaced }) => {
                let lost = expected.saturating_sub(arrived);
                let share = lost as f64 * 100.0 / expected.max(1) as f64;
                format!(
                    "{received} received; of {sent} datagrams {lost} lost ({share:.2} %), {displaced} displaced\n"
                )
            }
            None => format!(
                "{received} received; {} segments sent again; least round trip {}\n",
                self.retransmits,
                table::milliseconds(self.min_rtt_us),
            ),
        };
        let TcpEvents { hystart_exits, sack_recoveries, tail_probes, spurious_retransmits } = self.events;
        if self.events != TcpEvents::default() {
            text += &format!(
                "slow start ended by HyStart: {hystart_exits}; SACK recoveries: {sack_recoveries}; tail probes: \
                 {tail_probes}; sent again in vain: {spurious_retransmits}\n"
            );
        }
        if let Some(Outside { lost, lost_share, displaced }) =
            self.outside.filter(|it| it.lost + it.displaced > 0)
        {
            text += &format!(
                "between the daemons: {lost} messages lost ({:.2} %), {displaced} displaced\n",
                lost_share * 100.0
            );
        }
        for (i, limit) in self.limits.iter().enumerate() {
            let begin = if i == 0 { "limited by" } else { "" };
            text += &format!("{begin:<10} {:>3.0} %  {}\n", limit.share * 100.0, advice::name(limit.cause));
        }
        if !self.advice.is_empty() {
            text += &format!("{}\n", self.advice);
        }
        text
    }
}

/// Returns what happened between the first sample and the last one.
fn events(samples: &[Sample]) -> TcpEvents {
    let mut events = samples.iter().filter_map(|sample| sample.events);
    let first = events.next().unwrap_or_default();
    let last = events.next_back().unwrap_or(first);
    let grown = |count: fn(&TcpEvents) -> u64| count(&last).saturating_sub(count(&first));
    TcpEvents {
        hystart_exits: grown(|it| it.hystart_exits),
        sack_recoveries: grown(|it| it.sack_recoveries),
        tail_probes: grown(|it| it.tail_probes),
        spurious_retransmits: grown(|it| it.spurious_retransmits),
    }
}

/// The peer to test with.
struct Found {
    client: Client,
    report: StatusReport,
    peer: PeerReport,
    address: IpAddr,
}

/// Finds the peer at the interface that the arguments name, or else at all that run.
fn find(args: &SpeedtestArgs) -> Result<Found, Error> {
    let ask = |mut client: Client| Ok((client.status()?, client));
    let asked = match &args.name {
        Some(name) => vec![Client::connect(name).and_then(ask)?],
        None => running::ask_all(ask)?.all()?,
    };
    let target = args.target.clone();
    let (mut found, mut unknown) = (Vec::new(), None);
    for (report, client) in asked {
        match peer_and_address(&report, &args.target) {
            Ok((peer, address)) => found.push(Found { client, report, peer, address }),
            Err(error @ (StartError::Peer(PeerNameError::Unknown { .. }) | StartError::NoSuchAddress(_))) => {
                unknown = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(found), true) if is_elsewhere(&found.report) => {
            Err(StartError::Elsewhere { interface: found.report.interface, target }.into())
        }
        (Some(found), true) if found.peer.endpoint.is_none() => {
            Err(StartError::NotConnected { interface: found.report.interface, target }.into())
        }
        (Some(found), true) => Ok(found),
        (None, _) if let Some(interface) = interface_named(args) => {
            Client::connect(&interface)?;
            Err(StartError::Interface { target }.into())
        }
        (None, _) => Err(unknown.unwrap_or(StartError::NoSuchAddress(target)).into()),
        (Some(last), false) => {
            found.push(last);
            let names = found.into_iter().map(|found| found.report.interface).collect::<Vec<_>>();
            Err(StartError::SeveralInterfaces { interfaces: names.join(", "), target }.into())
        }
    }
}

/// Returns the interface that stands where the peer should stand alone.
fn interface_named(args: &SpeedtestArgs) -> Option<InterfaceName> {
    let is_there = |name: &InterfaceName| path_of(&args.target).exists() || Client::connect(name).is_ok();
    interface_of(&args.target).ok().filter(|name| args.name.is_none() && is_there(name))
}

/// Reports whether the interface is in a network namespace of `weft exec` or `weft proxy`, and this process
/// is not.
fn is_elsewhere(report: &StatusReport) -> bool {
    !report.members.is_empty() && if_nametoindex(report.interface.as_str()).is_err()
}

/// Returns the peer that the text names, and its address in the tunnel.
fn peer_and_address(report: &StatusReport, target: &str) -> Result<(PeerReport, IpAddr), StartError> {
    if let Ok(address) = target.parse::<IpAddr>() {
        let own = |net: &String| net.parse::<IpNet>().is_ok_and(|net| net.addr() == address);
        if report.addresses.iter().any(own) {
            return Err(StartError::OwnAddress(address));
        }
        let peer = peer_of(report, address).ok_or_else(|| StartError::NoSuchAddress(target.to_owned()))?;
        return Ok((peer.clone(), address));
    }
    let peer = report.peer(target)?;
    let nets = peer.allowed_ips.iter().filter_map(|net| net.parse::<IpNet>().ok());
    let host = nets.into_iter().find(|net| net.prefix_len() == net.max_prefix_len());
    let address = host.ok_or_else(|| StartError::NoAddress(target.to_owned()))?.addr();
    Ok((peer.clone(), address))
}

#[cfg(test)]
mod tests {
    use weft_config::settings::ReportSettings;

    use super::*;

    fn report() -> StatusReport {
        let peer = |key: &str, name: &str, allowed_ips: &[&str]| PeerReport {
            public_key: key.to_owned(),
            settings: ReportSettings::named(name),
            allowed_ips: allowed_ips.iter().map(|net| (*net).to_owned()).collect(),
            ..PeerReport::default()
        };
        StatusReport {
            addresses: vec!["10.0.0.1/24".to_owned()],
            peers: vec![
                peer("a", "office", &["10.1.0.0/16", "10.0.0.2/32"]),
                peer("b", "home", &["10.2.0.0/16"]),
                peer("c", "twice", &["10.0.0.4/32"]),
                peer("d", "twice", &["fd00::5/128"]),
            ],
            ..StatusReport::default()
        }
    }

    #[test]
    fn a_peer_is_found_by_name_key_and_address() {
        let find = |target: &str| {
            let (peer, address) = peer_and_address(&report(), target).unwrap();
            (peer.public_key, address.to_string())
        };
        let found = |key: &str, address: &str| (key.to_owned(), address.to_owned());
        assert_eq!(find("office"), found("a", "10.0.0.2"));
        assert_eq!(find("d"), found("d", "fd00::5"));
        assert_eq!(find("10.1.2.3"), found("a", "10.1.2.3"));
    }

    #[test]
    fn what_is_not_clear_is_an_error_that_says_what_to_give() {
        let error = |target: &str| peer_and_address(&report(), target).unwrap_err().to_string();
        assert!(error("home").ends_with("give the address of the peer in the tunnel"));
        assert!(error("twice").ends_with("give the public key of one: c, d"));
        assert!(
            error("offices").contains("no peer has the key or the name offices; similar names are office")
        );
        assert!(error("10.9.0.1").contains("no interface has a peer with the address 10.9.0.1"));
        assert!(error("10.0.0.1").contains("an address of this machine"));
    }
}
