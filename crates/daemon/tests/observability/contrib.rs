//! The dashboard and the rules name metrics that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{ADDRESS, End, two_ends};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The queries of the panels, and of the annotations.
pub(crate) fn dashboard_queries() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("contrib/grafana/weft.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut queries = Vec::new();
    collect(&dashboard, &mut queries);
    assert!(queries.len() > 30, "only {} queries", queries.len());
    queries
}

fn collect(value: &Value, queries: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" => queries.push(text.clone()),
                    value => collect(value, queries),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, queries)),
        _ => {}
    }
}

/// A query as Grafana would send it.
pub(crate) fn filled_in(query: &str) -> String {
    let query = query.replace("$__rate_interval", "1m");
    ["$job", "$instance", "$interface"].iter().fold(query, |query, name| query.replace(name, ".*"))
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| ["weft_", "wireguard_", "process_"].iter().any(|prefix| word.starts_with(prefix)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboard_rules_and_page_name_metrics_that_exist() {
    let Some((a, b)) = two_ends() else { return };
    let conf = a.conf("") + &End::peer(&b, "# weft: RateToPeer = 1Gbit\n# weft: Expires = 2999-12-31");
    // Some metrics are for several packet threads alone.
    let _running = a.up(&conf, &["--metrics", ADDRESS, "--packet-threads", "2"]);
    let scrape = a.get("/metrics").body;
    let samples = scrape.lines().filter(|line| !line.starts_with('#'));
    let exist: BTreeSet<String> =
        samples.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect();
    let rules = std::fs::read_to_string(root().join("contrib/prometheus/weft.rules.yml")).unwrap();
    let rules: String = rules.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let docs = std::fs::read_to_string(root().join("docs/OBSERVABILITY.md")).unwrap();
    let documented: String = docs.split('`').skip(1).step_by(2).collect::<Vec<_>>().join(" ");
    let base = |name: &String| {
        let suffix = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        suffix.unwrap_or(name).to_owned()
    };
    // In queries samples have names, in the docs families.
    let families: BTreeSet<String> = exist.iter().map(base).collect();
    for (what, text, known) in [
        ("the dashboard", dashboard_queries().join(" "), &exist),
        ("the rules", rules, &exist),
        ("the docs", documented.clone(), &families),
    ] {
        let missing: Vec<_> = names(&text).difference(known).cloned().collect();
        assert!(missing.is_empty(), "{what}: {missing:?} of {known:?}");
    }
    let told = names(&documented);
    let untold: Vec<_> = families.difference(&told).collect();
    assert!(untold.is_empty(), "not in docs/OBSERVABILITY.md: {untold:?}");
}
