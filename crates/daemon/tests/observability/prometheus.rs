//! A real Prometheus, with the rules and queries of `contrib/`, and promtool's opinion of the scrape.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use weft_lab::{Process, here, until, wait_until};

use crate::contrib::{self, dashboard_queries, root};

use crate::support::{ADDRESS, End, request, two_ends};

const PROMETHEUS: &str = "127.0.0.1:9090";

#[test]
fn promtool_has_nothing_to_say_about_a_scrape() {
    if !here::installed(&["promtool"]) {
        return;
    }
    let Some((a, b)) = two_ends() else { return };
    let _running =
        a.up(&(a.conf("") + &End::peer(&b, "# friendly_name = b \\ \"x\"")), &["--metrics", ADDRESS]);
    let scrape = a.get("/metrics").body;
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_rules_raise_what_they_should_and_nothing_else() {
    if !here::installed(&["promtool"]) {
        return;
    }
    for arguments in [["check", "rules", "weft.rules.yml"], ["test", "rules", "weft.rules.test.yml"]] {
        let mut promtool = Command::new("promtool");
        let output =
            promtool.args(arguments).current_dir(root().join("contrib/prometheus")).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_prometheus_scrapes_weft_and_answers_the_queries_of_the_dashboard() {
    if !here::installed(&["prometheus"]) {
        return;
    }
    let Some((a, b)) = two_ends() else { return };
    let _running = a.up(&(a.conf("") + &End::peer(&b, "PersistentKeepalive = 25")), &["--metrics", ADDRESS]);
    let _other = b.up(&(b.conf("") + &End::peer(&a, "")), &[]);
    a.reach(&b);
    let rules = root().join("contrib/prometheus/weft.rules.yml").canonicalize().unwrap();
    let file = a.directory.path().join("prometheus.yml");
    let text = format!(
        "global: {{ scrape_interval: 5s, evaluation_interval: 5s }}\nrule_files: [{}]\nscrape_configs:\n\
         - job_name: weft\n  static_configs: [{{ targets: [\"{ADDRESS}\"] }}]\n",
        rules.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut command = a.namespace.command("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", a.directory.path().join("tsdb").display()));
    command.arg(format!("--web.listen-address={PROMETHEUS}"));
    let mut prometheus = Process::start(&a.namespace, command).unwrap();
    until("prometheus is ready", || {
        assert!(prometheus.is_running(), "it ended:\n{}", prometheus.log());
        let ready = a.namespace.run(|| std::net::TcpStream::connect(PROMETHEUS)).is_ok();
        ready && api(&a, "/-/ready").is_some()
    });
    let query = |query: &str| -> Value {
        let answer = api(&a, &format!("/api/v1/query?query={}", encoded(query))).unwrap_or(Value::Null);
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].clone()
    };
    let found = |of: &str| query(of).as_array().unwrap().len();
    // Rates need two scrapes. `up` is 1 for each that was answered.
    wait_until("three scrapes", || {
        let scrapes = query("sum_over_time(up{job=\"weft\"}[1m])");
        let count = scrapes[0]["value"][1].as_str().and_then(|count| count.parse::<u32>().ok());
        count.filter(|&count| count >= 3)
    });
    let targets = api(&a, "/api/v1/targets").unwrap();
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()), "{target}");
    assert_eq!(
        query("wireguard_latest_handshake_seconds")[0]["metric"]["public_key"],
        b.public_key().to_string()
    );
    // Types are known to it: it read OpenMetrics.
    let metadata = api(&a, "/api/v1/metadata?metric=weft_turn_seconds").unwrap();
    assert_eq!(metadata["data"]["weft_turn_seconds"][0]["type"], "histogram", "{metadata}");
    for expression in dashboard_queries() {
        let expression = contrib::filled_in(&expression);
        // What compares (`> 0`) may find nothing; the metrics in it are looked for by name elsewhere.
        let may_be_empty = expression.contains(" > 0") || expression.contains("weft_peer_staged_bytes");
        assert!(found(&expression) > 0 || may_be_empty, "{expression}");
    }
    let rules = api(&a, "/api/v1/rules").unwrap();
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() >= 10 && rules.iter().all(|rule| rule["lastError"].is_null()), "{rules:?}");
    prometheus.signal(nix::sys::signal::Signal::SIGTERM);
    prometheus.wait();
}

/// What Prometheus says; nothing if it is no JSON and no success.
fn api(end: &End, path: &str) -> Option<Value> {
    let address: SocketAddr = PROMETHEUS.parse().unwrap();
    let answer = end.ask(address, &request(path, PROMETHEUS, "").replace("HTTP/1.1", "HTTP/1.0"));
    if answer.status != 200 {
        return None;
    }
    Some(serde_json::from_str(&answer.body).unwrap_or(Value::Null))
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
