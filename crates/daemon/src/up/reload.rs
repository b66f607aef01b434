//! A declarative reload: a running interface becomes what a file says, and only differences are applied.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::{io, mem};

use weft_config::device::{DeviceChange, DeviceState};
use weft_config::exit::Code;
use weft_config::metrics::Address;
use weft_config::settings::{PeerSettingsChange, ReportSettingsChange};
use weft_config::{self as config, Config, Endpoint, Hook, HookPhase, Peer};
use weft_control::Controller;
use weft_host::misrouted::leads_back;
use weft_host::resolve::LookUp;
use weft_host::{Difference, Host, HostError, StepChange};
use weft_report::control_socket::{ManageError, Reload, ReloadReport};
use weft_tunnel::PublicKey;
use weft_uapi::{Control as _, ControlError};

use super::Overrides;
use super::daemon::{Daemon, known};
use super::look_up::{Found, InVain, PATIENCE, is_elsewhere};
use crate::carried_over::PeerAddress;
use crate::metrics;

/// Makes the interface what the text says, or with `dry_run` only reports what that would do. Also returns
/// the peers with a failed look-up. Peers that stay keep their sessions. A failure leaves everything as it
/// was.
pub(super) fn reload(
    daemon: &mut Daemon,
    config: &mut Config,
    overrides: &Overrides,
    controller: &Controller,
    reload: &Reload,
) -> Result<(ReloadReport, Vec<InVain>), ManageError> {
    let name = config.interface.name.clone();
    let parsed = config::parse(&reload.text, &reload.file, name)
        .map_err(|errors| ManageError::Configuration(errors.to_string()))?;
    let mut wanted = parsed.config;
    let later = keep_until_a_start(config, &mut wanted, overrides);
    overrides.apply(&mut wanted);
    let mut report = ReloadReport {
        warnings: parsed.warnings.iter().map(ToString::to_string).collect(),
        ..ReloadReport::default()
    };
    let state = controller.get().map_err(control_failed)?;
    let look_up = LookUp::past(daemon.host().and_then(Host::tunnel));
    let strays = strays(daemon, config, &state);
    let mut reset = set_by_hand(&wanted, &state);
    let addresses = addresses(config, &wanted, &state, &strays, &reset);
    let Found { endpoints, in_vain } = Found::of(&wanted, &addresses, PATIENCE, &look_up);
    let warnings = in_vain.iter().map(|name| format!("{}; it is tried again in the background", name.error));
    report.warnings.extend(warnings);
    report.warnings.extend(commands_that_do_not_run(config, &wanted));
    report.warnings.extend(later);
    // The name in the file may stand for the address that was set.
    let places = endpoints.iter().zip(current(&wanted, &state));
    for (peer, _) in wanted.peers.iter().zip(places).filter(|(_, (to, here))| *to == here) {
        reset.remove(&peer.public_key);
    }
    reset.extend(strays);
    let mut device = difference(config, &wanted, &state, &endpoints);

    daemon.see_mtu(config).map_err(control_failed)?;
    let host = daemon.host_mut().ok_or(ManageError::Ended)?;
    let plan = host.plan_for(&wanted, &known(&endpoints)).map_err(host_failed)?;
    let steps = Difference::between(host.in_force(), &plan.steps);
    let own = &wanted.interface.name;
    report.steps = told(config, &wanted, &state, &reset);
    if plan.mark != state.settings.fw_mark {
        report.steps.push(format!("set mark {:#x}", plan.mark));
    }
    report.tunnel_steps = report.steps.len();
    report.steps.extend(steps.changes.iter().map(|change| match change {
        StepChange::Add(step) | StepChange::Replace { to: step, .. } => step.doing(own).to_string(),
        StepChange::Remove(step) => step.undoing(own).to_string(),
    }));
    report.steps.extend(host.to_do_again(&plan).iter().map(|step| step.doing(own).to_string()));
    if reload.dry_run {
        // The sockets of an interface without root are those of another namespace.
        if !reload.is_saved && !overrides.is_rootless {
            report.refused = ports_in_use(config, &wanted, &state);
        }
        return Ok((report, in_vain));
    }

    let before = known(&current(config, &state));
    host.reload(&wanted, &known(&endpoints)).map_err(host_failed)?;
    device.settings.fw_mark = Some(host.mark());
    let mtu = host.mtu();
    let applied = controller.apply(&device).and_then(|()| controller.set_mtu(mtu));
    if let Err(error) = applied {
        if let Err(again) = host.reload(config, &before) {
            tracing::warn!("while undoing a reload that failed: {again}");
        }
        return Err(control_failed(error));
    }
    *config = wanted;
    tracing::info!(changes = report.steps.len(), "the configuration was loaded again");
    Ok((report, in_vain))
}

/// Returns the peers that were last heard from elsewhere than at the endpoint of the file, at an address that
/// the tunnel's own packets reach through the tunnel only: they would go round in circles.
fn strays(daemon: &Daemon, config: &Config, state: &DeviceState) -> HashSet<PublicKey> {
    let Some((host, own)) = daemon.host().and_then(|host| Some((host, host.link_here()?))) else {
        return HashSet::new();
    };
    let heard: HashMap<PublicKey, SocketAddr> =
        state.peers.iter().filter_map(|peer| Some((peer.public_key, peer.endpoint?))).collect();
    let is_astray = |peer: &&Peer| {
        heard.get(&peer.public_key).is_some_and(|here| {
            is_elsewhere(peer, *here) && leads_back(host.netlink(), &own.name, *here, host.mark())
        })
    };
    config.peers.iter().filter(is_astray).map(|peer| peer.public_key).collect()
}

/// Returns the peers at an endpoint that a client of UAPI set, and that is not the one of the file.
fn set_by_hand(wanted: &Config, state: &DeviceState) -> HashSet<PublicKey> {
    let set = state.peers.iter().filter(|peer| peer.is_endpoint_set);
    let set: HashMap<PublicKey, SocketAddr> =
        set.filter_map(|peer| Some((peer.public_key, peer.endpoint?))).collect();
    let differs = |peer: &&Peer| set.get(&peer.public_key).is_some_and(|here| is_elsewhere(peer, *here));
    wanted.peers.iter().filter(differs).map(|peer| peer.public_key).collect()
}

/// Returns where the peers are: a peer with the same endpoint in the file stays where it was last heard
/// from, unless it is a stray, or a client of UAPI set that endpoint.
fn addresses(
    old: &Config,
    new: &Config,
    state: &DeviceState,
    strays: &HashSet<PublicKey>,
    set_by_hand: &HashSet<PublicKey>,
) -> Vec<PeerAddress> {
    let configured: HashMap<PublicKey, Option<&Endpoint>> =
        old.peers.iter().map(|peer| (peer.public_key, peer.endpoint.as_ref())).collect();
    let heard: HashMap<PublicKey, SocketAddr> =
        state.peers.iter().filter_map(|peer| Some((peer.public_key, peer.endpoint?))).collect();
    let place = |peer: &Peer| {
        let endpoint = peer.endpoint.as_ref();
        let last = heard.get(&peer.public_key).copied().filter(|_| !strays.contains(&peer.public_key));
        match last {
            Some(here)
                if configured.get(&peer.public_key) == Some(&endpoint)
                    && !set_by_hand.contains(&peer.public_key) =>
            {
                PeerAddress::Known(here)
            }
            _ if endpoint.is_some() => PeerAddress::LookUp { last },
            _ => PeerAddress::None,
        }
    };
    new.peers.iter().map(place).collect()
}

pub(super) fn current(config: &Config, state: &DeviceState) -> Vec<Option<SocketAddr>> {
    let heard: HashMap<PublicKey, Option<SocketAddr>> =
        state.peers.iter().map(|peer| (peer.public_key, peer.endpoint)).collect();
    config.peers.iter().map(|peer| heard.get(&peer.public_key).copied().flatten()).collect()
}

/// Returns the change of the tunnel, without endpoints that stay the same.
fn difference(
    old: &Config,
    new: &Config,
    state: &DeviceState,
    endpoints: &[Option<SocketAddr>],
) -> DeviceChange {
    let mut change = new.change(endpoints);
    let here: HashMap<PublicKey, Option<SocketAddr>> =
        state.peers.iter().map(|peer| (peer.public_key, peer.endpoint)).collect();
    for peer in &mut change.peers {
        if here.get(&peer.public_key).copied().flatten() == peer.endpoint {
            peer.endpoint = None;
        }
    }
    // If neither configuration sets a port, the random port stays.
    let port = new.interface.settings.listen_port;
    let is_given = port != 0 || old.interface.settings.listen_port != 0;
    change.settings.listen_port = Some(port).filter(|_| is_given);
    change
}

/// Returns a sentence for each change of keys, port, metrics, speed tests, the end and peers. `reset` are the
/// peers that go back to the endpoint of the file. Contains no keys except public ones.
fn told(old: &Config, new: &Config, state: &DeviceState, reset: &HashSet<PublicKey>) -> Vec<String> {
    let mut told = Vec::new();
    if let Some(key) = &new.interface.settings.private_key
        && state.settings.private_key.as_ref() != Some(key)
    {
        told.push(format!("set another private key: the interface is {} from then on", key.public_key()));
    }
    let port = new.interface.settings.listen_port;
    if (port != 0 || old.interface.settings.listen_port != 0) && port != state.settings.listen_port {
        told.push(if port == 0 {
            "listen on a random port".to_owned()
        } else {
            format!("listen on port {port}")
        });
    }
    let wanted: HashMap<PublicKey, &Peer> = new.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let configured: HashMap<PublicKey, &Peer> =
        old.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let metrics = &new.interface.host.metrics;
    if metrics.address != old.interface.host.metrics.address {
        told.push(metrics_step(metrics.address.as_ref()));
    }
    if metrics.hosts != old.interface.host.metrics.hosts {
        told.push("change the host names that requests for metrics may use".to_owned());
    }
    if new.interface.host.speed_test != old.interface.host.speed_test {
        let does = if new.interface.host.speed_test { "allow" } else { "refuse" };
        told.push(format!("{does} speed tests of peers"));
    }
    for phase in [HookPhase::PreDown, HookPhase::PostDown] {
        if has_other_commands(phase, old, new) {
            told.push(format!("at the end, run {} as it is in the file now", phase.key()));
        }
    }
    if new.interface.host.save_config != old.interface.host.save_config {
        let does = if new.interface.host.save_config { "save" } else { "do not save" };
        told.push(format!("at the end, {does} the state into the file"));
    }
    let label = |key: &PublicKey| {
        let named = [configured.get(key), wanted.get(key)].into_iter().flatten();
        let name = named.filter_map(|peer| peer.report.friendly_name.as_deref()).next();
        name.map_or_else(|| key.to_string(), |name| format!("{key} ({name})"))
    };
    let gone = state.peers.iter().filter(|peer| !wanted.contains_key(&peer.public_key));
    told.extend(gone.map(|peer| format!("remove peer {}", label(&peer.public_key))));
    let running: HashMap<PublicKey, _> = state.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    for peer in &new.peers {
        let Some(is) = running.get(&peer.public_key) else {
            told.push(format!("add peer {}", label(&peer.public_key)));
            continue;
        };
        let sorted = |nets: &[ipnet::IpNet]| {
            let mut nets = nets.to_vec();
            nets.sort_unstable();
            nets
        };
        let was = configured.get(&peer.public_key);
        // A file that was saved has the endpoint from which the peer was heard.
        let is_here = matches!(&peer.endpoint, Some(Endpoint::Address(new)) if is.endpoint == Some(*new));
        let is_other = was.map(|peer| &peer.endpoint) != Some(&peer.endpoint) && !is_here;
        let endpoint = is_other || reset.contains(&peer.public_key);
        let parts = [
            ("endpoint", endpoint && peer.endpoint.is_some()),
            ("allowed IPs", sorted(&is.allowed_ips) != sorted(&peer.allowed_ips)),
        ];
        let parts = parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part);
        let settings = PeerSettingsChange::from(peer.settings.clone()).without(&is.settings);
        let report = was.map(|was| was.report.clone()).unwrap_or_default();
        let report = ReportSettingsChange::from(peer.report.clone()).without(&report);
        let parts: Vec<&str> = parts.chain(settings.names()).chain(report.names()).collect();
        if !parts.is_empty() {
            told.push(format!("change {} of peer {}", parts.join(", "), label(&peer.public_key)));
        }
    }
    told
}

/// Says at which address metrics are served.
pub(super) fn metrics_step(address: Option<&Address>) -> String {
    address.map_or_else(|| "serve no metrics".to_owned(), |address| format!("serve metrics on {address}"))
}

/// Returns why ports that the configuration has cannot be had now.
fn ports_in_use(old: &Config, new: &Config, state: &DeviceState) -> Vec<String> {
    let metrics = &new.interface.host.metrics.address;
    let metrics =
        metrics.as_ref().filter(|address| old.interface.host.metrics.address.as_ref() != Some(address));
    let metrics = metrics.and_then(|address| metrics::Listener::foresee(address).err());
    let port = new.interface.settings.listen_port;
    let is_other = port != 0 && port != state.settings.listen_port;
    let in_use = || {
        let any = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        any.iter().any(|address| {
            UdpSocket::bind((*address, port)).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        })
    };
    let port = (is_other && in_use()).then(|| {
        format!(
            "cannot listen on port {port}: another program has that UDP port; choose another ListenPort \
             (`ss -ulpn sport = :{port}` shows which one)"
        )
    });
    port.into_iter().chain(metrics.map(|error| error.to_string())).collect()
}

/// Reports whether the commands of a phase differ, regardless of their lines.
fn has_other_commands(phase: HookPhase, old: &Config, new: &Config) -> bool {
    let commands = |config: &Config| -> Vec<String> {
        config.interface.host.hooks_of(phase).map(|hook| hook.command.clone()).collect()
    };
    commands(old) != commands(new)
}

/// Returns a sentence for each kind of commands that a start would run, and a reload does not.
fn commands_that_do_not_run(old: &Config, new: &Config) -> Vec<String> {
    let differing = [HookPhase::PreUp, HookPhase::PostUp]
        .into_iter()
        .filter(|phase| has_other_commands(*phase, old, new));
    let sentence = |phase: HookPhase| {
        let place = new.interface.host.hooks_of(phase).next().map(Hook::place);
        let place = place.unwrap_or_else(|| phase.key().to_owned());
        format!(
            "{place}: the commands differ from those that ran, and do not run now: they run when {} comes up; until then \
             what the former ones set stays",
            new.interface.name
        )
    };
    differing.map(sentence).collect()
}

/// Returns a sentence for each setting that differs and that only a start applies. `wanted` keeps what is in
/// force, so that the next reload says it again.
fn keep_until_a_start(running: &Config, wanted: &mut Config, overrides: &Overrides) -> Vec<String> {
    let Config { interface, .. } = wanted;
    let in_force = running.interface.host.path_mtu_discovery;
    let discovery = mem::replace(&mut interface.host.path_mtu_discovery, in_force) != in_force;
    let dns = overrides.dns.as_ref().is_some_and(|dns| *dns != interface.host.dns);
    let differing =
        [("PathMtuDiscovery", discovery), ("DNS", dns)].into_iter().filter(|(_, differs)| *differs);
    let sentence = |(key, _)| {
        let name = &interface.name;
        format!(
            "{key}: what is in the file now counts from the next start of {name}; until then the former setting stays"
        )
    };
    differing.map(sentence).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn host_failed(error: HostError) -> ManageError {
    let message = error.to_string();
    match error.exit_code() {
        Code::Permission => ManageError::Permission(message),
        Code::Configuration => ManageError::Configuration(message),
        _ => ManageError::Failed(message),
    }
}

pub(super) fn control_failed(error: ControlError) -> ManageError {
    match error {
        ControlError::Ended => ManageError::Ended,
        error => ManageError::Failed(error.to_string()),
    }
}
