//! Finds problems of an interface, from its report alone.

use std::cmp::Reverse;

use weft_config::{MIN_MTU_IPV6, shell_word};
use weft_tunnel::DropReason;

use crate::explain::explain;
use crate::finding::{Finding, Level};
use crate::format::{age, bytes, short_key, total};
use crate::rules::{self, SESSION_MS};
use crate::status::{ExpiredPeerReport, PeerReport, Rates, StatusReport};

/// The number of peers that are named; the rest are counted.
const NAMED_PEERS: usize = 5;
/// How long a peer may take for the first handshake, which needs one round trip.
const FIRST_ANSWER_MS: u64 = 10_000;
/// The maximum age of a send failure that is reported. Handshakes are retried every 5 s for 90 s: an older
/// failure did not recur.
const SEND_FAILURE_MS: u64 = 60_000;
/// An allowance for the retries of a renewal.
const RETRIES_MS: u64 = 15_000;
/// The maximum age of what ICMP says: weft asks every 30 s while a peer does not answer.
const REFUSAL_MS: u64 = 60_000;
/// A clock that was set back by less harms handshakes for a short time only.
const CLOCK_SHIFT_MS: i64 = 10_000;
/// The share of its time from which a packet thread counts as full.
const FULL: f64 = 0.9;
/// The share of its time below which a packet thread has room for the peers of another.
const HAS_ROOM: f64 = 0.5;
/// The load of a peer that moves between packet threads, in parts of their difference
/// (`dataplane/src/balance.rs`).
const MOVABLE: std::ops::RangeInclusive<f64> = 0.01..=2.0 / 3.0;
/// The share of the traffic from which one peer has most of it.
const MOST: f64 = 0.8;
/// The check of the daemon's finding that the interface is not up yet.
pub const STARTING: &str = "starting";
/// 1500 minus the IPv4 header, the UDP header and WireGuard's 32 bytes.
const USUAL_LARGEST_MTU: u16 = 1440;

/// Returns the findings about an interface, worst first, including those of the daemon.
pub fn diagnose(report: &StatusReport) -> Vec<Finding> {
    let mut findings = report.findings.clone();
    interface(report, &mut findings);
    peers(report, &mut findings);
    expired(report, &mut findings);
    shared_keys(report, &mut findings);
    sending(report, &mut findings);
    clock(report, &mut findings);
    mtu(report, &mut findings);
    buffers(report, &mut findings);
    offload(report, &mut findings);
    handshake_load(report, &mut findings);
    packet_threads(report, &mut findings);
    overflows(report, &mut findings);
    drops(report, &mut findings);
    findings.sort_by_key(|finding| Reverse(finding.level));
    findings
}

fn interface(report: &StatusReport, findings: &mut Vec<Finding>) {
    // Its key and peers come last.
    if report.findings.iter().any(|finding| finding.check == STARTING) {
        return;
    }
    if report.public_key.is_none() {
        findings.push(
            Finding::new(
                "no_private_key",
                Level::Problem,
                "the interface has no private key and does nothing",
            )
            .advise(format!("wg set {} private-key FILE", report.interface)),
        );
    }
    if report.peers.is_empty() {
        findings.push(Finding::new("no_peers", Level::Note, "there are no peers"));
    }
}

fn peers(report: &StatusReport, findings: &mut Vec<Finding>) {
    let of_peers = report.peers.iter().filter_map(|peer| Some((about_peer(peer, report)?, peer)));
    let mut of_peers: Vec<(Finding, &PeerReport)> = of_peers.collect();
    of_peers.sort_by_key(|(finding, _)| Reverse(finding.level));
    let more = of_peers.split_off(of_peers.len().min(NAMED_PEERS));
    findings.extend(of_peers.into_iter().map(|(finding, peer)| finding.about(peer.label())));
    if let Some((worst, _)) = more.first() {
        findings.push(Finding::new(
            "more_peers",
            worst.level.min(Level::Warning),
            format!("{} more peers do not answer or never did", more.len()),
        ));
    }
}

/// Names the peers that have ended: they get no answer, and their file is of no use. One that was set at run
/// time is let in all the same.
fn expired(report: &StatusReport, findings: &mut Vec<Finding>) {
    findings
        .extend(report.expired_peers.iter().take(NAMED_PEERS).filter_map(|peer| of_expired(report, peer)));
}

/// Returns what is said of a peer that has ended.
pub fn of_expired(report: &StatusReport, peer: &ExpiredPeerReport) -> Option<Finding> {
    peer.settings.expires.map(|expiry| {
        let name = &peer.settings.friendly_name;
        let word = name.as_ref().unwrap_or(&peer.public_key);
        let is_plain = |c: char| c.is_alphanumeric() || "+-./=_".contains(c);
        let quoted = shell_word(word.as_ref());
        let word = if word.chars().all(is_plain) { word.into() } else { quoted.to_string_lossy() };
        let finding = if report.peers.iter().any(|other| other.public_key == peer.public_key) {
            let message = format!("ended at {expiry}, but `wg set` or `weft set` has let it in again");
            Finding::new("expired", Level::Warning, message).advise(format!(
                "`weft peer extend {word} 30d` gives it another end, `weft set {} peer {word} remove` ends it now",
                report.interface
            ))
        } else {
            Finding::new("expired", Level::Note, format!("ended at {expiry} and is not let in")).advise(format!(
                "`weft peer extend {word} 30d` lets it in again, `weft peer remove {word}` takes it out of the file"
            ))
        };
        finding.about(name.clone().unwrap_or_else(|| short_key(&peer.public_key)))
    })
}

/// Returns what is wrong with a peer. A roaming peer that is silent, such as a phone that sleeps, is no
/// finding: it comes back by itself.
fn about_peer(peer: &PeerReport, report: &StatusReport) -> Option<Finding> {
    let is_expected = peer.settings.expected == Some(true);
    let had_time = report.uptime_ms >= FIRST_ANSWER_MS;
    match (&peer.endpoint, peer.latest_handshake_ms) {
        (None, None) if had_time && is_expected => Some(
            Finding::new("no_handshake", Level::Problem, "was never heard from, and is expected").advise(
                "see that the peer runs and that it has this interface's endpoint and public key, or give it an \
                 Endpoint here",
            ),
        ),
        (None, None) if report.recently_dropped_for(DropReason::NoEndpoint) > 0 => Some(
            Finding::new(
                "no_endpoint",
                Level::Warning,
                "has no endpoint and was never heard from; packets for it are dropped",
            )
            .advise("give it an Endpoint, or let it begin: it may need PersistentKeepalive on its side"),
        ),
        // The peer has to begin.
        (None, None) => None,
        (Some(_), _) if !is_to_be_reached(peer) => None,
        (Some(endpoint), None) if had_time && (peer.tx_bytes > 0 || is_expected) => Some(
            Finding::new(
                "no_handshake",
                Level::Problem,
                format!(
                    "no handshake yet: {} were sent to {endpoint}, and {}{}",
                    bytes(peer.tx_bytes),
                    refusal(peer).unwrap_or("nothing came back"),
                    waiting(peer),
                ),
            )
            .advise(
                "see that the peer runs and has this interface's public key, that its own key is right here, and \
                 that no firewall stands before its UDP port",
            ),
        ),
        (_, Some(ms)) if ms > SESSION_MS + RETRIES_MS && (wants_session(peer) || is_expected) => Some(
            Finding::new(
                "stale_handshake",
                Level::Problem,
                format!(
                    "the latest handshake was {} ago, and {}{}",
                    age(ms),
                    match refusal(peer) {
                        Some(refusal) => refusal,
                        None if wants_session(peer) => "new ones get no answer",
                        None => "the peer is expected",
                    },
                    waiting(peer),
                ),
            )
            .advise(
                "see that the peer still runs, that its address did not change (a name is resolved again by a \
                 reload), and that the network is there",
            ),
        ),
        _ => None,
    }
}

/// Returns what ICMP says of the endpoint now.
fn refusal(peer: &PeerReport) -> Option<&str> {
    let refusal = peer.refusal.as_ref()?;
    let is_current = refusal.age_ms <= REFUSAL_MS && peer.endpoint.as_ref() == Some(&refusal.endpoint);
    is_current.then_some(&*refusal.says)
}

/// Two machines with one key take the session from each other, and the endpoint follows.
fn shared_keys(report: &StatusReport, findings: &mut Vec<Finding>) {
    let alternating = report.peers.iter().filter_map(|peer| Some((peer, peer.alternation.as_ref()?)));
    for (peer, alternation) in alternating.take(NAMED_PEERS) {
        findings.push(
            Finding::new(
                "shared_key",
                Level::Warning,
                format!(
                    "its endpoint went back and forth between {} ({} times in {}): two machines seem to have its key",
                    alternation.endpoints.join(" and "),
                    alternation.returns,
                    age(alternation.first_ms.saturating_sub(alternation.latest_ms)),
                ),
            )
            .about(peer.label())
            .advise("give each machine a separate key and a separate [Peer]; one machine with two uplinks looks the same"),
        );
    }
}

/// Reports whether weft wants a session with the peer. Otherwise the peer may stay silent.
fn wants_session(peer: &PeerReport) -> bool {
    peer.is_trying || peer.staged_bytes > 0 || peer.persistent_keepalive.is_some()
}

/// Reports whether weft is expected to reach the peer. The file may say so. If it does not: a roaming peer,
/// such as a phone, may sleep at its last endpoint, and does not answer until it sends again.
fn is_to_be_reached(peer: &PeerReport) -> bool {
    let is_reachable = peer.persistent_keepalive.is_some() || peer.has_configured_endpoint;
    peer.settings.expected.unwrap_or(is_reachable)
}

/// Reports whether a peer should have a session: the file says so, or weft is expected to reach it, wants a
/// session, and knows its endpoint. A peer without an endpoint has to begin.
pub fn should_have_session(peer: &PeerReport) -> bool {
    let is_wanted = is_to_be_reached(peer) && wants_session(peer) && peer.endpoint.is_some();
    peer.settings.expected.unwrap_or(is_wanted)
}

/// Reports whether the peer has a session, judged by the age of its last handshake.
pub fn has_session(peer: &PeerReport) -> bool {
    peer.latest_handshake_ms.is_some_and(|ms| ms <= SESSION_MS + RETRIES_MS)
}

/// Returns why an interface is not ready, one sentence per reason: problems among the findings of the report,
/// and peers that should have a session but do not. Empty if it is ready.
pub fn unready(report: &StatusReport) -> Vec<String> {
    let problems: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.level == Level::Problem).collect();
    let mut sentences: Vec<String> = problems.iter().map(|problem| sentence(problem)).collect();
    let told = |label: &str| problems.iter().any(|problem| problem.about.as_deref() == Some(label));
    let lacking = report.peers.iter().filter(|peer| should_have_session(peer) && !has_session(peer));
    let (mut named, mut more) = (0, 0);
    for label in lacking.map(PeerReport::label).filter(|label| !told(label)) {
        if named < NAMED_PEERS {
            named += 1;
            sentences.push(format!("{label}: a handshake is needed, and none has completed yet"));
        } else {
            more += 1;
        }
    }
    if more > 0 {
        sentences.push(format!("{more} more peers should have a session and have none"));
    }
    sentences
}

fn sentence(finding: &Finding) -> String {
    let about = finding.about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
    format!("{about}{}", finding.says)
}

fn waiting(peer: &PeerReport) -> String {
    match peer.staged_bytes {
        0 => String::new(),
        staged => format!("; {} wait for it", bytes(staged)),
    }
}

fn sending(report: &StatusReport, findings: &mut Vec<Finding>) {
    // `mtu` reports datagrams that are too long.
    let Some(failure) = &report.send_failure else { return };
    if report.dropped_for(DropReason::UdpSendFailed) == 0 || failure.age_ms > SEND_FAILURE_MS {
        return;
    }
    let peer = report.peers.iter().find(|peer| peer.endpoint.as_ref() == Some(&failure.endpoint));
    // The peer completed a handshake since then, or has another endpoint now.
    if peer.is_none_or(|peer| peer.latest_handshake_ms.is_some_and(|ms| ms < failure.age_ms)) {
        return;
    }
    // All is sent now, and it answers.
    let answers = |peer: &PeerReport| peer.rates.is_some_and(|rates| rates.rx_bytes_per_second > 0);
    if peer.is_some_and(answers) && report.recently_dropped_for(DropReason::UdpSendFailed) == 0 {
        return;
    }
    let host = failure.endpoint.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    let mark = if report.fw_mark == 0 { String::new() } else { format!(" mark {:#x}", report.fw_mark) };
    let finding = Finding::new(
        "no_route",
        if peer.is_some_and(is_to_be_reached) { Level::Problem } else { Level::Warning },
        format!(
            "the kernel refused to send to {} {} ago: {}",
            failure.endpoint,
            age(failure.age_ms),
            failure.error
        ),
    );
    let finding = finding.advise(format!("ip route get {host}{mark}; nft list ruleset"));
    findings.push(match peer {
        Some(peer) => finding.about(peer.label()),
        None => finding,
    });
}

fn clock(report: &StatusReport, findings: &mut Vec<Finding>) {
    let wrong = rules::wrong_clock("clock_wrong", report.unix_time_ms);
    if let Some(wrong) = wrong.filter(|_| report.unix_time_ms != 0) {
        findings.push(wrong);
    } else if report.clock_shift_ms < -CLOCK_SHIFT_MS {
        findings.push(
            Finding::new(
                "clock_set_back",
                Level::Warning,
                format!(
                    "the clock was set back by {}: new peers reject handshakes now; if weft restarts, all peers reject \
                     them until the clock catches up",
                    age(report.clock_shift_ms.unsigned_abs())
                ),
            )
            .advise(
                "keep the clock synchronised (timedatectl set-ntp true); restarting the peers helps at once",
            ),
        );
    }
    if report.recently_dropped_for(DropReason::ReplayedHandshake) > 0 {
        findings.push(
            Finding::new(
                "peer_clock",
                Level::Warning,
                "a peer sends handshakes that are older than its last: its clock was set back, or its messages are \
                 replayed",
            )
            .advise("synchronise the clocks of the peers; bringing this interface down and up forgets their last handshakes"),
        );
    }
}

fn mtu(report: &StatusReport, findings: &mut Vec<Finding>) {
    let is_ipv6 = |net: &String| net.contains(':');
    let carries_ipv6 = report.addresses.iter().any(is_ipv6)
        || report.peers.iter().any(|peer| peer.allowed_ips.iter().any(is_ipv6));
    let mtu = report.mtu;
    if carries_ipv6 && mtu < MIN_MTU_IPV6 && mtu > 0 {
        findings.push(
            Finding::new(
                "mtu_small",
                Level::Warning,
                format!("MTU {mtu} is less than the {MIN_MTU_IPV6} that IPv6 needs"),
            )
            .advise("raise MTU to 1280 or more, or do without IPv6 in the tunnel"),
        );
    }
    let too_long = report.dropped_for(DropReason::DatagramTooLong);
    if too_long > 0 {
        findings.push(
            Finding::new(
                "mtu_large",
                Level::Warning,
                format!("{too_long} datagrams were longer than the path to a peer carries, with MTU {mtu}"),
            )
            .advise(format!(
                "lower MTU to that of the path less 80, as with `ip link set {} mtu 1280`",
                report.interface
            )),
        );
    } else if mtu > USUAL_LARGEST_MTU {
        findings.push(Finding::new(
            "mtu_large",
            Level::Note,
            format!("MTU {mtu} needs a network that carries more than 1500 bytes all the way to the peers"),
        ));
    }
    let batches = report.udp.batches_sent;
    if report.udp.gso_fallbacks > 100 && report.udp.gso_fallbacks > batches / 10 {
        findings.push(
            Finding::new(
                "gso_fallbacks",
                Level::Note,
                format!(
                    "{} of {batches} sends went as single datagrams: an MTU too large for the route, or a device \
                     without checksum offload",
                    report.udp.gso_fallbacks
                ),
            )
            .advise(format!("lower MTU below {mtu}")),
        );
    }
}

fn buffers(report: &StatusReport, findings: &mut Vec<Finding>) {
    let udp = &report.udp;
    for (which, sysctl, size, wanted) in [
        ("receive", "rmem_max", udp.receive_buffer_bytes, udp.wanted_receive_buffer_bytes),
        ("send", "wmem_max", udp.send_buffer_bytes, udp.wanted_send_buffer_bytes),
    ] {
        let Some(level) = rules::buffer_level(size, wanted).filter(|level| *level > Level::Ok) else {
            continue;
        };
        findings.push(
            Finding::new(
                "udp_buffers",
                level,
                format!("the UDP {which} buffer has {}: bursts of a fast link get lost", bytes(size)),
            )
            .advise(format!("sysctl -w net.core.{sysctl}={wanted} and restart, or give weft CAP_NET_ADMIN")),
        );
    }
}

/// Reports a handshake load that exceeds the time for handshakes.
fn handshake_load(report: &StatusReport, findings: &mut Vec<Finding>) {
    let Some(ms) = report.tunnel.handshake_load_ms else { return };
    let of = |reason| report.recently_dropped_for(reason);
    let lately = match &report.recent {
        Some(recent) => format!(
            "; within {:.1} s {} were asked for a cookie and {} refused",
            recent.window_ms as f64 / 1000.0,
            of(DropReason::CookieRequired),
            of(DropReason::HandshakeRateLimited),
        ),
        None => String::new(),
    };
    findings.push(
        Finding::new(
            "handshake_load",
            Level::Warning,
            format!(
                "more handshakes arrive than a tenth of the packet thread can do, for {}{lately}",
                age(ms)
            ),
        )
        .advise("peers still connect, after a retry; a firewall can limit UDP to the port by source"),
    );
}

/// Reports that the kernel does not choose the packet threads, and a packet thread that is full: of the
/// traffic of one peer, or of several, while another has room.
fn packet_threads(report: &StatusReport, findings: &mut Vec<Finding>) {
    let threads = &report.packet_threads;
    let are_several = threads.len() > 1;
    if are_several && !report.udp.steered {
        findings.push(
            Finding::new(
                "not_steered",
                Level::Note,
                "the kernel does not choose the packet thread of each datagram, and most are copied between threads: \
                 slower",
            )
            .advise("use Linux 4.5 or newer (SO_ATTACH_REUSEPORT_CBPF), or --packet-threads 1"),
        );
    }
    let Some(recent) = report.recent.as_ref().filter(|recent| recent.busy >= FULL) else { return };
    let busy = |number: usize| threads[number].busy.unwrap_or_default();
    let busiest = (0..threads.len()).max_by(|&a, &b| busy(a).total_cmp(&busy(b))).filter(|_| are_several);
    let sum = |rates: Rates| rates.tx_bytes_per_second.saturating_add(rates.rx_bytes_per_second);
    let of_peers = report.peers.iter().filter(|peer| busiest.is_none() || peer.packet_thread == busiest);
    let of_peers = of_peers.filter_map(|peer| Some((sum(peer.rates?), peer))).filter(|(bytes, _)| *bytes > 0);
    let total = match busiest {
        Some(_) => total(of_peers.clone().map(|(bytes, _)| bytes)),
        None => sum(recent.rates),
    };
    let of_full = of_peers.clone();
    let Some((most, peer)) = of_peers.max_by_key(|(bytes, _)| *bytes) else { return };
    if most as f64 >= MOST * total as f64 {
        let what = if are_several { "fills a packet thread" } else { "fills the packet thread" };
        findings.push(
            Finding::new("one_big_peer", Level::Note, format!("{what}: one core works for it"))
                .about(peer.label())
                .advise(
                    "several interfaces to this peer, and a route over all of them (docs/GATEWAY.md, One big peer)",
                ),
        );
        return;
    }
    let Some(full) = busiest else { return };
    let idlest = (0..threads.len()).min_by(|&a, &b| busy(a).total_cmp(&busy(b))).unwrap_or(full);
    // As `weft-balance` decides: such a peer moves by itself.
    let difference = busy(full) - busy(idlest);
    let may_move = |bytes: u64| MOVABLE.contains(&(busy(full) * bytes as f64 / total as f64 / difference));
    if busy(idlest) < HAS_ROOM && !of_full.clone().any(|(bytes, _)| may_move(bytes)) {
        findings.push(Finding::new(
            "uneven_packet_threads",
            Level::Note,
            format!(
                "packet thread {full} with {} of the peers is full, and packet thread {idlest} with {} of them is busy \
                 for {:.0} % of its time: no peer is of the right size to move",
                threads[full].peers,
                threads[idlest].peers,
                100.0 * busy(idlest),
            ),
        ));
    }
}

/// Reports packets and datagrams that the kernel dropped before weft read them.
fn overflows(report: &StatusReport, findings: &mut Vec<Finding>) {
    let Some(recent) = &report.recent else { return };
    for (code, count, what) in [
        ("tun_overflow", recent.queue_overflows, "packets did not fit the queue of the TUN"),
        ("udp_overflow", recent.receive_overflows, "datagrams did not fit the UDP receive buffer"),
    ] {
        if count > 0 {
            findings.push(
                Finding::new(
                    code,
                    Level::Warning,
                    format!("{count} {what} just now: weft did not read them in time"),
                )
                .advise(
                    "give weft more CPU time (CPUWeight= of its unit, --realtime), or other programs less",
                ),
            );
        }
    }
}

fn offload(report: &StatusReport, findings: &mut Vec<Finding>) {
    if report.pid == 0 {
        // The report was not filled in.
        return;
    }
    if !report.udp.gso {
        findings.push(
            Finding::new("no_gso", Level::Note, "every datagram is sent by itself (no UDP GSO): slower")
                .advise("use Linux 4.18 or newer; --no-offload switches it off, too"),
        );
    }
    if !report.tun.tcp_offload {
        findings.push(
            Finding::new(
                "no_tun_offload",
                Level::Note,
                "every packet passes the TUN by itself (no TSO): slower",
            )
            .advise("--no-offload switches it off"),
        );
    }
}

fn drops(report: &StatusReport, findings: &mut Vec<Finding>) {
    for reason in DropReason::ALL {
        let packets = report.recently_dropped_for(reason);
        if packets > 0
            && let Some((level, what, advice)) = explain(reason)
        {
            let seconds = report.recent.as_ref().map_or(0, |recent| recent.window_ms) as f64 / 1000.0;
            let says = format!("{packets} dropped within {seconds:.1} s: {what}");
            findings.push(Finding::new(&format!("drops_{}", reason.label()), level, says).advise(advice));
        }
    }
}

#[cfg(test)]
#[path = "diagnose/tests.rs"]
mod tests;
