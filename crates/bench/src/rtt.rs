//! `weft-bench rtt`: TCP over links with a real round trip, bare and through tunnels, and the cost of the
//! tunnel: lost speed beyond its headers, more retransmits, reordering.
//!
//! ```text
//!   near  eth0 ══ emulated link, MTU 1500 ══ eth0  far
//!    192.0.2.1                           192.0.2.2    bare: TCP ends here
//!     tunnel 10.99.0.1 ══ MTU 1420 ══ 10.99.0.2 tunnel: or here
//! ```

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use socket2::{Domain, Socket, Type};
use weft_lab::counters::Counters;
use weft_lab::emulator::LinkSpec;
use weft_lab::traffic::{self, Amount, Progress, STALL, SentFlow, TcpReceiver, send_stream_over};

use crate::args::{SideArgs, turns};
use crate::compare::BARE;
use crate::compare::case::TRANSFER;
use crate::implementation::{Implementation, check_names};
use crate::interrupt::Interrupt;
use crate::report::{CPU, Figure, RETRANSMITS, Report, Sample};
use crate::topology::{self, Tunnel, Wire};
use crate::{congestion, machine, tools};

/// The MTU of every tunnel.
const MTU: u16 = 1420;
/// Timeout of a stream beyond its sending time.
const GRACE: Duration = Duration::from_secs(30);

const MBIT: Figure = Figure::new("mbit_per_second", "Mbit/s", 1);
/// Of what the headers leave: the payload, divided by its share of a full frame.
const OF_HEADERS: Figure = Figure::new("of_what_headers_leave", "without headers, Mbit/s", 1);
/// Retransmits from the first packet to the last, slow start included. The figures below cover that span,
/// too.
const ALL_RETRANSMITS: Figure = Figure::new("retransmits_in_all", "with slow start", 0);
/// How often the sender found its segments reordered: by SACK, by timestamps, without either.
const REORDERING: Figure = Figure::new("reordering_seen", "reordering seen", 0);
/// Frames that the link dropped at its queue, there and back, and packets that an interface dropped because
/// its ring was full.
const LINK_DROPS: Figure = Figure::new("dropped_by_link", "link drops", 0);
const RING_DROPS: Figure = Figure::new("dropped_by_interfaces", "ring drops", 0);
/// Mean of the sender's smoothed round-trip times.
const ROUND_TRIP: Figure = Figure::new("round_trip_ms", "RTT seen, ms", 1);
/// Ends of slow start that cubic's HyStart caused, by trains of acknowledgements and by delay.
const HYSTART: Figure = Figure::new("hystart_exits", "HyStart exits", 0);

/// The arguments of `weft-bench rtt`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RttArgs {
    #[command(flatten)]
    pub(crate) sides: SideArgs,
    /// The link, as for `weft-bench compare`, without its delay. Its queue is one bandwidth-delay product
    /// unless it says otherwise.
    #[arg(long, value_name = "SPEC", default_value = "rate=500mbit")]
    pub(crate) link: LinkSpec,
    /// Round trips to measure with, in milliseconds, with commas between them.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "20,60,100",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rtt: Vec<u32>,
    /// Congestion controls, with commas between them; without it cubic and bbr, as far as the kernel has
    /// them.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) congestion: Vec<String>,
    /// How long a stream runs before, in seconds: its slow start does not count.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=60))]
    pub(crate) omit: u32,
    /// The sizes of transfers from a cold start, in megabytes, with commas between them.
    #[arg(long, value_name = "MB", value_delimiter = ',', default_value = "10,30",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) sizes: Vec<u32>,
}

/// Measures and prints the report.
pub(crate) fn run(args: &RttArgs, json: bool) -> Result<()> {
    let available = congestion::available()?;
    congestion::check(&args.congestion, &available)?;
    let mut controls = args.congestion.clone();
    if controls.is_empty() {
        controls.extend(["cubic", "bbr"].map(str::to_owned));
        controls.retain(|control| available.contains(control));
    }
    let mut sides = vec![(BARE.to_owned(), Implementation::Bare)];
    sides.extend(args.sides.sides()?);
    check_names(sides.iter().map(|(name, _)| name.as_str()))?;
    topology::check_permission()?;
    tools::check([], sides.iter().map(|(_, implementation)| implementation))?;
    let interrupt = Interrupt::watch()?;
    let times = args.sides.times;
    let settings: [(_, &dyn std::fmt::Display); 5] = [
        ("rounds", &times.rounds),
        ("seconds", &times.secs),
        ("seconds of slow start", &args.omit),
        ("link", &args.link),
        ("MTU", &"1420 over 1500"),
    ];
    let mut report = Report::begin(&settings)?;
    let ended = measure_all(args, &controls, &sides, &mut report, &interrupt);
    report.finish(ended, json)
}

fn measure_all(
    args: &RttArgs,
    controls: &[String],
    sides: &[(String, Implementation)],
    report: &mut Report,
    interrupt: &Interrupt,
) -> Result<()> {
    let times = args.sides.times;
    for &rtt in &args.rtt {
        let spec = LinkSpec { delay: Duration::from_millis(rtt.into()) / 2, ..args.link.clone() };
        eprintln!("bringing up a link with {spec} for each");
        let mut paths = Vec::new();
        for (name, implementation) in sides {
            let wire = Wire::Emulated(spec.clone());
            let tunnel = Tunnel::start(implementation, &wire, MTU, None, interrupt);
            let share = payload_share(matches!(implementation, Implementation::Bare));
            paths.push((tunnel.with_context(|| format!("cannot bring up {name}"))?, share));
        }
        for control in controls {
            let case = format!("{rtt} ms {control}");
            let transfer_case = |megabytes| format!("{rtt} ms {control} {megabytes} MB");
            for round in 0..times.rounds as usize {
                for place in turns(paths.len(), round) {
                    let (tunnel, share) = &mut paths[place];
                    let mut path = Path { tunnel, control, share: *share, interrupt };
                    let name = &sides[place].0;
                    report.attempt("one TCP stream", &case, name, path.stream(times.secs, args.omit))?;
                    for &megabytes in &args.sizes {
                        let sample = path.transfer(u64::from(megabytes) * 1_000_000);
                        report.attempt("from a cold start", transfer_case(megabytes), name, sample)?;
                    }
                }
            }
            for (name, _) in &sides[1..] {
                for figure in [MBIT, OF_HEADERS, ALL_RETRANSMITS] {
                    report.compare([&case, name], [&case, BARE], figure, None);
                }
                for &megabytes in &args.sizes {
                    let case = transfer_case(megabytes);
                    report.compare([&case, name], [&case, BARE], TRANSFER, None);
                }
            }
        }
    }
    Ok(())
}

/// Returns the payload share of full TCP frames over IPv4 with timestamps.
///
/// Bare, 1,514 bytes of Ethernet carry 1,500 of IP, of which 20 are IP's header, 20 TCP's and 12 the
/// timestamps': 1448/1514. In the tunnel 1,420 bytes of IP carry 1,368; WireGuard adds a header of 16 and a
/// tag of 16 bytes, then come UDP's 8, IP's 20 and Ethernet's 14: 1368/1494. (1,420 is not a multiple of 16,
/// but padding never goes beyond the MTU.)
fn payload_share(is_bare: bool) -> f64 {
    if is_bare { 1448.0 / 1514.0 } else { 1368.0 / 1494.0 }
}

/// A path that carries packets, for one measurement.
struct Path<'a> {
    tunnel: &'a mut Tunnel,
    /// TCP's congestion control.
    control: &'a str,
    share: f64,
    interrupt: &'a Interrupt,
}

/// The growing counters of a running stream, at one moment.
struct Reading {
    at: Instant,
    bytes: u64,
    retransmits: u64,
    cpu: Duration,
}

impl Path<'_> {
    /// Opens a connection from the near end to the far one.
    fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let connect = || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.set_tcp_congestion(self.control.as_bytes())?;
            socket.connect_timeout(&to.into(), STALL)?;
            std::io::Result::Ok(socket.into())
        };
        self.tunnel.near.run(connect).with_context(|| format!("cannot connect by {}", self.control))
    }

    /// Sends for `omit` seconds, which do not count, and then for `secs` measured seconds.
    fn stream(&mut self, secs: u32, omit: u32) -> Result<Sample> {
        let receiver = self.tunnel.listen()?;
        let before = (self.tunnel.counters()?, self.tunnel.emulator()?.counters());
        let stream = self.connect(receiver.local_addr())?;
        let (first, last, round_trip, sent) = self.send(stream, &receiver, [omit, secs])?;
        check(&sent)?;
        receiver.finish();
        let seconds = (last.at - first.at).as_secs_f64();
        let gbit = (last.bytes - first.bytes) as f64 * 8.0 / 1e9;
        ensure!(gbit > 0.0, "the stream stands still");
        let near = self.near_since(&before.0)?;
        let link = self.tunnel.emulator()?.counters().into_iter().zip(&before.1);
        let dropped: u64 = link.map(|(now, before)| now.since(before).dropped).sum();
        let [_, far] = self.tunnel.counters()?;
        let far = far.since(&before.0[1]);
        let interfaces = [&near, &far].into_iter().flat_map(|counters| counters.interfaces.values());
        let mbit = gbit * 1e3 / seconds;
        Ok(Sample::default()
            .with(MBIT, mbit)
            .with(OF_HEADERS, mbit / self.share)
            .with(RETRANSMITS, (last.retransmits - first.retransmits) as f64)
            .with(ALL_RETRANSMITS, sent.retransmits as f64)
            .with(REORDERING, reordering(&near))
            .with(LINK_DROPS, dropped as f64)
            .with(RING_DROPS, interfaces.map(|interface| interface.tx_dropped).sum::<u64>() as f64)
            .with(ROUND_TRIP, round_trip)
            .with(CPU, (last.cpu - first.cpu).as_secs_f64() / gbit))
    }

    /// Returns the readings at the beginning and the end of the measured time, and the mean of the round-trip
    /// times in it.
    fn send(
        &mut self,
        stream: TcpStream,
        receiver: &TcpReceiver,
        [omit, secs]: [u32; 2],
    ) -> Result<(Reading, Reading, f64, SentFlow)> {
        let [omit, span] = [omit, secs].map(|seconds| Duration::from_secs(seconds.into()));
        let watched = stream.try_clone()?;
        let progress = Progress::default();
        let start = Instant::now();
        let read = || -> Result<Reading> {
            let (bytes, retransmits) = (receiver.bytes(), traffic::retransmits(&watched)?);
            Ok(Reading { at: Instant::now(), bytes, retransmits, cpu: machine::busy_time()? })
        };
        // `progress.stop` ends the stream, early if there is an error.
        let amount = Amount::Until(start + omit + span + GRACE);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| send_stream_over(stream, amount, 1, &progress));
            let (mut first, mut round_trips) = (None, Vec::new());
            let last = self.interrupt.wait_for("the end of the stream", omit + span + GRACE, || {
                self.tunnel.check()?;
                ensure!(!sender.is_finished(), "the stream ended early");
                if start.elapsed() < omit {
                    return Ok(None);
                }
                let begun = match &first {
                    Some(Reading { at, .. }) => *at,
                    None => first.insert(read()?).at,
                };
                round_trips.push(traffic::round_trip(&watched)?.as_secs_f64() * 1e3);
                (begun.elapsed() >= span).then(&read).transpose()
            });
            progress.stop.store(true, Relaxed);
            let sent = sender.join().ok().context("the sender panicked")?;
            let mean = round_trips.iter().sum::<f64>() / round_trips.len() as f64;
            let last = last?;
            Ok((first.context("nothing was measured")?, last, mean, sent))
        })
    }

    /// Transfers `bytes` bytes over a new connection, all of which are checked.
    fn transfer(&mut self, bytes: u64) -> Result<Sample> {
        let receiver = self.tunnel.listen()?;
        let before = self.tunnel.counters()?;
        let progress = Progress::default();
        let (sent, took) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let start = Instant::now();
                let stream = self.connect(receiver.local_addr())?;
                anyhow::Ok((send_stream_over(stream, Amount::Count(bytes), 1, &progress), start.elapsed()))
            });
            // A stalled transfer ends by itself.
            let ended = || Ok(sender.is_finished().then_some(()));
            let waited = self.interrupt.wait_for("the end of the transfer", Duration::MAX, ended);
            progress.stop.store(true, Relaxed);
            let sent = sender.join().ok().context("the sender panicked")?;
            waited.and(sent)
        })?;
        check(&sent)?;
        let near = self.near_since(&before)?;
        receiver.finish();
        let exits =
            near.protocol("TcpExtTCPHystartTrainDetect") + near.protocol("TcpExtTCPHystartDelayDetect");
        Ok(Sample::default()
            .with(TRANSFER, took.as_secs_f64() * 1e3)
            .with(RETRANSMITS, sent.retransmits as f64)
            .with(REORDERING, reordering(&near))
            .with(HYSTART, exits as f64))
    }

    /// Returns what the sender's kernel counted since.
    fn near_since(&self, before: &[Counters; 2]) -> Result<Counters> {
        Ok(self.tunnel.counters()?[0].since(&before[0]))
    }
}

fn check(sent: &SentFlow) -> Result<()> {
    ensure!(sent.error.is_none(), "the stream ended early: {}", sent.error.as_deref().unwrap_or_default());
    ensure!(sent.confirmed == sent.bytes, "the stream was changed on its way, at byte {}", sent.confirmed);
    Ok(())
}

fn reordering(sender: &Counters) -> f64 {
    let names = ["TcpExtTCPSACKReorder", "TcpExtTCPTSReorder", "TcpExtTCPRenoReorder"];
    names.into_iter().map(|name| sender.protocol(name)).sum::<u64>() as f64
}
