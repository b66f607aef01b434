//! Peers without a session when the flood comes: strangers with a valid key that want a session, and peers
//! that the gateway has a first packet for.

use std::io;
use std::net::UdpSocket;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::site::{Site, awaited_peer};
use crate::peers::client::{Client, Workbench};
use crate::peers::packet::{HEADERS, STAMP, Stamp};
use crate::site::GATEWAY;

/// Time for three retries: a handshake is retried after 5 s and up to a third of a second (whitepaper,
/// section 6.4).
pub(super) const LIMIT: Duration = Duration::from_secs(17);
/// Interval between the first packets to two peers.
const AWAITED_EVERY: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(1);
/// Ports in the tunnel: of the visitors, and of the gateway's sink.
const VISITOR: u16 = 4002;
const SINK: u16 = 4000;

/// The results of all visitors.
#[derive(Clone, Debug)]
pub(super) struct Visits {
    /// Initiations that each stranger needed; `None` for one without a session.
    pub(super) strangers: Vec<Option<u64>>,
    /// Time of the first packet to each awaited peer, in milliseconds; `None` if it did not arrive.
    pub(super) first_packets: Vec<Option<f64>>,
}

/// A thread with all visitors, which ends once they have succeeded, after [`LIMIT`] at the latest.
pub(super) type Visitors = JoinHandle<io::Result<Visits>>;

struct Awaited {
    client: Client,
    sent: Option<Instant>,
    took: Option<Duration>,
}

/// Starts all strangers at once; with absent peers (in a scan) it also starts the awaited peers.
pub(super) fn start(site: &Site) -> Result<Visitors> {
    let strangers = site.strangers()?;
    let awaited = if site.absent > 0 { site.awaited()? } else { Vec::new() };
    let awaited = awaited.into_iter().map(|client| Awaited { client, sent: None, took: None }).collect();
    let sender = site.networks.inside.run(|| UdpSocket::bind((GATEWAY, 0)))?;
    let visit = move || visit(strangers, awaited, &sender);
    Ok(std::thread::Builder::new().name("visitors".to_owned()).spawn(visit)?)
}

fn visit(mut strangers: Vec<Client>, mut awaited: Vec<Awaited>, sender: &UdpSocket) -> io::Result<Visits> {
    let mut bench = Workbench::new();
    let start = Instant::now();
    let stamp = Stamp::default();
    for stranger in &mut strangers {
        stranger.send((VISITOR, SINK), HEADERS + STAMP, stamp, 1, start, &mut bench)?;
    }
    let mut tries: Vec<Option<u64>> = vec![None; strangers.len()];
    let mut next = 0;
    loop {
        let now = Instant::now();
        if next < awaited.len() && now >= start + AWAITED_EVERY * next as u32 {
            awaited[next].sent = Some(now);
            // A packet that the socket does not accept is lost.
            let _ = sender.send_to(&[0; STAMP], (awaited_peer(next), VISITOR));
            next += 1;
        }
        for (stranger, tries) in strangers.iter_mut().zip(&mut tries) {
            stranger.receive(now, &mut bench, |_, _| {})?;
            stranger.timers(now, &mut bench)?;
            if tries.is_none() && stranger.has_session() {
                *tries = Some(stranger.initiations());
            }
        }
        for Awaited { client, sent, took } in &mut awaited {
            client.receive(now, &mut bench, |port, _| {
                if port == VISITOR && took.is_none() {
                    *took = sent.map(|sent| now.saturating_duration_since(sent));
                }
            })?;
            client.timers(now, &mut bench)?;
        }
        let is_done = tries.iter().all(Option::is_some) && awaited.iter().all(|peer| peer.took.is_some());
        if is_done || now.saturating_duration_since(start) >= LIMIT {
            let millis = |peer: &Awaited| peer.took.map(|took| took.as_secs_f64() * 1000.0);
            return Ok(Visits { strangers: tries, first_packets: awaited.iter().map(millis).collect() });
        }
        std::thread::sleep(TICK);
    }
}
