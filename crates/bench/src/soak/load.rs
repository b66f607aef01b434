//! The traffic between the gateway and its client.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_lab::Namespace;
use weft_lab::numbered::{Numbered, NumberedOptions, NumberedReport, Replies};
use weft_lab::traffic::Amount;

use super::site::Site;
use crate::floods::load::PacedStream;
use crate::floods::pinger::{self, Ping, Pinger};
use crate::floods::site::CLIENT;
use crate::site::GATEWAY;

/// A stream that goes on from the beginning to the end.
pub(super) struct Bulk {
    pub(super) name: &'static str,
    stream: PacedStream,
    bytes: u64,
    since: Instant,
}

impl Bulk {
    /// Returns the bytes so far, and how long there was no other number of them.
    pub(super) fn look(&mut self) -> (u64, Duration) {
        let (now, bytes) = (Instant::now(), self.stream.bytes());
        let pause = now - self.since;
        if bytes != self.bytes {
            (self.bytes, self.since) = (bytes, now);
        }
        (bytes, pause)
    }
}

pub(super) struct Lasting {
    pub(super) bulk: [Bulk; 2],
    ordered: Numbered,
}

pub(super) struct Passing {
    flows: [Numbered; 2],
    pinger: Pinger,
}

/// Starts numbered flows that end when they are told to.
fn flows(from: (&Namespace, IpAddr), to: (&Namespace, IpAddr), options: NumberedOptions) -> Result<Numbered> {
    let options = NumberedOptions { amount: Amount::Count(u64::MAX), ..options };
    Ok(Numbered::start(from.0, from.1, to.0, to.1, options)?)
}

fn ends(site: &Site) -> [(&Namespace, IpAddr); 2] {
    [(&site.networks.client, CLIENT.into()), (&site.networks.inside, GATEWAY.into())]
}

impl Lasting {
    pub(super) fn start(site: &Site, mbit: u32) -> Result<Self> {
        let [(client, _), (gateway, _)] = ends(site);
        let bulk = |name, stream| Bulk { name, stream, bytes: 0, since: Instant::now() };
        let to_gateway = PacedStream::start(client, gateway, GATEWAY, mbit * 2 / 3)?;
        let from_gateway = PacedStream::start(gateway, client, CLIENT, mbit / 3)?;
        let [client, gateway] = ends(site);
        let options = NumberedOptions {
            flows: 16,
            datagrams_per_second: 400,
            replies: Replies::EveryPackets(1),
            ..NumberedOptions::default()
        };
        let ordered = flows(client, gateway, options)?;
        Ok(Self {
            bulk: [bulk("to the gateway", to_gateway), bulk("from the gateway", from_gateway)],
            ordered,
        })
    }

    /// Ends everything, and returns what was wrong.
    pub(super) fn finish(self) -> Vec<String> {
        let mut faults = Vec::new();
        for Bulk { name, stream, .. } in self.bulk {
            faults.extend(stream.finish().err().map(|error| format!("bulk {name}: {error:#}")));
        }
        self.ordered.stop();
        faults.extend(disorder(&self.ordered.finish()));
        faults
    }
}

impl Passing {
    pub(super) fn start(site: &Site) -> Result<Self> {
        let options = NumberedOptions {
            flows: 8,
            datagrams_per_second: 1000,
            burst: 4,
            segmentation_offload: true,
            replies: Replies::EveryPackets(4),
            ..NumberedOptions::default()
        };
        let [client, gateway] = ends(site);
        let flows = [flows(client, gateway, options)?, flows(gateway, client, options)?];
        Ok(Self { flows, pinger: pinger::start(&site.networks.client, GATEWAY)? })
    }

    /// Ends the flows, waits for what is on its way, and returns what they saw.
    pub(super) fn finish(self) -> Result<([NumberedReport; 2], Vec<Ping>)> {
        self.flows.iter().for_each(Numbered::stop);
        let pings = self.pinger.finish()??;
        Ok((self.flows.map(Numbered::finish), pings))
    }
}

/// Tells of packets out of order, twice or changed.
pub(super) fn disorder(report: &NumberedReport) -> Option<String> {
    let is_clean = [report.forward, report.replies]
        .iter()
        .all(|tally| (tally.out_of_order, tally.duplicates, tally.corrupt) == (0, 0, 0));
    (!is_clean).then(|| format!("out of order, twice or changed: {report:?}"))
}
