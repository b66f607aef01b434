//! The forwarder over wireguard-go's tun/netstack: a Go program that is built for the measurement.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

const FILES: [(&str, &str); 3] = [
    ("main.go", include_str!("netstack/main.go")),
    ("go.mod", include_str!("netstack/go.mod")),
    ("go.sum", include_str!("netstack/go.sum")),
];

/// Builds the program in the directory, and returns its path.
pub(super) fn build(directory: &Path) -> Result<PathBuf> {
    let source = directory.join("netstack");
    std::fs::create_dir(&source)?;
    for (name, text) in FILES {
        std::fs::write(source.join(name), text)?;
    }
    let program = directory.join("netstack-forwarder");
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-o"]).arg(&program).arg(".").current_dir(&source);
    let output = go.output().context("cannot start go")?;
    ensure!(output.status.success(), "go build failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(program)
}
