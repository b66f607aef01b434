//! What ip(8) tells.

use serde_json::Value;
use weft_lab::Namespace;

/// What `ip` with these arguments lists in a namespace.
#[track_caller]
pub(crate) fn ip_json(namespace: &Namespace, arguments: &[&str]) -> Vec<Value> {
    let output = namespace.command("ip").arg("-j").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // Nothing at all where there is nothing to list.
    if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
}
