//! The host's limit of receive buffers, by which a user without root is bound.

use anyhow::{Context as _, Result};

const PATH: &str = "/proc/sys/net/core/rmem_max";

/// Another limit for all namespaces of the host. Dropping it restores the one before.
pub(super) struct ReceiveLimit {
    before: String,
}

impl ReceiveLimit {
    pub(super) fn set(bytes: u32) -> Result<Self> {
        let before = std::fs::read_to_string(PATH).context("cannot read net.core.rmem_max")?;
        std::fs::write(PATH, bytes.to_string())
            .with_context(|| format!("cannot set net.core.rmem_max to {bytes}"))?;
        Ok(Self { before })
    }
}

impl Drop for ReceiveLimit {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(PATH, &self.before) {
            eprintln!("cannot restore net.core.rmem_max to {}: {error}", self.before.trim());
        }
    }
}
