use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use http_body_util::BodyExt as _;
use weft_config::settings::ReportSettings;
use weft_report::PeerReport;
use weft_report::control_socket::ManageError;

use super::*;

/// An interface that delays its answers while `is_stuck` is set.
#[derive(Default)]
struct Fake {
    report: Mutex<StatusReport>,
    asked: AtomicUsize,
    is_stuck: Mutex<bool>,
    changed: Condvar,
}

impl Fake {
    fn new(report: StatusReport) -> Arc<Self> {
        Arc::new(Self { report: Mutex::new(report), ..Self::default() })
    }

    fn stick(&self, is_stuck: bool) {
        *self.is_stuck.lock().unwrap() = is_stuck;
        self.changed.notify_all();
    }
}

impl Fake {
    fn status(&self) -> Result<StatusReport, ManageError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        // Limited, so that a failing test ends.
        let limit = Duration::from_secs(20);
        let guard = self.is_stuck.lock().unwrap();
        drop(self.changed.wait_timeout_while(guard, limit, |is_stuck| *is_stuck).unwrap());
        Ok(self.report.lock().unwrap().clone())
    }
}

fn healthy() -> StatusReport {
    StatusReport {
        interface: "wg0".to_owned(),
        public_key: Some("own".to_owned()),
        uptime_ms: 60_000,
        unix_time_ms: 2_000_000_000_000,
        peers: vec![PeerReport {
            public_key: "peer".to_owned(),
            settings: ReportSettings::named("Büro"),
            endpoint: Some("192.0.2.1:1".to_owned()),
            latest_handshake_ms: Some(1000),
            persistent_keepalive: Some(25),
            ..PeerReport::default()
        }],
        ..StatusReport::default()
    }
}

fn site(fake: &Arc<Fake>) -> Site {
    let fake = Arc::clone(fake);
    Site::new(Arc::new(move || fake.status()), Hosts::named(&[]))
}

async fn ask(
    site: &Site,
    method: Method,
    uri: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, Answer, String) {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let place = Places::new(1).take(weft_ipc::Source::Unknown).await;
    let answer = site.answer(&request.body(()).unwrap(), &place).await;
    let (parts, body) = answer.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    (parts.status, Response::from_parts(parts, Full::default()), body)
}

async fn get(site: &Site, uri: &str) -> (StatusCode, String) {
    let (status, _, body) = ask(site, Method::GET, uri, &[("host", "127.0.0.1:9586")]).await;
    (status, body)
}

#[tokio::test]
async fn every_path_answers_and_only_to_reading() {
    let site = site(&Fake::new(healthy()));
    for (path, part) in [
        ("/", "<!doctype html>"),
        ("/metrics", "weft_ready{interface=\"wg0\"} 1\n"),
        ("/healthz", "alive"),
        ("/readyz", "ready"),
        ("/status.json", "\"interface\":\"wg0\""),
    ] {
        let (status, answer, body) = ask(&site, Method::GET, path, &[]).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        assert!(body.contains(part), "{path}: {body}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(answer.headers()[header::CACHE_CONTROL], "no-store", "{path}");
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let (status, answer, _) = ask(&site, method, path, &[]).await;
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
            assert_eq!(answer.headers()[header::ALLOW], "GET, HEAD", "{path}");
        }
    }
    assert_eq!(get(&site, "/etc/passwd").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_request_for_another_host_name_is_refused() {
    let site = site(&Fake::new(healthy()));
    for path in ["/", "/metrics", "/status.json", "/healthz", "/nowhere"] {
        let (status, _, body) = ask(&site, Method::GET, path, &[("host", "evil.example:9586")]).await;
        assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{path}");
        assert!(body.contains("evil.example:9586") && body.contains("--metrics-host"), "{body}");
    }
    let whole = "http://evil.example/metrics";
    let (status, ..) = ask(&site, Method::GET, whole, &[("host", "127.0.0.1")]).await;
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn the_page_allows_its_own_script_alone() {
    let site = site(&Fake::new(healthy()));
    let (_, first, body) = ask(&site, Method::GET, "/", &[]).await;
    let policy = first.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
    let nonce = policy.split("'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    assert_eq!(body.matches(&format!("nonce=\"{nonce}\"")).count(), 2, "{policy}");
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(
        !body.contains(NONCE) && !body.contains("https://") && !body.contains("src="),
        "an asset of others"
    );
    assert!(!body.contains("innerHTML") && !body.contains(" onclick"));
    let (_, second, _) = ask(&site, Method::GET, "/", &[]).await;
    assert_ne!(second.headers()[header::CONTENT_SECURITY_POLICY], policy);
}

#[tokio::test]
async fn an_interface_is_ready_when_the_peers_that_should_have_sessions_have_them() {
    let mut report = healthy();
    report.peers.push(PeerReport { public_key: "client".to_owned(), ..PeerReport::default() });
    let fake = Fake::new(report.clone());
    assert_eq!(get(&site(&fake), "/readyz").await, (StatusCode::OK, "ready\n".to_owned()));
    // The interface stays ready with a client that went to sleep at its last known address and that packets
    // wait for.
    report.peers.push(PeerReport {
        public_key: "phone".to_owned(),
        endpoint: Some("198.51.100.7:40000".to_owned()),
        latest_handshake_ms: Some(600_000),
        is_trying: true,
        staged_bytes: 1400,
        tx_bytes: 1400,
        ..PeerReport::default()
    });
    *fake.report.lock().unwrap() = report.clone();
    let asleep = site(&fake);
    assert_eq!(get(&asleep, "/readyz").await, (StatusCode::OK, "ready\n".to_owned()));
    let (_, body) = get(&asleep, "/metrics").await;
    assert!(body.contains("weft_ready{interface=\"wg0\"} 1\n"), "{body}");
    let expected = |line: &&str| line.starts_with("weft_peer_expected{") && line.contains("\"phone\"");
    assert!(body.lines().find(expected).is_some_and(|line| line.ends_with(" 0")), "{body}");
    let (_, body) = get(&asleep, "/status.json").await;
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["unready"].as_array().map(Vec::len), Some(0), "{body}");
    // A peer that has to start handshakes itself may be silent; a peer with a keepalive may not.
    report.peers[0].latest_handshake_ms = Some(600_000);
    *fake.report.lock().unwrap() = report.clone();
    let (status, body) = get(&site(&fake), "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body, "not ready\n- Büro: the latest handshake was 10 min ago, and new ones get no answer\n");
    // A handshake that cannot have been answered yet is not a problem, but the interface is not ready either.
    report.peers[0].latest_handshake_ms = None;
    report.uptime_ms = 100;
    *fake.report.lock().unwrap() = report.clone();
    let (status, body) = get(&site(&fake), "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body, "not ready\n- Büro: a handshake is needed, and none has completed yet\n");
    let (status, body) = get(&site(&fake), "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("weft_ready{interface=\"wg0\"} 0\n"));
    // Without a key no interface is ready.
    *fake.report.lock().unwrap() = StatusReport { public_key: None, ..healthy() };
    assert_eq!(get(&site(&fake), "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn those_who_ask_at_once_share_a_look_at_the_interface() {
    let fake = Fake::new(healthy());
    let site = Arc::new(site(&fake));
    fake.stick(true);
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let site = Arc::clone(&site);
            tokio::spawn(async move { get(&site, "/metrics").await.0 })
        })
        .collect();
    while fake.asked.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    fake.stick(false);
    for asked in asking {
        assert_eq!(asked.await.unwrap(), StatusCode::OK);
    }
    assert_eq!(fake.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_event_loop_that_hangs_is_told_and_asked_once() {
    let fake = Fake::new(healthy());
    let site = site(&fake);
    fake.stick(true);
    let (a, b, c, d) = tokio::join!(
        get(&site, "/healthz"),
        get(&site, "/readyz"),
        get(&site, "/metrics"),
        get(&site, "/status.json")
    );
    for (status, body) in [a, b, c, d] {
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body, "the event loop did not take a turn within 2 s\n");
    }
    assert_eq!(fake.asked.load(Ordering::Relaxed), 1);
    // The page is served, and reports the problem itself.
    assert_eq!(get(&site, "/").await.0, StatusCode::OK);
    fake.stick(false);
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while get(&site, "/healthz").await.0 != StatusCode::OK {
        assert!(std::time::Instant::now() < deadline, "it does not recover");
    }
}

#[tokio::test]
async fn a_reader_of_the_status_gets_the_busiest_peers_it_asked_for() {
    let mut report = healthy();
    report.peers = (0..500)
        .map(|i| PeerReport { public_key: format!("key{i}"), rx_bytes: i, ..PeerReport::default() })
        .collect();
    let site = site(&Fake::new(report));
    let (_, body) = get(&site, "/status.json?peers=3&filter=KEY4").await;
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    let keys: Vec<&str> =
        json["peers"].as_array().unwrap().iter().map(|peer| peer["public_key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["key499", "key498", "key497"]);
    assert_eq!((&json["peers_total"], &json["peers_matching"]), (&500.into(), &111.into()));
    let (_, body) = get(&site, "/status.json").await;
    let whole: StatusReport = serde_json::from_str(&body).unwrap();
    assert_eq!(whole.peers.len(), 500);
    assert!(!get(&site, "/metrics?peers=off").await.1.contains("wireguard_"));
}
