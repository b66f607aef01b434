//! Runs `weft-bench`.
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]
#![allow(dead_code, reason = "not every program uses each of these")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use weft_lab::here;

const BENCH: &str = env!("CARGO_BIN_EXE_weft-bench");

pub(crate) fn bench(arguments: &str) -> Output {
    Command::new(BENCH).args(arguments.split_whitespace()).output().unwrap()
}

/// Returns the report of a successful run as JSON; `None` if the test cannot run here, which is reported.
pub(crate) fn report(arguments: &str) -> Option<Value> {
    if !here::tun_permitted() {
        return None;
    }
    if !Path::new(BENCH).with_file_name("weft").is_file() {
        here::not_run("there is no weft beside weft-bench: build the workspace");
        return None;
    }
    let output = bench(&format!("{arguments} --json"));
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Returns what a run prints that has to end with this exit code.
#[track_caller]
pub(crate) fn refusal(arguments: &str, code: i32) -> String {
    let output = bench(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}");
    error
}

/// Returns the rows of a table of a report.
pub(crate) fn rows<'a>(report: &'a Value, table: &str) -> &'a [Value] {
    let tables = report["tables"].as_array().unwrap();
    let found = tables.iter().find(|found| found["title"] == table);
    found.unwrap_or_else(|| panic!("no table {table}: {report}"))["rows"].as_array().unwrap()
}

/// Returns a figure of the first round.
#[track_caller]
pub(crate) fn figure(row: &Value, name: &str) -> f64 {
    row["samples"][0][name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"))
}
