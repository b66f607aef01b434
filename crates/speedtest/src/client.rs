//! The end of `weft speedtest`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::BufReader;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::{sleep_until, timeout};

use crate::datagrams;
use crate::load::{self, Lanes};
use crate::protocol::{
    self, Direction, Hello, LineError, PATIENCE, Refusal, Reply, Request, SETTLE, UdpRequest,
};
use crate::sample::{Counters, MAX_SAMPLES, Sample, Sent, micros};
use crate::sampler::{Probe, Sampler, Watch};
use crate::verdict::{Outside, outside};

/// A test to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The responder.
    pub target: SocketAddr,
    /// The name of the interface: connections go through it whatever the routes say.
    pub device: String,
    /// The public key of the peer, in base64.
    pub peer: String,
    /// The process of the daemon.
    pub daemon: u32,
    /// Who sends.
    pub direction: Direction,
    /// How long.
    pub duration: Duration,
    /// The number of connections.
    pub streams: u16,
    /// The congestion control of the sender; `None`: its default.
    pub congestion: Option<String>,
    /// Datagrams instead of connections.
    pub udp: Option<Udp>,
}

/// The datagrams of a test.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Udp {
    /// The rate of payload.
    pub bits_per_second: u64,
    /// The bytes of payload of a datagram.
    pub bytes: u16,
}

/// What a test observed.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Who sent.
    pub direction: Direction,
    /// The samples of this end.
    pub here: Vec<Sample>,
    /// The samples of the responder.
    pub there: Vec<Sample>,
    /// The daemon's counters at this end, before the test and after it.
    pub counters_here: [Option<Counters>; 2],
    /// The daemon's counters at the responder, before the test and after it.
    pub counters_there: [Option<Counters>; 2],
}

impl Outcome {
    /// Returns the samples of the end that sent.
    pub fn sender(&self) -> &[Sample] {
        if self.direction == Direction::Up { &self.here } else { &self.there }
    }

    /// Returns what was lost and displaced between the daemons, as the receiver's daemon counts. That of the
    /// responder may tell any numbers: it is not believed more messages than this end's daemon has sent.
    pub fn outside(&self) -> Option<Outside> {
        match self.direction {
            Direction::Down => outside(&self.counters_here, u64::MAX),
            Direction::Up => {
                let [before, after] =
                    self.counters_here.each_ref().map(|it| it.as_ref().map(|it| it.datagrams));
                outside(&self.counters_there, after?.saturating_sub(before?))
            }
        }
    }

    /// Returns the samples of the end that received.
    pub fn receiver(&self) -> &[Sample] {
        if self.direction == Direction::Up { &self.there } else { &self.here }
    }
}

/// Why a test failed.
#[derive(Debug, thiserror::Error)]
pub enum TestError {
    /// No process listens on the port.
    #[error(
        "no responder for speed tests at {0}: add `# weft: SpeedTest = on` to [Interface] in the peer's file, and run \
         `weft reload` there; the peer has to run weft on Linux"
    )]
    NoResponder(SocketAddr),
    /// Nothing answers.
    #[error(
        "{0} does not answer: `weft status` says whether the peer has a session; the peer's allowed IPs and firewall \
         have to let TCP port {port} in from the tunnel", port = .0.port()
    )]
    NoAnswer(SocketAddr),
    /// The connection cannot be made.
    #[error("cannot connect to {target} through {device}: {source}")]
    Connect {
        /// The responder.
        target: SocketAddr,
        /// The interface.
        device: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The test is refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The test broke off.
    #[error("the test broke off: {0}")]
    Broken(String),
}

impl From<LineError> for TestError {
    fn from(error: LineError) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<io::Error> for TestError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Runs a test. `on_sample` sees what is known so far, after each sample of this end.
///
/// # Errors
/// Those of [`TestError`].
pub fn run(plan: &Plan, probe: Probe, on_sample: impl FnMut(&Outcome)) -> Result<Outcome, TestError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(test(plan, probe, on_sample));
    // Does not wait for a report of the daemon.
    runtime.shutdown_background();
    outcome
}

async fn test(plan: &Plan, probe: Probe, mut on_sample: impl FnMut(&Outcome)) -> Result<Outcome, TestError> {
    let watch = Watch::new(probe, &plan.peer);
    let before = watch.now().await;
    let sends = plan.direction == Direction::Up;
    let control = connect(plan).await?;
    let udp = plan.udp.map(|udp| datagrams_to(plan, udp, control.local_addr()?)).transpose()?;
    let (lines, mut requests) = control.into_split();
    let mut lines = Lines { stream: BufReader::new(lines), buffer: Vec::new() };
    let request = Request {
        direction: plan.direction,
        milliseconds: u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX),
        streams: plan.streams,
        congestion: plan.congestion.clone().filter(|_| !sends),
        udp: udp.as_ref().map(|(_, udp)| *udp),
    };
    request.check().map_err(TestError::Refused)?;
    protocol::write(&mut requests, &Hello::Test(request)).await?;
    let token = match lines.answer().await? {
        Reply::Accepted { token } => token,
        other => return Err(unexpected(other)),
    };
    let mut streams = Vec::new();
    for _ in 0..if udp.is_some() { 0 } else { plan.streams } {
        let mut stream = connect(plan).await?;
        if let Some(name) = plan.congestion.as_deref().filter(|_| sends) {
            load::set_congestion(&stream, name).map_err(TestError::Refused)?;
        }
        protocol::write(&mut stream, &Hello::Data { token: token.clone() }).await?;
        streams.push(stream);
    }
    match lines.answer().await? {
        Reply::Begin => {}
        other => return Err(unexpected(other)),
    }

    let asked = udp.as_ref().map(|(_, udp)| datagrams::most(udp, plan.duration));
    let asked = asked.unwrap_or(Sent { bytes: u64::MAX, datagrams: 0 });
    let lanes = match udp {
        Some((socket, udp)) => {
            // A firewall of this end lets in what answers.
            let _ = socket.try_send(&[]);
            Lanes::Udp(socket, udp)
        }
        None => Lanes::Tcp(streams),
    };
    let mut sampler = Sampler::begin(lanes, sends, plan.duration, watch.clone(), Some(plan.daemon));
    let (reset, give_up) = (sampler.until() + SETTLE / 2, sampler.until() + SETTLE + PATIENCE);
    let mut is_reset = false;
    let mut outcome = Outcome {
        direction: plan.direction,
        here: Vec::new(),
        there: Vec::new(),
        counters_here: [before, None],
        counters_there: [None, None],
    };
    loop {
        tokio::select! {
            // Lines first: they say whether a connection breaks because the responder is at its end.
            biased;
            line = lines.next() => match line? {
                Reply::Sample(sample) => {
                    let sent = if sends { sampler.sent() } else { asked };
                    if !sample.keep(&mut outcome.there, sent, plan.duration + PATIENCE) {
                        return Err(TestError::Broken(format!("the responder sent over {MAX_SAMPLES} samples")));
                    }
                }
                Reply::End { counters } => {
                    // A responder samples until the end. That it is earlier would be a higher rate.
                    if let Some(last) = outcome.there.last_mut() {
                        last.at_us = last.at_us.max(micros(plan.duration));
                    }
                    outcome.counters_there = [outcome.there.first().and_then(|it| it.counters.clone()), counters];
                    break;
                }
                other => return Err(unexpected(other)),
            },
            sample = sampler.next() => match sample {
                Ok(mut sample) => {
                    sample.bound(if sends { sampler.sent() } else { asked });
                    outcome.here.push(sample);
                    on_sample(&outcome);
                }
                // This end began late.
                Err(_) if outcome.there.last().is_some_and(|it| it.at_us >= micros(plan.duration)) => {
                    sampler.end();
                }
                Err(error) => return Err(error.into()),
            },
            () = sleep_until(reset), if !is_reset => {
                is_reset = true;
                sampler.end();
            }
            () = sleep_until(give_up) => return Err(TestError::Broken("the responder fell silent".to_owned())),
        }
    }
    outcome.counters_here[1] = watch.now().await;
    Ok(outcome)
}

/// Opens the socket for datagrams, and returns what to ask the responder for.
fn datagrams_to(plan: &Plan, udp: Udp, local: SocketAddr) -> io::Result<(UdpSocket, UdpRequest)> {
    let socket = datagrams::socket(&plan.device, SocketAddr::new(local.ip(), 0), plan.target)?;
    let Udp { bits_per_second, bytes } = udp;
    let port = socket.local_addr()?.port();
    Ok((socket, UdpRequest { bits_per_second, bytes, port }))
}

/// The lines that the responder sends.
struct Lines {
    stream: BufReader<tokio::net::tcp::OwnedReadHalf>,
    buffer: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Result<Reply, LineError> {
        protocol::read(&mut self.stream, &mut self.buffer).await
    }

    /// Waits for the answer to what was sent.
    async fn answer(&mut self) -> Result<Reply, TestError> {
        let silent = |_| TestError::Broken("the responder does not answer".to_owned());
        Ok(timeout(2 * PATIENCE, self.next()).await.map_err(silent)??)
    }
}

fn unexpected(reply: Reply) -> TestError {
    match reply {
        Reply::Refused(refusal) => TestError::Refused(refusal),
        _ => TestError::Broken("the responder sent a line out of order".to_owned()),
    }
}

async fn connect(plan: &Plan) -> Result<TcpStream, TestError> {
    let target = plan.target;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::ConnectionRefused => TestError::NoResponder(target),
        io::ErrorKind::TimedOut => TestError::NoAnswer(target),
        _ => TestError::Connect { target, device: plan.device.clone(), source },
    };
    let open = || {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
        socket.bind_device(Some(plan.device.as_bytes()))?;
        socket.set_nonblocking(true)?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    };
    let connecting = timeout(PATIENCE, open().map_err(failed)?.connect(target));
    let stream = connecting.await.map_err(|_| TestError::NoAnswer(target))?.map_err(failed)?;
    load::prepare(&stream)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;

    fn plan(listener: &TcpListener) -> Plan {
        Plan {
            target: listener.local_addr().unwrap(),
            device: "lo".to_owned(),
            peer: String::new(),
            daemon: std::process::id(),
            direction: Direction::Up,
            duration: Duration::from_secs(1),
            streams: 1,
            congestion: None,
            udp: Some(Udp { bits_per_second: 8_000, bytes: 100 }),
        }
    }

    #[test]
    fn no_more_was_lost_on_the_way_than_this_end_has_sent() {
        let counters = |datagrams, expected_messages| {
            Some(Counters { datagrams, expected_messages, ..Counters::default() })
        };
        let outcome = Outcome {
            direction: Direction::Up,
            here: Vec::new(),
            there: Vec::new(),
            counters_here: [counters(10, 0), counters(15, 0)],
            counters_there: [counters(0, 0), counters(0, u64::MAX)],
        };
        assert_eq!(outcome.outside().unwrap().lost, 5);
    }

    #[test]
    fn a_connection_that_breaks_at_the_end_of_the_responder_is_no_failure() {
        for (at_us, is_failure) in [(1_000_000, false), (900_000, true)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let plan = Plan { udp: None, ..plan(&listener) };
            let responder = std::thread::spawn(move || {
                let mut control = listener.accept().unwrap().0;
                control.write_all(b"{\"accepted\":{\"token\":\"a\"}}\n").unwrap();
                let data = listener.accept().unwrap().0;
                let sample = format!("\"begin\"\n{{\"sample\":{{\"at_us\":{at_us},\"received\":7}}}}\n");
                control.write_all(sample.as_bytes()).unwrap();
                // The client has sent something that is not read: it is reset.
                drop(data);
                // Either line may be the first that the client sees.
                std::thread::sleep(Duration::from_millis(100));
                let _ = control.write_all(b"{\"end\":{\"counters\":null}}\n");
                control
            });
            let outcome = run(&plan, Arc::new(|| None), |_| ());
            responder.join().unwrap();
            assert_eq!(outcome.is_err(), is_failure, "{outcome:?}");
        }
    }

    /// Returns what the client makes of these lines of a responder, which follow the begin of a test.
    fn told(lines: String) -> Result<Outcome, TestError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = plan(&listener);
        let responder = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let begin = "{\"accepted\":{\"token\":\"a\"}}\n\"begin\"\n";
            // The client ends where it likes.
            let _ = stream.write_all((begin.to_owned() + &lines).as_bytes());
            stream
        });
        let outcome = run(&plan, Arc::new(|| None), |_| ());
        responder.join().unwrap();
        outcome
    }

    #[test]
    fn a_responder_tells_so_many_samples_and_times_that_can_be() {
        let sample = |at_us: u64| format!("{{\"sample\":{{\"at_us\":{at_us},\"received\":{}}}}}\n", u64::MAX);
        let samples = |count| sample(7).repeat(count) + "{\"end\":{\"counters\":null}}\n";
        assert_eq!(told(samples(MAX_SAMPLES)).unwrap().there.len(), MAX_SAMPLES);
        let most = told(samples(MAX_SAMPLES + 1)).unwrap_err().to_string();
        assert_eq!(most, "the test broke off: the responder sent over 1200 samples");

        let end = "{\"end\":{\"counters\":null}}\n";
        let times = |told: Outcome| told.there.iter().map(|sample| sample.at_us).collect::<Vec<_>>();
        for (lines, bound) in [
            // The rate of all is no higher than what was sent allows, nor that between two samples.
            (vec![1, 1, 0, 1], vec![1, 50_001, 100_001, 1_000_000]),
            (vec![1, u64::MAX, 3], vec![1, 6_000_000, 6_000_000]),
            (vec![100_000, 1_000_100], vec![100_000, 1_000_100]),
        ] {
            let told = told(lines.iter().map(|at_us| sample(*at_us)).collect::<String>() + end).unwrap();
            assert!(told.there.iter().all(|sample| sample.received <= 10_000), "{told:?}");
            assert_eq!(times(told), bound, "{lines:?}");
        }
    }
}
