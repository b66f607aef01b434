//! Linux: the packages have a unit for every interface.

use std::path::PathBuf;

use ipnet::IpNet;
use weft_config::exit::{Code, Error};
use weft_config::{Config, LoadError, Table, name_of, path_of};

use crate::cli::{ServiceAction, ServiceArgs};

/// Names the command of systemd.
///
/// # Errors
/// Always.
pub fn run(args: &ServiceArgs) -> Result<(), Error> {
    let (verb, target) = match &args.action {
        ServiceAction::Install(args) => ("enable --now", &args.target),
        ServiceAction::Remove(args) => ("disable --now", &args.target),
        ServiceAction::Status(args) => ("status", &args.target),
    };
    let file = path_of(target);
    let name = name_of(&file)?;
    let usual = path_of(name.as_str());
    let is_install = matches!(args.action, ServiceAction::Install(_));
    let unit = match weft_config::load_to_start(target) {
        Ok(parsed) => Some(unit_for(&parsed.config)),
        Err(error @ LoadError::Config(_)) if is_install => return Err(error.into()),
        // It is not there yet, or only root may read it.
        Err(_) => None,
    };
    let is_elsewhere = |file: PathBuf| usual.canonicalize().ok() != Some(file);
    let first = match file.canonicalize().is_ok_and(is_elsewhere) && is_install {
        true => format!("`install -m 600 {} {}`, then ", file.display(), usual.display()),
        false => String::new(),
    };
    let choice = match unit {
        Some(unit) => format!("{first}`systemctl {verb} {unit}@{name}`"),
        None => format!(
            "{first}`systemctl {verb} weft@{name}`, with the configuration in {}; `weft-client@{name}` for a default route or \
             name servers",
            usual.display()
        ),
    };
    Err(Error::new(Code::Failure, format!("on Linux weft is a service of systemd: {choice}")))
}

/// Returns the unit that can run a configuration: that of a client may change name servers and firewall.
fn unit_for(config: &Config) -> &'static str {
    let is_default = |net: &IpNet| net.prefix_len() == 0;
    let is_full = config.interface.table != Table::Off
        && config.peers.iter().flat_map(|peer| &peer.allowed_ips).any(is_default);
    let needs_root = is_full || !config.interface.host.dns.is_empty();
    if needs_root { "weft-client" } else { "weft" }
}
