//! `weft up`: brings an interface up from its configuration, runs it, and undoes everything at its end.
//!
//! `start.rs` brings it up, `daemon.rs` is the interface with the system around it, `supervisor.rs` the
//! control thread that keeps it running.

use std::net::SocketAddr;
use std::path::Path;

use weft_commands::{check, doctor, output};
use weft_config::exit;
use weft_config::{self as config, Config, Dns, InterfaceName, LoadError, Notice, Warning};
use weft_dataplane::DataplaneError;
use weft_host::resolve::{Cancel, ResolveError};
use weft_host::{self as host, HostError, Unsaved};
use weft_ipc::runtime_dir::runtime_dir;
use weft_tun::OpenError;
use weft_uapi::ControlError;
use weft_udp::PathMtu;
use zeroize::Zeroizing;

use crate::background::{self, BackgroundError};
use crate::cli::{MetricsArgs, UpArgs};
use crate::foreign;
use crate::interface::StartError;
use crate::metrics;
use crate::scheduling::Priority;
use crate::secrecy;

mod daemon;
#[cfg(target_os = "linux")]
pub mod detached;
mod handover;
mod in_force;
mod interruption;
#[cfg(target_os = "linux")]
mod key_claim;
mod leaving;
mod look_up;
mod message;
mod reload;
#[cfg(target_os = "linux")]
pub mod rootless;
mod served;
mod start;
mod supervisor;

use look_up::Found;

pub use daemon::{Beginning, Daemon, Opened, Resumed};

pub use crate::interface::Options;

/// Why an interface could not be brought up, or ended.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The configuration is wrong or cannot be read.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// An endpoint's name has no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The device, the sockets or the packet thread could not be set up.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The system could not be set up for the interface.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The packet thread ended by itself.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// The peers could not be set up.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The process cannot go to the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// Metrics cannot be served at the configured address.
    #[error(transparent)]
    Metrics(#[from] metrics::ListenError),
    /// The interface is down, but something failed at its end, which was logged.
    #[error("interface {interface} is down, but its end failed in part ({failures}): see the warnings above")]
    Incomplete { interface: InterfaceName, failures: usize },
    /// A signal or a request ended the start.
    #[error("the start was interrupted; all that it did is undone")]
    Interrupted,
    /// The signals that end the daemon cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] std::io::Error),
}

impl UpError {
    /// Returns the exit code for the error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Config(error) => exit::Code::of_configuration(error.is_permission_denied()),
            Self::Start(error) => error.exit_code(),
            Self::Host(error) => error.exit_code(),
            Self::Metrics(error) => error.exit_code(),
            _ => exit::Code::Failure,
        }
    }
}

impl From<UpError> for exit::Error {
    fn from(error: UpError) -> Self {
        let code = error.exit_code();
        let start = match &error {
            UpError::Start(StartError::Held { error, .. }) => Some(&**error),
            UpError::Start(error) => Some(error),
            _ => None,
        };
        let in_the_way = match start {
            Some(StartError::Tun(OpenError::Exists { name } | OpenError::NotTun { name })) => Some(name),
            _ => None,
        };
        if let Some(name) = in_the_way
            && let Some(runs) = name.parse().ok().and_then(|name| foreign::runs(&name))
        {
            return Self::new(
                code,
                format!("interface {name} already exists: {runs}; or choose another name"),
            );
        }
        Self::new(code, error)
    }
}

/// Runs `weft up`: runs the interface that the arguments name until SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// Those of [`UpError`]; nothing is left behind.
pub fn run(args: &UpArgs) -> Result<(), exit::Error> {
    match bring_up(args) {
        Err(error) if args.launchd && error.code().is_lasting() => {
            output::error(&error);
            Ok(())
        }
        other => other,
    }
}

fn bring_up(args: &UpArgs) -> Result<(), exit::Error> {
    let overrides = Overrides {
        kill_switch: args.host.kill_switch.map(Into::into),
        metrics: args.metrics.clone(),
        ..Overrides::default()
    };
    let (config, text) = load(args, &overrides).inspect_err(|_| {
        if let Ok(interface) = config::name_of(&config::path_of(&args.target)) {
            host::tell_what_is_left(&runtime_dir(), &interface);
        }
    })?;
    let options = Options {
        packet_threads: args.tun.packet_threads,
        peers: Some(config.peers.len()),
        pin: args.tun.pin,
        tun_threads: args.tun.tun_threads,
        offload: !args.tun.no_offload,
        ring_bytes: args.tun.ring_bytes(),
        path_mtu: if config.interface.host.path_mtu_discovery { PathMtu::On } else { PathMtu::Off },
        memory_limit: args.memory_limit.map(|mib| u64::from(mib) << 20),
        priority: if args.realtime { Priority::Realtime } else { Priority::Ordinary },
        ..Options::default()
    };
    if args.host.dry_run {
        return dry_run(&config::path_of(&args.target), &config);
    }
    expect_permission(&config)?;
    // A relative path names another file after a change of the working directory.
    let file = config::path_of(&args.target);
    let file = std::path::absolute(&file).unwrap_or(file);
    // Forks, so it has to come before the first thread.
    let notifier = if args.host.daemon { Some(background::begin().map_err(UpError::from)?) } else { None };
    Ok(start::run(config, text, overrides, &file, &options, notifier)?)
}

/// Settings from the command line, which override the file, also after a reload of the file.
#[derive(Clone, Debug, Default)]
struct Overrides {
    kill_switch: Option<config::KillSwitch>,
    metrics: MetricsArgs,
    /// Whether the device is in a separate network namespace.
    is_rootless: bool,
    /// The name servers that commands in such a namespace have from its start.
    dns: Option<Dns>,
}

impl Overrides {
    fn apply(&self, config: &mut Config) {
        self.metrics.apply(&mut config.interface.host.metrics);
        if let Some(kill_switch) = self.kill_switch {
            config.interface.host.kill_switch = kill_switch;
        }
        if self.is_rootless {
            weft_host::keep_what_counts_in_a_namespace(config);
        }
    }
}

/// Loads the configuration, applies the overrides of the command line, and logs warnings. Also returns the
/// text.
fn load(args: &UpArgs, overrides: &Overrides) -> Result<(Config, Zeroizing<String>), LoadError> {
    secrecy::forbid_core_dumps();
    weft_confine::enable();
    let unsaved = if args.host.dry_run { None } else { unsaved(args)? };
    let (mut parsed, text) = match unsaved {
        Some(text) => {
            let path = config::path_of(&args.target);
            (config::parse_to_start(&text, &path, name_of(args)?)?, text)
        }
        None => config::load_as_service(&args.target, args.name.as_ref())?,
    };
    weft_host::warn_of_readers(&args.target, &mut parsed.warnings);
    // A start reads key files again after PreUp, and fails if they are not there then.
    let is_settled =
        |warning: &&Warning| !args.host.dry_run && matches!(warning.notice, Notice::KeyFileToCome { .. });
    // Then the start ends with an error, which alone matters.
    let is_forbidden = !args.host.dry_run && doctor::lacks_permission();
    for warning in parsed.warnings.iter().filter(|warning| !is_forbidden && !is_settled(warning)) {
        tracing::warn!("{warning}");
    }
    let mut config = parsed.config;
    overrides.apply(&mut config);
    if let Some(warning) =
        config.interface.host.metrics.warning().filter(|_| !args.host.dry_run && !is_forbidden)
    {
        tracing::warn!("{warning}");
    }
    Ok((config, text))
}

/// Returns the interface that is brought up.
fn name_of(args: &UpArgs) -> Result<InterfaceName, LoadError> {
    args.name.clone().map_or_else(|| config::name_of(&config::path_of(&args.target)), Ok)
}

/// Saves what could not be saved when the interface went down. If it still cannot be, returns the text that
/// takes the place of the file.
fn unsaved(args: &UpArgs) -> Result<Option<Zeroizing<String>>, LoadError> {
    let path = config::path_of(&args.target);
    let interface = name_of(args)?;
    // What was kept belongs to a file; a pipe can be read once.
    if config::is_descriptor(&path) || path.metadata().is_ok_and(|entry| !entry.is_file()) {
        return Ok(None);
    }
    let path = std::path::absolute(&path).unwrap_or(path);
    let now = config::read_text_as_service(&args.target).ok();
    let now = now.as_ref().map(|text| text.as_str());
    Ok(match host::settle_unsaved(&runtime_dir(), &interface, Some(&path), now) {
        Unsaved::Nothing => None,
        Unsaved::Saved { file } => {
            tracing::info!(%interface, file = %file.display(), "saved what could not be saved at the last end");
            None
        }
        Unsaved::Kept { text, file, kept, error } => {
            tracing::warn!(
                "{}: cannot save what the last end could not save: {error}; the interface starts with it, from {}",
                file.display(),
                kept.display()
            );
            Some(text)
        }
        Unsaved::Edited { file, kept } => {
            tracing::warn!("{}", edited(&file, &kept));
            None
        }
    })
}

/// Says what to do with a state that was not saved, after its file was edited.
pub(crate) fn edited(file: &Path, kept: &Path) -> String {
    format!(
        "{} was edited since the interface went down and its state could not be saved: take what is missing from {1}, and \
         remove {1}",
        file.display(),
        kept.display()
    )
}

/// Refuses a start that is known to lack the permission to create interfaces and routes.
fn expect_permission(config: &Config) -> Result<(), UpError> {
    let name = config.interface.name.to_string();
    match doctor::lacks_permission() {
        true => Err(StartError::Tun(OpenError::PermissionDenied { name }).into()),
        false => Ok(()),
    }
}

/// Prints what would be done, and fails as the start would.
fn dry_run(file: &Path, config: &Config) -> Result<(), exit::Error> {
    // The plan works without the addresses of names that cannot be resolved now.
    let endpoints: Vec<SocketAddr> =
        Found::once(config, &Cancel::default()).endpoints.into_iter().flatten().collect();
    output::print(host::plan(config, &endpoints)?.to_string().as_bytes())?;
    let foreseen = check::foresee(file, config);
    expect_permission(config).inspect_err(|_| {
        // The start ends before it finds out.
        if let Err(later) = &foreseen {
            tracing::warn!("{later}");
        }
    })?;
    foreseen
}
