//! Linux: the packages have a unit for every interface.

use weft_config::exit::{Code, Error};
use weft_config::{name_of, path_of};

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
    let name = name_of(&path_of(target))?;
    Err(Error::new(
        Code::Failure,
        format!(
            "on Linux weft is a service of systemd: `systemctl {verb} weft@{name}`, with the configuration in \
             /etc/wireguard/{name}.conf; `weft-client@{name}` for a default route or name servers"
        ),
    ))
}
