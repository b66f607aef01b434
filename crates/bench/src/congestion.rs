//! The TCP congestion controls of the kernel, and the one that a namespace uses.

use anyhow::{Context as _, Result, bail};
use weft_lab::Namespace;

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// The sysctl of the congestion control. It is set per namespace; a new namespace inherits the value of the
/// initial namespace (ip-sysctl in the kernel's documentation).
const IN_USE: &str = "net/ipv4/tcp_congestion_control";

/// Returns the congestion controls that the kernel provides.
pub(crate) fn available() -> Result<Vec<String>> {
    let text =
        std::fs::read_to_string(AVAILABLE).context("cannot read which congestion controls there are")?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Returns an error that names the first unavailable one.
pub(crate) fn check(asked: &[String], available: &[String]) -> Result<()> {
    match asked.iter().find(|control| !available.contains(control)) {
        Some(control) => {
            bail!("the kernel has no congestion control {control}, only {}", available.join(", "))
        }
        None => Ok(()),
    }
}

/// Sets the congestion control for new TCP connections of this namespace alone.
pub(crate) fn choose(namespace: &Namespace, control: &str) -> Result<()> {
    namespace.set_sysctl(IN_USE, control).context(
        "the congestion control has to be among net.ipv4.tcp_allowed_congestion_control of the host, too",
    )
}

/// Returns the congestion control of new TCP connections of a namespace.
pub(crate) fn in_use(namespace: &Namespace) -> Result<String> {
    namespace.sysctl(IN_USE).context("cannot read which congestion control a namespace uses")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_the_kernel_does_not_have_is_refused_with_those_it_has() {
        let names = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let available = names("reno bbr");
        assert!(check(&names("bbr reno"), &available).is_ok());
        assert!(check(&[], &available).is_ok());
        let error = check(&names("bbr vegas"), &available).unwrap_err().to_string();
        assert_eq!(error, "the kernel has no congestion control vegas, only reno, bbr");
    }
}
