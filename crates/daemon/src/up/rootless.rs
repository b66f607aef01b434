//! An interface without root: the device is in namespaces of this user, the UDP sockets are outside.
//!
//! A process without a terminal runs it, which the first command that uses it has forked ([`join`]). Its main
//! thread is the control thread of the interface. It ends with the last command that uses it.

use std::cell::RefCell;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use weft_commands::{output, signals};
use weft_config::exit::{Code, Error};
use weft_config::{Config, Dns, InterfaceName, PacketThreads, Source, TunThreads};
use weft_host::Host;
use weft_host::resolve::{Cancel, Retries};
use weft_ipc::holder::Held;
use weft_ipc::runtime_dir::{self, runtime_dir, user_dir};
use weft_report::control_socket::{self, Client};
use weft_rootless::{Backing, Inside, Member, Members, Names, Namespace, TunnelState};
use weft_tunnel::PublicKey;
use weft_udp::PathMtu;

use super::daemon::{Beginning, Daemon, known};
use super::interruption::Interruption;
use super::key_claim::{ClaimError, KeyClaim};
use super::look_up::Found;
use super::message::{Inbox, MESSAGES, Message};
use super::served::Served;
use super::supervisor::Supervisor;
use super::{Options, Overrides, UpError};
use crate::cli::{NameServer, RootlessArgs, TunArgs};
use crate::interface::{Inherited, Interface};
use crate::secrecy;
use crate::{logging, metrics};

/// Joins the tunnel of a file that this user runs, or brings it up. Call it before the first thread is
/// started.
///
/// # Errors
/// The namespaces are refused, the configuration is wrong, or the tunnel could not be set up: nothing is left
/// behind then. A tunnel runs that is not what the arguments ask for.
pub fn join(args: &RootlessArgs) -> Result<(Member, Inside), Error> {
    weft_confine::enable();
    let source = Source::read(&args.target)?;
    let name = source.interface.clone();
    let mut file = source.file.clone();
    if source.is_file {
        file = std::fs::canonicalize(&file).or_else(|_| std::path::absolute(&file)).unwrap_or(file);
    }
    let (is_file, text_hash) = (source.is_file, weft_host::text_hash(&source.text));
    let place = file.clone();
    let run = move |members: &Members| run(args, source, &place, members);
    let (member, inside) = weft_rootless::join(directory_of_user().as_deref(), &name, run)?;
    if !member.has_started_it() {
        compare(&member, args, is_file.then_some(&*file), text_hash)?;
    }
    Ok((member, inside))
}

/// Returns the runtime directory of this user. Warns if there is none: the tunnel comes up without it.
pub(super) fn directory_of_user() -> Option<PathBuf> {
    let warn = |error: &_| {
        output::warning(&format!("no other command finds this tunnel, or that it has its key: {error}"));
    };
    user_dir().inspect_err(warn).ok()
}

/// Compares a tunnel that runs with what this command asks for. That of standard input or a pipe has the name
/// of its text, and no file.
fn compare(member: &Member, args: &RootlessArgs, file: Option<&Path>, text_hash: u64) -> Result<(), Error> {
    let state = member.state();
    let process = state.process;
    let refused = |message| Err(Error::new(Code::Failure, message));
    if file.is_some_and(|file| state.file != *file) {
        return refused(format!(
            "process {process} runs a tunnel of the same name from {}: end it first, or give this file another name",
            state.file.display()
        ));
    }
    let given = args.of_tunnel();
    if !given.is_empty() && given != state.options {
        return refused(format!(
            "the tunnel of {} runs already (process {process}), and {} is for the command that starts it: leave it out, \
             or end the tunnel first (`weft down`)",
            args.target,
            given.join(", ")
        ));
    }
    if text_hash != state.text_hash {
        output::warning(&format!(
            "{0}: the file was edited since the tunnel came up, which has the earlier text; `weft reload {0}` applies it",
            args.target
        ));
    }
    Ok(())
}

/// Brings the tunnel up, and runs it until its last member has left or it is stopped.
fn run(args: &RootlessArgs, source: Source, file: &Path, members: &Members) -> Result<(), Error> {
    let namespace = Namespace::make()?;
    let _log = logging::queue::start();
    let (inbox, messages) = mpsc::sync_channel(MESSAGES);
    let cancel = Cancel::default();
    let (stop, look_up) = (inbox.clone(), cancel.clone());
    members.serve(move || {
        look_up.cancel();
        let _ended = stop.send(Message::Stop);
    })?;
    let signal = inbox.clone();
    signals::watch(move |received| drop(signal.send(Message::Signal(received))))?;

    let (text_hash, is_file) = (weft_host::text_hash(&source.text), source.is_file);
    let Prepared { in_file, config, overrides, metrics, found, claim } = prepare(args, source, &cancel)?;
    for warning in namespace.set_up()? {
        output::warning(&warning);
    }

    let options = options(args.tun, &config);
    let mut supervisor = bring_up(&namespace, config, overrides, &found, &options, &inbox, metrics)?;
    if is_file {
        supervisor.is_from(file);
    }
    let state = TunnelState {
        process: std::process::id(),
        file: file.to_owned(),
        text_hash,
        options: args.of_tunnel(),
        allowed_ips: allowed_ips(&in_file),
        dns: in_file.interface.host.dns,
    };
    members.up(&state, &namespace)?;
    supervisor.is_used_by(members.processes());
    let change = members.changes();
    supervisor.on_loaded = Some(Box::new(move |config, text| {
        let taken = claim.follow(config);
        let told = change(&|state| {
            state.text_hash = weft_host::text_hash(text);
            state.allowed_ips = allowed_ips(config);
        });
        let untold = told.err();
        let untold = untold
            .map(|error| format!("cannot tell the commands that use the tunnel of the change: {error}"));
        taken.into_iter().chain(untold).collect()
    }));
    supervisor.on_ending = Some(Box::new(members.ending()));
    Ok(supervisor.work(messages, file)?)
}

/// What a tunnel without root has before its device.
pub(super) struct Prepared {
    /// The configuration as it is in the file.
    pub(super) in_file: Config,
    /// The same with the options of the command.
    pub(super) config: Config,
    pub(super) overrides: Overrides,
    pub(super) metrics: Option<metrics::Listener>,
    pub(super) found: Found,
    /// For as long as the tunnel runs.
    pub(super) claim: Claimed,
}

/// The claim of the key that a tunnel has.
pub(super) struct Claimed(RefCell<Option<(PublicKey, KeyClaim)>>);

impl Claimed {
    /// Claims the key of a configuration that was loaded in place of the one before. Returns a warning if
    /// another interface has it.
    pub(super) fn follow(&self, config: &Config) -> Option<String> {
        let (mut claimed, key) = (self.0.borrow_mut(), config.interface.settings.private_key.as_ref()?);
        let public = key.public_key();
        if claimed.as_ref().is_some_and(|(key, _)| *key == public) {
            return None;
        }
        *claimed = None;
        let interface = &config.interface.name;
        let claim =
            user_dir().map_err(ClaimError::from).and_then(|own| KeyClaim::new(&own, &public, interface));
        match claim {
            Ok(claim) => {
                *claimed = Some((public, claim));
                None
            }
            Err(error) => Some(format!("the new key of {interface} is not claimed: {error}")),
        }
    }
}

/// Loads the configuration, takes what it needs of the system, and looks names up.
pub(super) fn prepare(args: &RootlessArgs, source: Source, cancel: &Cancel) -> Result<Prepared, Error> {
    let in_file = load(args, source)?;
    let overrides = Overrides {
        metrics: args.metrics.clone(),
        is_rootless: true,
        dns: Some(in_file.interface.host.dns.clone()),
        ..Overrides::default()
    };
    let mut config = in_file.clone();
    overrides.apply(&mut config);
    if let Some(warning) = config.interface.host.metrics.warning() {
        output::warning(&warning);
    }
    let claim = Claimed(RefCell::new(claim_key(&config, &args.target)?));
    let metrics = metrics::open(config.interface.host.metrics.address.as_ref()).map_err(UpError::from)?;
    weft_host::wait_for_release(&runtime_dir(), Held::Udp(config.interface.settings.listen_port));
    let found = Found::at_start(&config, Retries::from_environment(), cancel).map_err(UpError::from)?;
    Ok(Prepared { in_file, config, overrides, metrics, found, claim })
}

pub(super) fn allowed_ips(config: &Config) -> Vec<Vec<ipnet::IpNet>> {
    config.peers.iter().map(|peer| peer.allowed_ips.clone()).collect()
}

/// Loads the configuration and logs warnings.
fn load(args: &RootlessArgs, source: Source) -> Result<Config, Error> {
    secrecy::forbid_core_dumps();
    let mut parsed = source.parse()?;
    // The text has keys, and is wiped.
    drop(source);
    weft_host::warn_of_readers(&args.target, &mut parsed.warnings);
    for warning in &parsed.warnings {
        output::warning(&warning);
    }
    if parsed.config.interface.settings.private_key.is_none() {
        return Err(Error::new(
            Code::Configuration,
            format!(
                "{}: [Interface] has no PrivateKey, and commands of a file do not run without root",
                args.target
            ),
        ));
    }
    let removed = weft_host::keep_what_counts_in_a_namespace(&mut parsed.config.clone());
    if !removed.is_empty() {
        let target = &args.target;
        output::warning(&format!("{target}: without root, {} has no effect", removed.join(", ")));
    }
    Ok(parsed.config)
}

/// Claims the key of an interface. Interfaces that `weft up` runs have not claimed theirs, and those of other
/// users do not tell it.
fn claim_key(config: &Config, target: &str) -> Result<Option<(PublicKey, KeyClaim)>, Error> {
    let Some(key) = config.interface.settings.private_key.as_ref() else { return Ok(None) };
    let public = key.public_key();
    let refused = |holder: String, advice: String| {
        let message = format!(
            "{holder} has the key of {target}: both would take the session with the peers from each other; {advice}, or \
             use another key"
        );
        Err(Error::new(Code::Failure, message))
    };
    let refused_by = |process: u32, name: &InterfaceName| {
        refused(format!("interface {name} (process {process})"), format!("end it (`weft down {name}`)"))
    };
    for name in control_socket::running().unwrap_or_default() {
        let Ok(report) = Client::connect(&name).and_then(|mut client| client.status()) else { continue };
        if report.public_key == Some(public.to_string()) {
            return refused_by(report.pid, &name);
        }
    }
    // `directory_of_user` has warned.
    let Ok(directory) = user_dir() else { return Ok(None) };
    match KeyClaim::new(&directory, &public, &config.interface.name) {
        Ok(claim) => Ok(Some((public, claim))),
        Err(ClaimError::Taken(Some((process, name)))) => refused_by(process, &name),
        Err(ClaimError::Taken(None)) => refused("another interface".to_owned(), "end it".to_owned()),
        Err(error) => {
            tracing::warn!("other commands with the key of {target} are not refused: {error}");
            Ok(None)
        }
    }
}

/// The servers that a command looks names up at.
pub enum NameServers {
    /// Inside the tunnel; there may be none.
    Tunnel(Names),
    /// Those of the host.
    Host(Names),
}

/// Returns the servers that a command looks names up at: those of its arguments, else those of the file.
///
/// # Errors
/// The arguments contradict each other; the host has no servers.
pub fn name_servers(args: &RootlessArgs, dns: &Dns) -> Result<NameServers, Error> {
    if args.dns.contains(&NameServer::Host) {
        if args.dns.iter().any(|server| *server != NameServer::Host) {
            let message = "--dns host is for all names: leave the other --dns out";
            return Err(Error::new(Code::Usage, message));
        }
        let names = Names::of_host().map_err(|message| Error::new(Code::Failure, message))?;
        return Ok(NameServers::Host(names));
    }
    let mut names = Names::from(dns);
    if !args.dns.is_empty() {
        let address = |server: &NameServer| match server {
            NameServer::Host => None,
            NameServer::Address(address) => Some(*address),
        };
        names.servers = args.dns.iter().filter_map(address).collect();
    }
    Ok(NameServers::Tunnel(names))
}

pub(super) fn options(tun: TunArgs, config: &Config) -> Options {
    Options {
        packet_threads: tun.packet_threads,
        peers: Some(config.peers.len()),
        pin: tun.pin,
        tun_threads: tun.tun_threads,
        offload: !tun.no_offload,
        path_mtu: if config.interface.host.path_mtu_discovery { PathMtu::On } else { PathMtu::Off },
        ..Options::default()
    }
}

/// Returns the one kind of device to use. Without it, a veth pair takes the place of a TUN that may not be.
fn wanted_backing() -> Option<Backing> {
    /// Allows one kind alone, for tests and measurements.
    const VARIABLE: &str = "WEFT_ROOTLESS_DEVICE";
    let value = std::env::var_os(VARIABLE)?;
    let wanted = [Backing::Tun, Backing::Veth].into_iter().find(|backing| value == backing.name());
    if wanted.is_none() {
        tracing::warn!("{VARIABLE}={} is ignored: it is tun or veth", value.display());
    }
    wanted
}

/// Returns the options for a device that has one queue. What was chosen automatically fits it, and nothing
/// has to be said of it.
pub(super) fn with_one_queue(options: &Options) -> Options {
    let with_threads = options.tun_queues().with_threads().min(1) as u16;
    let packet_threads = match options.packet_threads {
        PacketThreads::Auto => PacketThreads::Fixed(NonZeroU16::MIN),
        fixed @ PacketThreads::Fixed(_) => fixed,
    };
    Options { packet_threads, tun_threads: TunThreads::Fixed(with_threads), ..options.clone() }
}

/// Makes the device and starts the interface on it.
fn bring_up(
    namespace: &Namespace,
    config: Config,
    overrides: Overrides,
    found: &Found,
    options: &Options,
    inbox: &Inbox,
    metrics: Option<metrics::Listener>,
) -> Result<Supervisor, Error> {
    let (name, count) = (&config.interface.name, options.tun_queues().count);
    let device = namespace.device(name.as_str(), count, options.offload, wanted_backing())?;
    let options = &match device.backing {
        Backing::Tun => options.clone(),
        Backing::Veth => with_one_queue(options),
    };
    let inherited = Inherited {
        queues: device.queues,
        namespace: Some(Arc::new(namespace.device_namespace()?)),
        ..Inherited::default()
    };
    let host = Host::in_namespace(&config, None, &known(&found.endpoints), namespace.netlink()?)?;
    let mut supervisor = bring_up_on((host, inherited), config, overrides, found, options, inbox, metrics)?;
    supervisor.device_is_in(namespace.proc_net(), device.backing.name(), device.far_counters);
    supervisor.report(options);
    supervisor.ready();
    Ok(supervisor)
}

/// Starts the interface on a device, or what takes its place.
pub(super) fn bring_up_on(
    (host, inherited): (Host, Inherited),
    config: Config,
    overrides: Overrides,
    found: &Found,
    options: &Options,
    inbox: &Inbox,
    metrics: Option<metrics::Listener>,
) -> Result<Supervisor, Error> {
    let beginning = Beginning {
        endpoints: found.endpoints.clone(),
        inherited,
        port: config.interface.settings.listen_port,
        ..Beginning::default()
    };
    let (ended, happened) = (inbox.clone(), inbox.clone());
    let on_event = Box::new(move |event| drop(happened.try_send(Message::Peer(event))));
    let on_end = move || drop(ended.send(Message::Ended));
    // `directory_of_user` has warned.
    let name = &config.interface.name;
    let socket = user_dir().ok().map(|own| runtime_dir::control_socket(&own, name));
    let on_open = |interface: &Interface| {
        Served::open(interface, &config, options, inbox, &Interruption::default(), socket, metrics)
    };
    let (daemon, served) =
        Daemon::start_on(host, &config, beginning, options, Some(on_event), on_open, on_end)?;
    let is_configured = Arc::<AtomicBool>::default();
    Ok(Supervisor::start(daemon, served, config, overrides, found, inbox, is_configured)?)
}
