//! `weft doctor`: checks that a machine has what weft and a configuration need, and gives advice.
//!
//! Observation (`probe`) and judgement (`evaluate`) are separate: the findings follow from the
//! [`MachineState`] and the [`DoctorTarget`] alone.

use std::io;

use serde::Serialize;
use weft_config::exit::{Code, Error};
use weft_config::{Config, HookPhase, InterfaceName, LoadError};
use weft_report::finding::{self, Finding, Level};

use crate::args::DoctorArgs;
use crate::{output, own_file};

mod evaluate;
mod machine;
mod probe;
mod target;

pub use evaluate::{evaluate, metrics_elsewhere};
pub use machine::{
    CipherChoice, Clock, Kernel, Link, LinkKind, MachineState, Module, Nft, Resolver, TunDevice, UdpFacts,
    Way, Why,
};
pub use target::DoctorTarget;

/// Checks the machine, and prints the findings. `cipher` is what a start chooses here, or why it refuses.
///
/// # Errors
/// [`Code::Failure`] when there is a problem; those of reading a configuration.
pub fn run(args: &DoctorArgs, cipher: Result<CipherChoice, Error>) -> Result<(), Error> {
    let (target, mut findings) = target_of(args.target.as_deref())?;
    let mut facts = probe::machine_state(&target);
    facts.cipher = Some(cipher.map_err(|error| error.to_string()));
    findings.extend(evaluate(&facts, &target));
    findings.extend(target.config.as_ref().and_then(own_file::same_key));
    let problems = findings.iter().filter(|finding| finding.level == Level::Problem).count();
    if args.json {
        let report = Report {
            version: output::JSON_VERSION,
            target: args.target.as_deref(),
            problems,
            findings: &findings,
        };
        output::print_json(&report)?;
    } else {
        output::print_styled(&finding::lines(&findings, output::columns()))?;
    }
    match problems {
        0 => Ok(()),
        1 => Err(Error::new(Code::Failure, "there is a problem, see above")),
        problems => Err(Error::new(Code::Failure, format!("there are {problems} problems, see above"))),
    }
}

/// Returns what keeps a configuration from being brought up on this machine now, and what it will lack, as
/// far as every user can know it.
pub(crate) fn findings_of_start(config: &Config) -> (Vec<Finding>, Code) {
    let target = DoctorTarget::of(config);
    let (facts, _) = probe::state_for_start(&target);
    let mut findings = evaluate(&facts, &target);
    findings.extend(own_file::same_key(config));
    // The device and the sockets are there before PreUp; IPv6 may be switched on by it.
    let has_pre_up = config.interface.host.hooks_of(HookPhase::PreUp).next().is_some();
    let counts = |finding: &Finding| match finding.level {
        Level::Problem => !has_pre_up || finding.check != "ipv6",
        Level::Warning => matches!(&*finding.check, "nft" | "same_key" | "metrics"),
        _ => false,
    };
    findings.retain(counts);
    let is_forbidden = facts.tun_device == Some(TunDevice::Forbidden);
    let mut problems = findings.iter().filter(|finding| finding.level == Level::Problem);
    let is_wrong = problems.next().is_some_and(|first| first.check == "ipv6")
        && problems.all(|finding| finding.check == "ipv6");
    let code = match () {
        () if is_forbidden => Code::Permission,
        () if is_wrong => Code::Configuration,
        () => Code::Failure,
    };
    (findings, code)
}

/// Reports whether this process is known to lack the permission to create interfaces and routes.
pub fn lacks_permission() -> bool {
    probe::net_admin() == Some(false)
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    target: Option<&'a str>,
    problems: usize,
    findings: &'a [Finding],
}

/// Returns the requirements of the configuration, and the findings about the configuration itself.
fn target_of(target: Option<&str>) -> Result<(DoctorTarget, Vec<Finding>), Error> {
    let Some(target) = target else { return Ok((DoctorTarget::default(), Vec::new())) };
    let source = own_file::read(target, &own_file::file_of(target)?);
    match source.and_then(|source| source.parse_to_start()) {
        Ok(parsed) => {
            let warnings = parsed
                .warnings
                .iter()
                .map(|warning| Finding::new("configuration", Level::Warning, warning.to_string()));
            Ok((DoctorTarget::of(&parsed.config), warnings.collect()))
        }
        Err(LoadError::Read { file, error }) if error.kind() == io::ErrorKind::NotFound => {
            // An interface that is configured through its socket only has no file.
            let is_there = |name: &InterfaceName| {
                let has_device = cfg!(target_os = "linux") && weft_host::has_device(name.as_str());
                let directory = weft_ipc::runtime_dir::runtime_dir();
                has_device
                    || weft_uapi::client::get(name).is_ok()
                    // What a daemon that was killed has left.
                    || weft_host::Record::exists(&directory, name).unwrap_or(true)
                    || weft_host::is_left_unrecorded(&directory, name)
            };
            let Some(name) = target.parse::<InterfaceName>().ok().filter(is_there) else {
                return Err(LoadError::Read { file, error }.into());
            };
            let note = Finding::new(
                "configuration",
                Level::Note,
                format!("{} does not exist: only the interface is checked", file.display()),
            );
            Ok((DoctorTarget { interface: Some(name), ..DoctorTarget::default() }, vec![note]))
        }
        Err(error) => Err(error.into()),
    }
}
