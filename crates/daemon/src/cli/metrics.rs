//! The arguments for metrics and health checks.

use std::str::FromStr;

use clap::Args;
use weft_config::metrics::{Address, HostName, InvalidAddress, MetricsConfig};

/// How an interface reports its state.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsArgs {
    /// Serve metrics for Prometheus (/metrics), health checks (/healthz, /readyz), /status.json and a status
    /// page over HTTP: `127.0.0.1:9586`, `[::1]:9586`, or `unix:/run/weft/wg0/metrics.sock`. Every client
    /// that reaches the address reads who the peers are and what they transfer; no key but public ones.
    /// Counts instead of the file's `# weft: Metrics = …`; `off`: no.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<MetricsWish>,
    /// Answer there also to requests for this name of the machine. Others than addresses, `localhost` and the
    /// machine's own name are refused, so that no web page can read it through a visitor's browser (DNS
    /// rebinding). May be given several times, and counts beside the file's `# weft: MetricsHost = …`.
    #[arg(long, value_name = "NAME")]
    pub metrics_host: Vec<HostName>,
}

impl MetricsArgs {
    /// Returns the options that are given, as they are written.
    pub(super) fn given(&self) -> Vec<String> {
        let metrics = self.metrics.as_ref().map(|MetricsWish(address)| match address {
            Some(address) => format!("--metrics {address}"),
            None => "--metrics off".to_owned(),
        });
        let hosts = self.metrics_host.iter().map(|name| format!("--metrics-host {}", name.as_str()));
        metrics.into_iter().chain(hosts).collect()
    }

    /// Applies the command line to the file's settings: the address replaces the file's, host names are added
    /// to it.
    pub fn apply(&self, config: &mut MetricsConfig) {
        if let Some(wish) = &self.metrics {
            config.address = wish.0.clone();
        }
        let missing = self.metrics_host.iter().filter(|name| !config.hosts.contains(name));
        let missing: Vec<HostName> = missing.cloned().collect();
        config.hosts.extend(missing);
    }
}

/// The value of `--metrics`: an address, or `None` for `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsWish(Option<Address>);

impl FromStr for MetricsWish {
    type Err = InvalidAddress;
    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(Self(None));
        }
        text.parse().map(|address| Self(Some(address)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(words: &[&str]) -> MetricsArgs {
        let words = ["weft", "up", "wg0"].into_iter().chain(words.iter().copied());
        match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Up(args)) => args.metrics,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_counts_instead_of_the_file() {
        let file =
            MetricsConfig { address: Some("[::1]:1".parse().unwrap()), hosts: vec!["a".parse().unwrap()] };
        let with = |words: &[&str]| {
            let mut config = file.clone();
            args(words).apply(&mut config);
            config
        };
        assert_eq!(with(&[]), file);
        assert_eq!(with(&["--metrics", "off"]).address, None);
        let here = with(&["--metrics", "127.0.0.1:9586", "--metrics-host", "b", "--metrics-host", "A"]);
        assert_eq!(here.address.unwrap().to_string(), "127.0.0.1:9586");
        assert_eq!(here.hosts, ["a", "b"].map(|name| name.parse().unwrap()));
    }
}
