//! A report as metrics: in OpenMetrics, or in Prometheus' older text format.

use std::fmt;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::ACCEPT;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use weft_report::{HistogramReport, StatusReport, total};

use weft_dataplane::Histogram;

mod classic;
mod interface;
mod peers;
mod process;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' own text format, which every tool reads.
    Classic,
    /// <https://prometheus.io/docs/specs/om/open_metrics_spec/>
    OpenMetrics,
}

impl Format {
    /// Returns OpenMetrics if the client accepts it.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_open = accepted.any(|value| value.contains("application/openmetrics-text"));
        if is_open { Self::OpenMetrics } else { Self::Classic }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Returns a report as metrics of the interface, with or without metrics for each peer.
pub(super) fn encode(report: Arc<StatusReport>, with_peers: bool, format: Format) -> String {
    let labels = [("interface".into(), report.interface.clone().into())];
    let mut registry = Registry::with_labels(labels.into_iter());
    registry.register_collector(Box::new(Families { report, with_peers }));
    let mut encoded = String::new();
    // Writing to a string cannot fail, and every metric has a value that can be formatted.
    if let Err(error) = text::encode(&mut encoded, &registry) {
        tracing::debug!(%error, "cannot write the metrics down");
    }
    match format {
        Format::OpenMetrics => encoded,
        Format::Classic => classic::from_openmetrics(&encoded),
    }
}

#[derive(Debug)]
struct Families {
    report: Arc<StatusReport>,
    with_peers: bool,
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        interface::write(&self.report, &mut writer)?;
        process::write(&mut writer)?;
        if self.with_peers { peers::write(&self.report, &mut writer) } else { Ok(()) }
    }
}

/// The labels of a sample, besides that of the interface.
type Labels<'l, const N: usize> = [(&'static str, &'l str); N];

/// Writes families of metrics.
struct Writer<'e>(DescriptorEncoder<'e>);

impl Writer<'_> {
    /// Writes counters; their names get the suffix `_total`.
    fn counters<'l, const N: usize, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, V, f64>(&value, None)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        self.counters(name, help, [([], value)])
    }

    fn gauges<'l, const N: usize, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.gauges(name, help, [([], value)])
    }

    /// Writes a metric that is always 1 and carries labels; its name gets the suffix `_info`.
    fn info<const N: usize>(&mut self, name: &str, help: &str, labels: &Labels<'_, N>) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(labels)
    }

    /// Writes histograms of seconds.
    fn histograms<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, &'l HistogramReport)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, histogram) in samples {
            let buckets = buckets_of(histogram);
            let sum = seconds(histogram.sum_ns);
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(sum, histogram.count, &buckets, None)?;
        }
        Ok(())
    }

    /// Writes a histogram of whole numbers: upper bounds, and the count of each bucket.
    fn histogram(&mut self, name: &str, help: &str, buckets: &[(f64, u64)], sum: u64) -> fmt::Result {
        let count = total(buckets.iter().map(|(_, count)| *count));
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(sum as f64, count, buckets, None)
    }
}

/// Returns every bucket, including empty ones: the bounds of a histogram must not change between scrapes.
fn buckets_of(histogram: &HistogramReport) -> Vec<(f64, u64)> {
    let mut filled = histogram.buckets.iter().peekable();
    let mut bucket = |bound: Option<u64>| {
        let count = filled.next_if(|(filled, _)| *filled == bound).map_or(0, |(_, count)| *count);
        (bound.map_or(f64::INFINITY, seconds), count)
    };
    (0..=Histogram::BOUNDS).map(|place| bucket(Histogram::bound_ns(place))).collect()
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
#[path = "exposition/tests.rs"]
mod tests;
