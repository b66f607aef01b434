//! The traffic between the gateway and its client.

use std::net::IpAddr;

use anyhow::Result;
use weft_lab::numbered::{Numbered, NumberedOptions, NumberedReport, Replies};
use weft_lab::traffic::Amount;

use super::figures::Lost;
use super::progress::Watch;
use super::requests::Requests;
use super::site::Site;
use crate::floods::load::PacedStream;
use crate::floods::pinger::{self, Ping, Pinger};
use crate::floods::site::CLIENT;
use crate::site::GATEWAY;

/// The names of flows in faults.
const TO_GATEWAY: &str = "bulk to the gateway";
const FROM_GATEWAY: &str = "bulk from the gateway";

/// What goes on from the beginning to the end, restarts included.
pub(super) struct Lasting {
    to_gateway: PacedStream,
    from_gateway: PacedStream,
    ordered: Numbered,
    pub(super) requests: Requests,
    pub(super) watch: Watch,
}

/// What begins and ends with an interval.
pub(super) struct Passing {
    flows: [Numbered; 2],
    pinger: Pinger,
}

/// What the flows of an interval saw.
pub(super) struct Passed {
    pub(super) flows: [NumberedReport; 2],
    pub(super) pings: Vec<Ping>,
}

impl Lasting {
    pub(super) fn start(site: &Site, mbit: u32) -> Result<Self> {
        let (client, gateway) = (&site.networks.client, &site.networks.inside);
        let to_gateway = PacedStream::start(client, gateway, GATEWAY, mbit * 2 / 3)?;
        let from_gateway = PacedStream::start(gateway, client, CLIENT, mbit / 3)?;
        let options = NumberedOptions {
            flows: 16,
            datagrams_per_second: 400,
            amount: Amount::Count(u64::MAX),
            replies: Replies::EveryPackets(1),
            ..NumberedOptions::default()
        };
        let ordered = Numbered::start(client, IpAddr::from(CLIENT), gateway, IpAddr::from(GATEWAY), options)?;
        let requests = Requests::start(client, gateway)?;
        let watch = Watch::start(vec![
            (TO_GATEWAY, Box::new(to_gateway.counter())),
            (FROM_GATEWAY, Box::new(from_gateway.counter())),
        ])?;
        Ok(Self { to_gateway, from_gateway, ordered, requests, watch })
    }

    /// Returns the bytes of bulk to the gateway and from it so far.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [self.to_gateway.bytes(), self.from_gateway.bytes()]
    }

    /// Ends everything, and returns what was wrong.
    pub(super) fn finish(self) -> Vec<String> {
        let mut faults = Vec::new();
        drop(self.watch);
        drop(self.requests);
        for (name, stream) in [(TO_GATEWAY, self.to_gateway), (FROM_GATEWAY, self.from_gateway)] {
            if let Err(error) = stream.finish() {
                faults.push(format!("{name}: {error:#}"));
            }
        }
        self.ordered.stop();
        faults.extend(disorder("flows through restarts", &self.ordered.finish()));
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
            amount: Amount::Count(u64::MAX),
            replies: Replies::EveryPackets(4),
            ..NumberedOptions::default()
        };
        let networks = &site.networks;
        let (client, gateway) =
            ((&networks.client, IpAddr::from(CLIENT)), (&networks.inside, IpAddr::from(GATEWAY)));
        let flows = |from: (_, _), to: (_, _)| Numbered::start(from.0, from.1, to.0, to.1, options);
        Ok(Self {
            flows: [flows(client, gateway)?, flows(gateway, client)?],
            pinger: pinger::start(&networks.client)?,
        })
    }

    /// Ends the flows, and waits for what is on its way.
    pub(super) fn finish(self) -> Result<Passed> {
        self.flows.iter().for_each(Numbered::stop);
        let pings = self.pinger.finish()??;
        Ok(Passed { flows: self.flows.map(Numbered::finish), pings })
    }
}

impl Passed {
    /// Returns the packets sent, replies included, and those that did not arrive.
    pub(super) fn sent_and_lost(&self) -> (u64, Lost) {
        let tallies = self.flows.iter().flat_map(|report| [report.forward, report.replies]);
        let (sent, flows) =
            tallies.fold((0, 0), |(sent, lost), tally| (sent + tally.sent, lost + tally.lost));
        let pings = self.pings.iter().filter(|ping| ping.took.is_none()).count() as u64;
        (sent + self.pings.len() as u64, Lost { flows, pings, peers: 0 })
    }

    /// Returns what was wrong, besides losses.
    pub(super) fn faults(&self) -> Vec<String> {
        let names = ["flows to the gateway", "flows from the gateway"];
        names.iter().zip(&self.flows).filter_map(|(name, report)| disorder(name, report)).collect()
    }
}

/// Tells of packets out of order, twice or changed.
fn disorder(name: &str, report: &NumberedReport) -> Option<String> {
    let is_clean = [report.forward, report.replies]
        .iter()
        .all(|tally| (tally.out_of_order, tally.duplicates, tally.corrupt) == (0, 0, 0));
    (!is_clean).then(|| format!("{name}: out of order, twice or changed: {report:?}"))
}
