//! The state of the view: the last report, the history before it, and the choices of the user.

use std::cmp::Ordering;
use std::collections::HashMap;

use ratatui::style::{Color, Style};
use weft_report::finding::Finding;
use weft_report::{PeerReport, StatusReport, add_recent, diagnose, total};

use super::Look;
use super::history::History;

/// The sort key of the peers.
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

/// What the screen shows below the rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The peers, and what waits, threads and queues.
    Interface,
    /// The selected peer.
    Peer,
    /// What the keys do.
    Help,
}

/// The history of the rates of a peer or a queue, in bytes per second.
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
    /// Why the last poll of the daemon failed.
    pub(super) trouble: Option<String>,
    /// Bytes per second.
    pub(super) inbound: History,
    /// Bytes per second.
    pub(super) outbound: History,
    /// Packets per second.
    pub(super) drops: History,
    pub(super) peers: HashMap<String, Histories>,
    /// The shares of the time that the packet threads were busy, in thousandths.
    pub(super) threads: Vec<History>,
    /// The histories of the TUN queues, by queue number.
    pub(super) queues: Vec<Histories>,
    /// Indices into the peers of the report, in the order in which they are shown.
    pub(super) order: Vec<usize>,
    /// The public key of the selected peer.
    selected: Option<String>,
    /// The first line that is shown; updated when the table is drawn.
    pub(super) offset: usize,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
    pub(super) view: View,
    /// Peers are shown that have this in their name, key, endpoint or allowed IPs.
    pub(super) filter: String,
    /// Whether keys are letters of the filter.
    pub(super) is_typing: bool,
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
            threads: Vec::new(),
            queues: Vec::new(),
            order: Vec::new(),
            selected: None,
            offset: 0,
            sort: Sort::RateIn,
            is_reversed: false,
            is_paused: false,
            view: View::Interface,
            filter: String::new(),
            is_typing: false,
        }
    }

    /// Returns a style with this colour, or without colour if colours are off.
    pub(super) fn coloured(&self, colour: Color) -> Style {
        if self.is_coloured { Style::new().fg(colour) } else { Style::new() }
    }

    /// Processes the result of a poll of the daemon, unless the view is paused.
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
            let dropped = total(recent.drops.iter().map(|drop| drop.packets));
            self.drops.push(dropped.saturating_mul(1000) / recent.window_ms.max(1));
        }
        let mut before = std::mem::take(&mut self.peers);
        for peer in &report.peers {
            // The histories of removed peers are dropped.
            let mut history = before.remove(&peer.public_key).unwrap_or_default();
            if let Some(rates) = peer.rates {
                history.inbound.push(rates.rx_bytes_per_second);
                history.outbound.push(rates.tx_bytes_per_second);
            }
            self.peers.insert(peer.public_key.clone(), history);
        }
        self.threads.resize_with(report.packet_threads.len(), History::default);
        for (history, thread) in self.threads.iter_mut().zip(&report.packet_threads) {
            if let Some(busy) = thread.busy {
                history.push((1000.0 * busy) as u64);
            }
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

    /// Filters and sorts the peers.
    pub(super) fn arrange(&mut self) {
        let Some(report) = &self.report else { return };
        let compare = |a: &PeerReport, b: &PeerReport| -> Ordering {
            let rates = |peer: &PeerReport| peer.rates.unwrap_or_default();
            // Largest rates and totals first.
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
        fn name(peer: &PeerReport) -> &str {
            peer.settings.friendly_name.as_ref().unwrap_or(&peer.public_key)
        }
        let wanted = self.filter.to_lowercase();
        let has_it = |text: &str| text.to_lowercase().contains(&wanted);
        let is_wanted = |peer: &PeerReport| {
            let texts = peer.settings.friendly_name.iter().chain([&peer.public_key]);
            let mut texts = texts.chain(&peer.endpoint).chain(&peer.allowed_ips);
            wanted.is_empty() || texts.any(|text| has_it(text))
        };
        let mut order: Vec<usize> = (0..report.peers.len()).collect();
        order.retain(|&place| is_wanted(&report.peers[place]));
        order.sort_by(|&a, &b| {
            let (a, b) = (&report.peers[a], &report.peers[b]);
            let by_choice = compare(a, b);
            let by_choice = if self.is_reversed { by_choice.reverse() } else { by_choice };
            // Equal peers keep their places.
            by_choice.then_with(|| name(a).cmp(name(b))).then_with(|| a.public_key.cmp(&b.public_key))
        });
        self.order = order;
    }

    /// Sorts by this key. If the peers are sorted by it already, reverses the order.
    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.is_reversed = self.sort == sort && !self.is_reversed;
        self.sort = sort;
        self.arrange();
    }

    pub(super) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.arrange();
    }

    /// Shows the peer with this public key alone.
    pub(super) fn show_peer(&mut self, key: String) {
        self.selected = Some(key);
        self.view = View::Peer;
    }

    /// Returns the peer that the view is about, if it is about one that is there.
    pub(super) fn peer(&self) -> Option<&PeerReport> {
        let selected = self.selected.as_ref().filter(|_| self.view == View::Peer)?;
        self.report.as_ref()?.peers.iter().find(|peer| peer.public_key == *selected)
    }

    /// Returns the line of the selected peer; 0 if no peer is selected or the peer was removed.
    pub(super) fn selected_line(&self) -> usize {
        let Some((report, selected)) = self.report.as_ref().zip(self.selected.as_ref()) else { return 0 };
        let is_selected = |&place: &usize| report.peers[place].public_key == *selected;
        self.order.iter().position(is_selected).unwrap_or_default()
    }

    /// Selects the peer in this line, or the last peer if there are fewer lines.
    pub(super) fn select_line(&mut self, line: usize) {
        let Some(report) = &self.report else { return };
        let place = self.order.get(line).or(self.order.last());
        self.selected = place.map(|&place| report.peers[place].public_key.clone());
    }
}

#[cfg(test)]
#[path = "app/tests.rs"]
pub(super) mod tests;
