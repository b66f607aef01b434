//! Two daemons inside the test's process: their counters have to add up.

use std::time::{Duration, Instant};

use weft::up::{Daemon, Options};
use weft_config::TunThreads;
use weft_control::Controller;
use weft_dataplane::Snapshot;
use weft_lab::counters::Counters;
use weft_lab::emulator::LinkSpec;
use weft_lab::{PATIENCE, here, until};
use weft_tunnel::DropReason;

use crate::support::{Conf, End, Ends, Family, NAME, answers};

/// How two daemons are connected and driven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) tun_threads: u16,
    /// Queues that the packet thread serves itself, without threads of the TUN.
    pub(crate) inline_queues: u16,
    pub(crate) offload: bool,
    pub(crate) mtu: u16,
    pub(crate) outer: Family,
}

impl Default for Setting {
    fn default() -> Self {
        Self { tun_threads: 0, inline_queues: 1, offload: true, mtu: 1420, outer: Family::V4 }
    }
}

impl Setting {
    /// This number of queues, each with its threads.
    pub(crate) fn threads(tun_threads: u16) -> Self {
        Self { tun_threads, ..Self::default() }
    }

    /// This number of queues without threads.
    pub(crate) fn inline(inline_queues: u16) -> Self {
        Self { inline_queues, ..Self::default() }
    }

    /// The setting with as many queues as a TUN may have in this build. With more the test is not run.
    fn possible(self) -> Self {
        let most = u16::try_from(weft_tun::MAX_QUEUES).unwrap();
        let queues = self.tun_threads.max(self.inline_queues);
        if queues > most {
            here::not_run(&format!("with {queues} queues: a TUN has {most} in this build"));
        }
        let (tun_threads, inline_queues) = (self.tun_threads.min(most), self.inline_queues.min(most));
        Self { tun_threads, inline_queues, ..self }
    }

    /// Number of queues.
    pub(crate) fn queues(self) -> usize {
        self.options("").tun_queues().count
    }

    /// The MTU of the veth: what an Ethernet carries, or jumbo frames.
    fn outer_mtu(self) -> u32 {
        if self.mtu > 1420 { 9000 } else { 1500 }
    }

    fn options(self, thread_name: &str) -> Options {
        Options {
            tun_threads: TunThreads::Fixed(self.tun_threads),
            inline_queues: self.inline_queues,
            offload: self.offload,
            thread_name: thread_name.to_owned(),
            ..Options::default()
        }
    }
}

/// Does the same with every setting, at the same time: each waits for something most of the time.
pub(crate) fn with_each(settings: impl IntoIterator<Item = Setting>, work: impl Fn(Setting) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for setting in settings {
            let thread = std::thread::Builder::new().name(here::test_name());
            thread.spawn_scoped(scope, move || work(setting)).unwrap();
        }
    });
}

/// Two daemons with a session.
pub(crate) struct Bed {
    pub(crate) ends: Ends,
    pub(crate) setting: Setting,
    a: Daemon,
    b: Daemon,
    before: [Counters; 2],
}

/// What an end counted: weft's counters, and the kernel's since the bed was made.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) weft: Snapshot,
    pub(crate) kernel: Counters,
    /// Frames of this end that an emulated link dropped or lost.
    lost_on_link: u64,
}

impl Bed {
    /// Makes it, and lets the ends shake hands; `None` where that is not permitted, which is said.
    pub(crate) fn new(setting: Setting) -> Option<Self> {
        Self::joined(setting, None)
    }

    /// The same over an emulated link.
    pub(crate) fn over(setting: Setting, link: &LinkSpec) -> Option<Self> {
        Self::joined(setting, Some(link))
    }

    fn joined(setting: Setting, link: Option<&LinkSpec>) -> Option<Self> {
        let setting = setting.possible();
        println!("{setting:?}");
        let ends = Ends::joined(setting.outer_mtu(), link)?;
        let (mut conf_a, mut conf_b) = Conf::pair(setting.outer);
        for conf in [&mut conf_a, &mut conf_b] {
            conf.mtu = Some(setting.mtu);
        }
        let before = [Counters::read(&ends.a).unwrap(), Counters::read(&ends.b).unwrap()];
        let a = conf_a.start(&ends.a, &setting.options("weft-a")).unwrap();
        let b = conf_b.start(&ends.b, &setting.options("weft-b")).unwrap();
        let bed = Self { ends, setting, a, b, before };
        // IPv6 as well: the kernel takes an address into its routes a moment after it was added.
        for family in [Family::V4, Family::V6] {
            assert!(answers(&bed.ends.a, End::B.inner(family)), "no answer through the tunnel: {setting:?}");
        }
        Some(bed)
    }

    /// What changes the interface of an end.
    pub(crate) fn controller(&self, end: End) -> &Controller {
        let daemon = if end == End::A { &self.a } else { &self.b };
        daemon.controller().unwrap()
    }

    pub(crate) fn read(&self, end: End) -> Reading {
        let (daemon, before) = match end {
            End::A => (&self.a, &self.before[0]),
            End::B => (&self.b, &self.before[1]),
        };
        let kernel = Counters::read(self.ends.namespace(end)).unwrap().since(before);
        let lost_on_link = self.ends.emulator.as_ref().map_or(0, |emulator| {
            let [from_a, from_b] = emulator.counters();
            let pipe = if end == End::A { from_a } else { from_b };
            pipe.dropped + pipe.lost
        });
        Reading { weft: daemon.snapshot().unwrap(), kernel, lost_on_link }
    }

    /// Waits until every packet that went in anywhere is accounted for, and asserts that weft dropped none.
    /// Returns what both ends counted.
    #[track_caller]
    pub(crate) fn assert_balanced(&self) -> [Reading; 2] {
        let start = Instant::now();
        loop {
            let readings = [self.read(End::A), self.read(End::B)];
            let [a, b] = &readings;
            let problem = [
                imbalance_within(a),
                imbalance_within(b),
                imbalance_between(a, b),
                imbalance_between(b, a),
                unexplained_drops(a),
                unexplained_drops(b),
            ];
            let Some(problem) = problem.into_iter().flatten().next() else { return readings };
            assert!(start.elapsed() < PATIENCE, "{:?}: {problem}\nA: {a:#?}\nB: {b:#?}", self.setting);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Takes both down, which has to go well.
    pub(crate) fn stop(self) {
        let Self { ends, a, b, .. } = self;
        a.stop().unwrap();
        b.stop().unwrap();
        for namespace in [&ends.a, &ends.b] {
            until("the interface to go", || {
                !Counters::read(namespace).unwrap().interfaces.contains_key(NAME)
            });
        }
    }
}

impl Reading {
    /// The most datagrams that can have been lost for lack of time or room: between weft and its
    /// neighbours, where a super-packet of the kernel counts once and has up to 64 of them and a frame of an
    /// emulated link is one, and by weft, which counts each ([`DropReason::Overload`]).
    pub(crate) fn lost_outside(&self) -> u64 {
        let lost = |name| {
            let interface = self.kernel.interface(name);
            interface.tx_dropped + interface.rx_dropped
        };
        64 * (lost(NAME)
            + lost("eth0")
            + self.kernel.udp_receive_buffer_full()
            + self.kernel.udp_send_buffer_full())
            + self.lost_on_link
            + self.weft.drops.get(DropReason::Overload)
    }
}

/// What went into an end has to have come out of it, direction by direction.
fn imbalance_within(end: &Reading) -> Option<String> {
    let Snapshot { tun, tunnel, udp, drops, .. } = &end.weft;
    let sum = |reasons: &[DropReason]| reasons.iter().map(|reason| drops.get(*reason)).sum::<u64>();
    let not_sealed = sum(&[
        DropReason::MalformedPacket,
        DropReason::PacketThreadStalled,
        DropReason::PeerMoved,
        DropReason::NoPeer,
        DropReason::LinkLocal,
        DropReason::NoEndpoint,
        DropReason::StagingFull,
        DropReason::HandshakeTimeout,
        DropReason::PeerRemoved,
    ]) - tun.malformed_reads;
    if tun.segments_read != tunnel.sealed + tunnel.staged_segments + not_sealed {
        return Some("what was read from the TUN is not what was sealed, staged and dropped".to_owned());
    }
    // Handshakes and keepalives go out beside the data, a handful of them.
    let not_sent = sum(&[DropReason::UdpSendFailed, DropReason::DatagramTooLong]);
    let control = (udp.datagrams_sent + not_sent).checked_sub(tunnel.sealed);
    if control.is_none_or(|control| control > 2 * tunnel.handshakes + 20) {
        return Some(format!("{control:?} datagrams more were sent than sealed"));
    }
    let not_opened =
        drops.total() - not_sealed - not_sent - drops.get(DropReason::TunWriteFailed) - tun.malformed_reads;
    let control = udp.datagrams_received.checked_sub(tunnel.opened + not_opened);
    if control.is_none_or(|control| control > 2 * tunnel.handshakes + 20 + tunnel.keepalives_received) {
        return Some(format!("{control:?} datagrams more were received than opened and dropped"));
    }
    if tunnel.opened != tun.segments_written + tun.write_failures {
        return Some("what was opened is not what was written to the TUN".to_owned());
    }
    // What the kernel says it gave to the TUN and got from it, a super-packet being one packet.
    let device = end.kernel.interface(NAME);
    if device.tx_packets != tun.packets_read || device.rx_packets != tun.packets_written {
        return Some(format!("the kernel counts otherwise: {device:?}"));
    }
    None
}

/// What one end sent has to have arrived at the other.
fn imbalance_between(from: &Reading, to: &Reading) -> Option<String> {
    let (sent, received) = (from.weft.udp.datagrams_sent, to.weft.udp.datagrams_received);
    let lost = from.lost_outside() + to.lost_outside();
    match sent.checked_sub(received) {
        Some(missing) if missing <= lost => None,
        _ => Some(format!(
            "{sent} datagrams were sent and {received} received; outside of weft at most {lost} were lost"
        )),
    }
}

/// What weft dropped. The device is silent: the kernel sends nothing through it by itself.
pub(crate) fn unexplained_drops(end: &Reading) -> Option<String> {
    unexplained_drops_besides(end, &[])
}

/// The same, where drops for some reasons have one.
pub(crate) fn unexplained_drops_besides(end: &Reading, explained: &[DropReason]) -> Option<String> {
    let drops = &end.weft.drops;
    let explained: u64 = explained.iter().map(|reason| drops.get(*reason)).sum();
    (drops.total() > explained + drops.get(DropReason::Overload))
        .then(|| format!("weft dropped packets: {drops:?}"))
}
