//! The properties of a link, as text: `rate=500mbit,delay=10ms,queue=bdp,loss=0.1%`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Shown in error messages.
const EXAMPLE: &str = "rate=500mbit,delay=10ms,queue=bdp,loss=0.1%,reorder=0.5%";
/// Minimum of the default queue, in bytes: one super-packet of a sender.
const SMALLEST_DEFAULT_QUEUE: u64 = 64 * 1024;
/// Default extra delay of a reordered frame.
const REORDER_BY: Duration = Duration::from_millis(1);
const MAX_RATE: f64 = 100e9;
const MAX_TIME: Duration = Duration::from_secs(60);
const MAX_QUEUE: f64 = 1e9;

/// The properties of a link, identical in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bits a second, of whole Ethernet frames as the kernel counts them (no preamble, no frame check
    /// sequence). `None`: no limit, and no queue either.
    pub rate: Option<u64>,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Capacity of the transmission queue in each direction.
    pub queue: Queue,
    /// Share of frames that are lost after their transmission: 0 to 1.
    pub loss: f64,
    /// Share of frames that arrive late, behind frames sent after them: 0 to 1.
    pub reorder: f64,
    /// Extra delay of a late frame.
    pub reorder_by: Duration,
    /// Seed of the random choice of lost and late frames: the same seed chooses the same frames.
    pub seed: u64,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self {
            rate: None,
            delay: Duration::ZERO,
            queue: Queue::Default,
            loss: 0.0,
            reorder: 0.0,
            reorder_by: REORDER_BY,
            seed: 1,
        }
    }
}

/// Capacity of a drop-tail queue, the frame in transmission included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// One bandwidth-delay product, at least 64 KiB.
    Default,
    /// One bandwidth-delay product: rate × 2 × delay.
    BandwidthDelayProduct,
    Bytes(u64),
    /// Frames of any length.
    Packets(u32),
    /// The bytes that the link transmits in this time.
    Time(Duration),
}

/// Queue capacity of a link with a known rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Bytes of frames.
    Bytes(u64),
    /// Frames.
    Packets(u32),
}

/// Why a text does not describe a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLink {
    /// A part without an equals sign.
    #[error("`{0}` is not KEY=VALUE; write for example {EXAMPLE}")]
    NotAPair(String),
    #[error("a link has no `{0}`, only rate, delay, queue, loss, reorder, reorder-by and seed")]
    UnknownKey(String),
    /// A key that occurs twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// A value that the key does not accept.
    #[error("{key}={value}: {expected}")]
    Value {
        key: &'static str,
        /// The rejected value.
        value: String,
        /// Description of the accepted values.
        expected: &'static str,
    },
}

impl LinkSpec {
    /// Returns the capacity of the queue; `None` without a rate, because then no frame waits.
    pub fn limit(&self) -> Option<Limit> {
        let rate = self.rate?;
        let during = |time: Duration| {
            let bytes = u128::from(rate) * time.as_nanos() / 8_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        Some(match self.queue {
            Queue::Default => Limit::Bytes(during(2 * self.delay).max(SMALLEST_DEFAULT_QUEUE)),
            Queue::BandwidthDelayProduct => Limit::Bytes(during(2 * self.delay)),
            Queue::Bytes(bytes) => Limit::Bytes(bytes),
            Queue::Packets(packets) => Limit::Packets(packets),
            Queue::Time(time) => Limit::Bytes(during(time)),
        })
    }

    /// Checks that the queue is possible: it needs a rate, and a bandwidth-delay product needs a delay.
    fn check(&self) -> Result<(), InvalidLink> {
        let needs = |value: &str, expected| {
            Err(InvalidLink::Value { key: "queue", value: value.to_owned(), expected })
        };
        match self.queue {
            Queue::Default => Ok(()),
            _ if self.rate.is_none() => {
                needs(&self.queue.to_string(), "without a rate nothing waits; add rate=…")
            }
            Queue::BandwidthDelayProduct if self.delay.is_zero() => {
                needs("bdp", "the product is zero without a delay; add delay=… or write a size")
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for LinkSpec {
    type Err = InvalidLink;

    fn from_str(text: &str) -> Result<Self, InvalidLink> {
        let mut spec = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| InvalidLink::NotAPair(part.to_owned()))?;
            let (key, value) = (key.trim(), value.trim().to_ascii_lowercase());
            if seen.contains(&key) {
                return Err(InvalidLink::Twice(key.to_owned()));
            }
            seen.push(key);
            match key {
                "rate" => spec.rate = Some(rate(&value)?),
                "delay" => spec.delay = time("delay", &value)?,
                "queue" => spec.queue = queue(&value)?,
                "loss" => spec.loss = share("loss", &value)?,
                "reorder" => spec.reorder = share("reorder", &value)?,
                "reorder-by" => spec.reorder_by = time("reorder-by", &value)?,
                "seed" => spec.seed = value.parse().map_err(|_| invalid("seed", &value, "a whole number"))?,
                _ => return Err(InvalidLink::UnknownKey(key.to_owned())),
            }
        }
        spec.check()?;
        Ok(spec)
    }
}

fn invalid(key: &'static str, value: &str, expected: &'static str) -> InvalidLink {
    InvalidLink::Value { key, value: value.to_owned(), expected }
}

/// Splits a value into its number and its unit. Returns `None` if it does not begin with a valid number; a
/// sign is not part of a number.
fn number(value: &str) -> Option<(f64, &str)> {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

fn rate(value: &str) -> Result<u64, InvalidLink> {
    let wrong = || invalid("rate", value, "bits a second up to 100gbit, such as 500mbit, 2.5gbit or 64kbit");
    let (number, unit) = number(value).ok_or_else(wrong)?;
    let bits = number
        * match unit {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(wrong()),
        };
    if (1e3..=MAX_RATE).contains(&bits) { Ok(bits.round() as u64) } else { Err(wrong()) }
}

fn time(key: &'static str, value: &str) -> Result<Duration, InvalidLink> {
    number(value).and_then(|(number, unit)| duration(number, unit)).ok_or_else(|| {
        invalid(key, value, "a time up to 60s, such as 10ms, 250us or 1.5s; of the delay, one way")
    })
}

fn duration(number: f64, unit: &str) -> Option<Duration> {
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        _ => return None,
    };
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    (duration <= MAX_TIME).then_some(duration)
}

fn share(key: &'static str, value: &str) -> Result<f64, InvalidLink> {
    match number(value) {
        Some((number, "%")) if number <= 100.0 => Ok(number / 100.0),
        _ => Err(invalid(key, value, "a share from 0% to 100%, with the percent sign")),
    }
}

fn queue(value: &str) -> Result<Queue, InvalidLink> {
    let wrong = || {
        let expected =
            "bdp (rate × 2 × delay), bytes (64kib, 1.5mb), packets (100p) or a time (20ms), above 0";
        invalid("queue", value, expected)
    };
    if value == "bdp" {
        return Ok(Queue::BandwidthDelayProduct);
    }
    let (number, unit) = number(value).ok_or_else(wrong)?;
    if !(number > 0.0 && number <= MAX_QUEUE) {
        return Err(wrong());
    }
    let bytes = |factor: f64| match (number * factor).round() {
        bytes if (1.0..=MAX_QUEUE).contains(&bytes) => Ok(Queue::Bytes(bytes as u64)),
        _ => Err(wrong()),
    };
    match unit {
        "b" => bytes(1.0),
        "kb" => bytes(1e3),
        "mb" => bytes(1e6),
        "kib" => bytes(1024.0),
        "mib" => bytes(1024.0 * 1024.0),
        "p" | "packets" if number.fract() == 0.0 => Ok(Queue::Packets(number as u32)),
        _ => duration(number, unit).map(Queue::Time).ok_or_else(wrong),
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default | Self::BandwidthDelayProduct => f.write_str("bdp"),
            Self::Bytes(bytes) => write!(f, "{bytes}b"),
            Self::Packets(packets) => write!(f, "{packets}p"),
            Self::Time(time) => f.write_str(&time_text(*time)),
        }
    }
}

/// Formats the link as [`FromStr`] parses it, without defaults.
impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(rate) = self.rate {
            parts.push(format!("rate={}", rate_text(rate)));
        }
        if !self.delay.is_zero() {
            parts.push(format!("delay={}", time_text(self.delay)));
        }
        if self.queue != Queue::Default {
            parts.push(format!("queue={}", self.queue));
        }
        for (key, share) in [("loss", self.loss), ("reorder", self.reorder)] {
            if share > 0.0 {
                // Rounded to hide the error of the binary fraction, with more digits than a user writes.
                parts.push(format!("{key}={}%", (share * 1e8).round() / 1e6));
            }
        }
        if self.reorder > 0.0 && self.reorder_by != REORDER_BY {
            parts.push(format!("reorder-by={}", time_text(self.reorder_by)));
        }
        if (self.loss > 0.0 || self.reorder > 0.0) && self.seed != 1 {
            parts.push(format!("seed={}", self.seed));
        }
        f.write_str(&parts.join(","))
    }
}

fn rate_text(rate: u64) -> String {
    match rate {
        1_000_000_000.. => format!("{}gbit", rate as f64 / 1e9),
        1_000_000.. => format!("{}mbit", rate as f64 / 1e6),
        _ => format!("{}kbit", rate as f64 / 1e3),
    }
}

fn time_text(time: Duration) -> String {
    match time.as_millis() {
        1000.. => format!("{}s", time.as_secs_f64()),
        1.. => format!("{}ms", time.as_nanos() as f64 / 1e6),
        _ => format!("{}us", time.as_nanos() as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> LinkSpec {
        text.parse().unwrap()
    }

    #[test]
    fn every_key_is_read_with_its_units() {
        let spec = parse("rate=500mbit, delay=10ms,queue=bdp,loss=0.1%,reorder=0.5%,reorder-by=250us,seed=7");
        let expected = LinkSpec {
            rate: Some(500_000_000),
            delay: Duration::from_millis(10),
            queue: Queue::BandwidthDelayProduct,
            loss: 0.001,
            reorder: 0.005,
            reorder_by: Duration::from_micros(250),
            seed: 7,
        };
        assert_eq!(spec, expected);
        assert_eq!(parse("rate=2.5Gbit").rate, Some(2_500_000_000));
        assert_eq!(parse("rate=64kbit").rate, Some(64_000));
        assert_eq!(parse("delay=1.5s").delay, Duration::from_millis(1500));
        assert_eq!(parse(""), LinkSpec::default());
    }

    #[test]
    fn a_queue_is_bytes_packets_a_time_or_the_product() {
        let limit = |queue: &str| parse(&format!("rate=500mbit,delay=10ms{queue}")).limit();
        assert_eq!(limit(",queue=bdp"), Some(Limit::Bytes(1_250_000)));
        assert_eq!(limit(""), Some(Limit::Bytes(1_250_000)));
        assert_eq!(limit(",queue=20ms"), Some(Limit::Bytes(1_250_000)));
        assert_eq!(limit(",queue=64kib"), Some(Limit::Bytes(65_536)));
        assert_eq!(limit(",queue=1.5mb"), Some(Limit::Bytes(1_500_000)));
        assert_eq!(limit(",queue=100p"), Some(Limit::Packets(100)));
        assert_eq!(parse("rate=1mbit").limit(), Some(Limit::Bytes(64 * 1024)));
        assert_eq!(parse("delay=1ms").limit(), None);
    }

    #[test]
    fn an_error_names_the_key_and_what_it_takes() {
        for (text, part) in [
            ("fast", "`fast` is not KEY=VALUE"),
            ("speed=1mbit", "no `speed`"),
            ("delay=1ms,delay=2ms", "`delay` is given twice"),
            ("rate=500", "rate=500: bits a second"),
            ("rate=500mb", "rate=500mb"),
            ("rate=0mbit", "rate=0mbit"),
            ("rate=1e9bit", "rate=1e9bit"),
            ("rate=-1mbit", "rate=-1mbit"),
            ("delay=10", "delay=10: a time"),
            ("delay=61s", "delay=61s"),
            ("loss=0.1", "loss=0.1: a share"),
            ("reorder=101%", "reorder=101%"),
            ("reorder-by=x", "reorder-by=x"),
            ("seed=1.5", "seed=1.5: a whole number"),
            ("rate=1mbit,queue=0b", "queue=0b"),
            ("rate=1mbit,queue=1.5p", "queue=1.5p"),
            ("rate=1mbit,queue=..b", "queue=..b"),
            ("rate=1mbit,queue=bdp", "queue=bdp: the product is zero"),
            ("delay=1ms,queue=20ms", "queue=20ms: without a rate"),
        ] {
            let error = text.parse::<LinkSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_printed_is_read_again() {
        for text in [
            "rate=500mbit,delay=10ms,queue=bdp,loss=0.1%,reorder=0.5%",
            "rate=2.5gbit,delay=250us,queue=100p",
            "rate=64kbit,queue=20ms,loss=100%,seed=9",
            "delay=1.5s,reorder=3%,reorder-by=2.5ms",
            "",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
    }
}
