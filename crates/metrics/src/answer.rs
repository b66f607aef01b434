//! Requests and their answers. No request changes anything.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use weft_config::metrics::HostName;
use weft_ipc::{Place, Places};
use weft_report::{StatusReport, has_session, unready};

use super::exposition::{self, Format};
use super::hosts::Hosts;
use super::query::Query;
use super::sampler::{NoSample, Sample, Sampler, TakeReport};

const PAGE: &str = include_str!("page.html");
/// The placeholder in the page for the nonce, which permits the page's own script and style and no others.
const NONCE: &str = "{{nonce}}";

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

/// Maximum number of answers about more than [`MANY_PEERS`] peers that are made or sent at once. Clients
/// share a report only if they ask at the same moment, so each of these answers may be a separate text,
/// 7.7 MB with 10,000 peers.
const LARGE_ANSWERS: usize = 4;
/// How long a client has for a large answer when another one waits: 7.7 MB at 30 Mbit/s.
const LARGE_ANSWER: Duration = Duration::from_secs(2);
/// An answer about this many peers has about 256 KiB.
const MANY_PEERS: usize = 200;

/// Everything that a server serves.
pub(super) struct Site {
    sampler: Arc<Sampler>,
    hosts: Hosts,
    large: Arc<Places>,
}

/// The bytes of a large answer. They hold the place until the last byte is sent.
struct Held {
    bytes: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn held(bytes: Bytes, place: Option<Place>) -> Bytes {
    match place {
        Some(place) => Bytes::from_owner(Held { bytes, _place: place }),
        None => bytes,
    }
}

type Answer = Response<Full<Bytes>>;

/// The report, and counts over all peers, also those that the report leaves out.
#[derive(Serialize)]
struct Status<'a> {
    #[serde(flatten)]
    report: &'a StatusReport,
    /// Number of all peers.
    peers_total: usize,
    /// Number of peers that match the filter.
    peers_matching: usize,
    /// Number of peers with a session.
    peers_with_session: usize,
    /// Why the interface is not ready, a sentence each.
    unready: &'a [String],
}

impl Site {
    pub(super) fn new(take_report: Arc<TakeReport>, hosts: Hosts) -> Self {
        Self { sampler: Sampler::new(take_report), hosts, large: Places::new(LARGE_ANSWERS) }
    }

    /// Replaces the names that requests may use.
    pub(super) fn allow(&self, hosts: &[HostName]) {
        self.hosts.change(hosts);
    }

    /// Answers the request of the client that has this place; its body is ignored.
    pub(super) async fn answer<B>(&self, request: &Request<B>, client: &Place) -> Answer {
        if let Err(host) = self.check_host(request) {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                format!(
                    "{host} is no name of this machine that weft knows: use its address, or start weft with \
                     --metrics-host NAME (or `# weft: MetricsHost = NAME`)\n"
                ),
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        let query = Query::parse(request.uri().query());
        let outcome = match request.uri().path() {
            "/" => Ok(page()),
            "/metrics" => self.metrics(&query, Format::accepted(request.headers()), client).await,
            "/status.json" => self.status(query, client).await,
            "/healthz" => self.sampler.sample().await.map(|_| text(StatusCode::OK, "alive\n".to_owned())),
            "/readyz" => self.sampler.sample().await.map(|sample| ready(&sample)),
            _ => Ok(text(
                StatusCode::NOT_FOUND,
                "there are /, /metrics, /healthz, /readyz and /status.json\n".to_owned(),
            )),
        };
        outcome.unwrap_or_else(|error| text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")))
    }

    /// Checks the name that the request is for. The error is a name that this machine does not answer to.
    fn check_host<B>(&self, request: &Request<B>) -> Result<(), String> {
        let asked = match request.uri().authority() {
            Some(authority) => authority.as_str(),
            None => match request.headers().get(header::HOST) {
                Some(host) => host.to_str().map_err(|_| "that host".to_owned())?,
                // Every browser sends it; old health checks may not.
                None => return Ok(()),
            },
        };
        let shown = || asked.chars().filter(|c| !weft_config::is_unprintable(*c)).take(100).collect();
        if self.hosts.allow(asked) { Ok(()) } else { Err(shown()) }
    }

    /// Returns a sample for an answer about at most `max_peers` peers, and the place to [hold](held) if the
    /// answer is large. A request that waits for that place keeps no sample in memory.
    async fn sample(
        &self,
        max_peers: usize,
        client: &Place,
    ) -> Result<(Arc<Sample>, Option<Place>), NoSample> {
        let sample = self.sampler.sample().await?;
        if sample.report.peers.len().min(max_peers) <= MANY_PEERS {
            return Ok((sample, None));
        }
        drop(sample);
        let place = self.large.take_also(client).await;
        place.expect_end(LARGE_ANSWER);
        Ok((self.sampler.sample().await?, Some(place)))
    }

    async fn metrics(&self, query: &Query, format: Format, client: &Place) -> Result<Answer, NoSample> {
        let with_peers = query.peers != Some(0);
        let (sample, place) = self.sample(if with_peers { usize::MAX } else { 0 }, client).await?;
        let which = 2 * usize::from(with_peers) + usize::from(format == Format::OpenMetrics);
        let body = aside(move || {
            held(sample.text(which, |report| exposition::encode(report, with_peers, format)), place)
        });
        Ok(respond(StatusCode::OK, format.content_type(), body.await?))
    }

    async fn status(&self, query: Query, client: &Place) -> Result<Answer, NoSample> {
        let (sample, place) = self.sample(query.peers.unwrap_or(usize::MAX), client).await?;
        let body = aside(move || {
            let whole: &StatusReport = &sample.report;
            let with_session = whole.peers.iter().filter(|peer| has_session(peer)).count();
            let status = |report, peers_matching| {
                serde_json::to_vec(&Status {
                    report,
                    peers_total: whole.peers.len(),
                    peers_matching,
                    peers_with_session: with_session,
                    unready: &unready(whole),
                })
            };
            let json = if query.is_whole() {
                status(whole, whole.peers.len())
            } else {
                let (peers, matching) = query.choose(&whole.peers);
                status(&StatusReport { peers, ..sample.head.clone() }, matching)
            };
            // Serialization of these types cannot fail.
            held(json.unwrap_or_default().into(), place)
        });
        Ok(respond(StatusCode::OK, JSON, body.await?))
    }
}

/// Runs `make` off the thread of the connections: it may format 10,000 peers.
async fn aside(make: impl FnOnce() -> Bytes + Send + 'static) -> Result<Bytes, NoSample> {
    // The task fails only when the runtime ends.
    tokio::task::spawn_blocking(make).await.map_err(|_| NoSample::Stuck)
}

fn ready(sample: &Sample) -> Answer {
    let reasons = unready(&sample.report);
    if reasons.is_empty() {
        return text(StatusCode::OK, "ready\n".to_owned());
    }
    let mut body = "not ready\n".to_owned();
    for reason in reasons {
        // Writing to a string cannot fail.
        let _ = writeln!(body, "- {reason}");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, body)
}

/// Returns the page. An unpredictable nonce permits its script and style.
fn page() -> Answer {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let mut answer = respond(StatusCode::OK, HTML, PAGE.replace(NONCE, &nonce).into());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::try_from(policy) {
        answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

fn text(status: StatusCode, body: String) -> Answer {
    respond(status, TEXT, body.into())
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
