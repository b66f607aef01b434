//! What the view shows: the last report, what came before it, and what the user chose.

use std::cmp::Ordering;
use std::collections::HashMap;

use weft_report::finding::Finding;
use weft_report::{PeerReport, StatusReport, add_recent, diagnose};

use super::Look;
use super::history::History;

/// By what the peers are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    Handshake,
    RateIn,
    RateOut,
    TotalIn,
    TotalOut,
}

impl Sort {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Handshake => "handshake",
            Self::RateIn => "rate in",
            Self::RateOut => "rate out",
            Self::TotalIn => "total in",
            Self::TotalOut => "total out",
        }
    }
}

/// The rates of a peer or a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Histories {
    pub(super) inbound: History,
    pub(super) outbound: History,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct App {
    pub(super) name: String,
    pub(super) is_coloured: bool,
    pub(super) report: Option<StatusReport>,
    pub(super) findings: Vec<Finding>,
    /// Why the last look gave nothing.
    pub(super) trouble: Option<String>,
    /// Bytes a second.
    pub(super) inbound: History,
    /// Bytes a second.
    pub(super) outbound: History,
    /// Packets a second.
    pub(super) drops: History,
    pub(super) peers: HashMap<String, Histories>,
    /// Those of the TUN's queues, in their order.
    pub(super) queues: Vec<Histories>,
    /// Places in the report's list of peers, as they are shown.
    pub(super) order: Vec<usize>,
    /// The key of the chosen peer.
    selected: Option<String>,
    /// The first line that is shown; kept by the drawing.
    pub(super) offset: usize,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
}

impl App {
    pub(super) fn new(name: &str, is_coloured: bool) -> Self {
        Self {
            name: name.to_owned(),
            is_coloured,
            report: None,
            findings: Vec::new(),
            trouble: None,
            inbound: History::default(),
            outbound: History::default(),
            drops: History::default(),
            peers: HashMap::new(),
            queues: Vec::new(),
            order: Vec::new(),
            selected: None,
            offset: 0,
            sort: Sort::RateIn,
            is_reversed: false,
            is_paused: false,
        }
    }

    /// Takes what a look at the daemon gave.
    pub(super) fn take(&mut self, look: Look) {
        if self.is_paused {
            return;
        }
        match look {
            Ok(report) => self.update(*report),
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn update(&mut self, mut report: StatusReport) {
        self.trouble = None;
        if let Some(before) = &self.report {
            add_recent(&mut report, before);
        }
        if let Some(recent) = &report.recent {
            self.inbound.push(recent.rates.rx_bytes_per_second);
            self.outbound.push(recent.rates.tx_bytes_per_second);
            let dropped: u64 = recent.drops.iter().map(|drop| drop.packets).sum();
            self.drops.push(dropped.saturating_mul(1000) / recent.window_ms.max(1));
        }
        let mut before = std::mem::take(&mut self.peers);
        for peer in &report.peers {
            // Those that were taken away are forgotten.
            let mut history = before.remove(&peer.public_key).unwrap_or_default();
            if let Some(rates) = peer.rates {
                history.inbound.push(rates.rx_bytes_per_second);
                history.outbound.push(rates.tx_bytes_per_second);
            }
            self.peers.insert(peer.public_key.clone(), history);
        }
        self.queues.resize_with(report.tun.queues.len(), Histories::default);
        for (history, queue) in self.queues.iter_mut().zip(&report.tun.queues) {
            if let Some(rates) = queue.rates {
                history.inbound.push(rates.rx_bytes_per_second);
                history.outbound.push(rates.tx_bytes_per_second);
            }
        }
        self.findings = diagnose(&report);
        self.report = Some(report);
        self.arrange();
    }

    /// Orders the peers anew.
    fn arrange(&mut self) {
        let Some(report) = &self.report else { return };
        let compare = |a: &PeerReport, b: &PeerReport| -> Ordering {
            let rates = |peer: &PeerReport| peer.rates.unwrap_or_default();
            // The most first, as one wants to see it.
            match self.sort {
                Sort::Name => a.label().cmp(&b.label()),
                Sort::Handshake => {
                    let age = |peer: &PeerReport| peer.latest_handshake_ms.unwrap_or(u64::MAX);
                    age(a).cmp(&age(b))
                }
                Sort::RateIn => rates(b).rx_bytes_per_second.cmp(&rates(a).rx_bytes_per_second),
                Sort::RateOut => rates(b).tx_bytes_per_second.cmp(&rates(a).tx_bytes_per_second),
                Sort::TotalIn => b.rx_bytes.cmp(&a.rx_bytes),
                Sort::TotalOut => b.tx_bytes.cmp(&a.tx_bytes),
            }
        };
        let mut order: Vec<usize> = (0..report.peers.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (&report.peers[a], &report.peers[b]);
            let by_choice = compare(a, b);
            let by_choice = if self.is_reversed { by_choice.reverse() } else { by_choice };
            // Peers that are level stay where they are.
            by_choice.then_with(|| a.public_key.cmp(&b.public_key))
        });
        self.order = order;
    }

    /// Orders by something else; by the same again: the other way round.
    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.is_reversed = self.sort == sort && !self.is_reversed;
        self.sort = sort;
        self.arrange();
    }

    pub(super) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.arrange();
    }

    /// The line of the chosen peer, the first if none is chosen or it went away.
    pub(super) fn selected_line(&self) -> usize {
        let Some((report, selected)) = self.report.as_ref().zip(self.selected.as_ref()) else { return 0 };
        let is_selected = |&place: &usize| report.peers[place].public_key == *selected;
        self.order.iter().position(is_selected).unwrap_or_default()
    }

    /// Chooses a peer by its line, the last one if there are fewer.
    pub(super) fn select_line(&mut self, line: usize) {
        let Some(report) = &self.report else { return };
        let place = self.order.get(line).or(self.order.last());
        self.selected = place.map(|&place| report.peers[place].public_key.clone());
    }
}

#[cfg(test)]
#[path = "app/tests.rs"]
pub(super) mod tests;
