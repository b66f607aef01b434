//! `weft check`: parses a configuration and shows its meaning.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::Path;

use comfy_table::{ContentArrangement, Table, presets};
use ipnet::IpNet;
use serde::Serialize;
use weft_config::exit::{Code, Error};
use weft_config::{
    self as config, Config, HookPhase, Interface, KillSwitch, LoadError, Location, Peer, Table as RouteTable,
};
use weft_host::misrouted::Misrouted;
use weft_host::routes::{self, Routing};
use weft_host::{Plan, Step, SystemState};
use weft_report::finding::Level;
use weft_report::short_key;
use weft_tunnel::PeerLimits;

use crate::args::CheckArgs;
use crate::misrouted::before_start;
use crate::status::{SHOWN_PEERS, first, more};
use crate::{doctor, output, own_file, running};

mod json;

use json::Report;

/// Checks the file. Prints warnings to standard error, and the meaning of the file to standard output.
/// Returns the errors; `--json` prints them to standard output as well.
pub fn run(args: &CheckArgs) -> Result<(), Error> {
    let target = &own_file::file_of(&args.target)?;
    let source = own_file::read(&args.target, target);
    let file = source.as_ref().map_or_else(|_| config::path_of(target), |source| source.file.clone());
    let mut loaded = source.and_then(|source| source.parse_to_start());
    if let Ok(parsed) = &mut loaded {
        weft_host::warn_of_readers(target, &mut parsed.warnings);
    }
    let warnings = match &loaded {
        Ok(parsed) => &parsed.warnings[..],
        Err(LoadError::Config(errors)) => &errors.warnings[..],
        Err(_) => &[],
    };
    for warning in warnings {
        output::warning(warning);
    }
    if loaded.is_ok() && matches!(config::name_of(&config::path_of(target)), Err(LoadError::Name { .. })) {
        output::note(&"the name of the file is not that of an interface: `weft up` needs --name NAME for it");
    }
    if let Ok(parsed) = &loaded {
        running::warn_of_leftovers(Some(&parsed.config.interface.name));
    }
    let outlook = loaded.as_ref().map(|parsed| Outlook::of(&file, &parsed.config));
    let Outlook { refusals, code, astray, elsewhere, lacks } = outlook.unwrap_or_default();
    for (level, finding) in &elsewhere {
        if *level == Level::Note { output::note(finding) } else { output::warning(finding) }
    }
    for finding in &lacks {
        output::warning(finding);
    }
    let problems = [astray, refusals].concat();
    let refused = refuse(code, &problems);
    if args.json {
        let mut report = Report::new(&args.target, &loaded);
        report.warnings.extend(elsewhere.into_iter().map(|(_, finding)| finding).chain(lacks));
        report.ok &= problems.is_empty();
        report.errors.extend(problems);
        output::print_json(&report)?;
    }
    let parsed = loaded?;
    if !args.json {
        output::print(summary(&parsed.config, output::columns()).as_bytes())?;
    }
    refused
}

/// Tells the log what [`run`] tells of a file that is right: what will not work once the interface is up, and
/// what it will lack.
///
/// # Errors
/// Those with which a start on this machine would end, as far as they are known before.
pub fn foresee(file: &Path, config: &Config) -> Result<(), Error> {
    let Outlook { refusals, code, astray, elsewhere, lacks } = Outlook::of(file, config);
    for finding in astray.iter().chain(&lacks) {
        tracing::warn!("{finding}");
    }
    for (level, finding) in &elsewhere {
        match level {
            Level::Note => tracing::info!("{finding}"),
            _ => tracing::warn!("{finding}"),
        }
    }
    refuse(code, &refusals)
}

fn refuse(code: Option<Code>, problems: &[Finding]) -> Result<(), Error> {
    let told = texts(problems).join("\n");
    if problems.is_empty() { Ok(()) } else { Err(Error::new(code.unwrap_or(Code::Failure), told)) }
}

/// What becomes of a configuration on this machine now.
#[derive(Default)]
struct Outlook {
    /// What a start fails with, and its exit code.
    refusals: Vec<Finding>,
    code: Option<Code>,
    /// What cannot work once the interface is up.
    astray: Vec<Finding>,
    /// What does not go where the file means it to go, and may be meant.
    elsewhere: Vec<(Level, Finding)>,
    /// What the machine lacks for a part of it.
    lacks: Vec<Finding>,
}

impl Outlook {
    fn of(file: &Path, config: &Config) -> Self {
        let dns = weft_host::misrouted::dns_predicted(config);
        let is_wrong = matches!(dns, Some(Misrouted::NoDns { is_wrong: true, .. }));
        let (problems, elsewhere): (Vec<_>, Vec<_>) =
            misrouted(file, config, dns).into_iter().partition(|(level, _)| *level == Level::Problem);
        let problems = problems.into_iter().map(|(_, finding)| finding);
        let (mut refusals, astray): (Vec<_>, Vec<_>) =
            problems.partition(|finding| finding.key.as_deref() == Some("DNS"));
        let (obstacles, lacks, code) = obstacles(file, config);
        let code = if is_wrong && !refusals.is_empty() { Code::Configuration } else { code };
        refusals.extend(obstacles);
        Self { refusals, code: Some(code), astray, elsewhere, lacks }
    }
}

/// Returns the finding about a key of the file.
fn here(file: &Path, misrouted: &Misrouted) -> Finding {
    let text = config::read_regular_text(file).unwrap_or_default();
    let key = misrouted.key();
    let line = misrouted.network().and_then(|network| config::line_with_network(&text, key, network));
    // A setting that the file does not have is no place.
    let has_key = text.as_bytes().windows(key.len()).any(|part| part.eq_ignore_ascii_case(key.as_bytes()));
    Finding {
        file: Some(file.display().to_string()),
        line,
        key: (has_key || text.is_empty()).then(|| key.to_owned()),
        message: format!("{misrouted}; {}", misrouted.advice()),
    }
}

/// Returns what keeps the interface from being brought up on this machine now, what it will lack, and the
/// exit code of the start.
fn obstacles(file: &Path, config: &Config) -> (Vec<Finding>, Vec<Finding>, Code) {
    let finding = |problem: weft_report::finding::Finding| Finding {
        file: Some(file.display().to_string()),
        line: None,
        key: match &*problem.check {
            "port" => Some("ListenPort"),
            "same_key" => Some("PrivateKey"),
            "metrics" => Some("Metrics"),
            "route" => Some("AllowedIPs"),
            "scope" => Some("Endpoint"),
            "nft" if config.interface.host.kill_switch != KillSwitch::Off => Some("KillSwitch"),
            "nft" if config.interface.host.mss_clamp => Some("MssClamp"),
            "nft" => Some("AllowedIPs"),
            _ => None,
        }
        .map(str::to_owned),
        message: match problem.advice {
            Some(advice) => format!("{}; {advice}", problem.says),
            None => problem.says,
        },
    };
    let (findings, code) = doctor::findings_of_start(config);
    let (problems, lacks): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| finding.level == Level::Problem);
    (problems.into_iter().map(finding).collect(), lacks.into_iter().map(finding).collect(), code)
}

/// Returns what would not go where the file means it to go if it was brought up on this machine now. Names of
/// endpoints are not looked up.
fn misrouted(file: &Path, config: &Config, dns: Option<Misrouted>) -> Vec<(Level, Finding)> {
    let endpoints: Vec<SocketAddr> = config.endpoint_addresses().into_iter().flatten().collect();
    let found = weft_host::misrouted::predicted(config, &endpoints).into_iter();
    let found = found.chain(dns).chain(weft_host::misrouted::not_forwarded(config));
    let finding = |misrouted: Misrouted| (before_start(&misrouted, config).level, here(file, &misrouted));
    found.map(finding).chain(no_address(file, config)).collect()
}

/// Returns a note if packets of this machine go into the tunnel with no address that belongs there. A command
/// may set one.
fn no_address(file: &Path, config: &Config) -> Option<(Level, Finding)> {
    let Interface { addresses, host, .. } = &config.interface;
    let has_command =
        host.hooks.iter().any(|hook| matches!(hook.phase, HookPhase::PreUp | HookPhase::PostUp));
    let is_used = config.peers.iter().any(|peer| !peer.allowed_ips.is_empty());
    let message = "[Interface] has none, and packets of this machine enter the tunnel with an address that its peers may not \
                   take; add the line `Address = …` with the one that the other end has in its AllowedIPs";
    let finding = || Finding {
        file: Some(file.display().to_string()),
        line: None,
        key: Some("Address".to_owned()),
        message: message.to_owned(),
    };
    (addresses.is_empty() && is_used && !has_command).then(|| (Level::Note, finding()))
}

/// Formats the file for people: tables, or what they say line by line where they are wider than the terminal.
fn summary(config: &Config, width: Option<usize>) -> String {
    let interface = &config.interface;
    let settings = &interface.settings;
    let public_key = public_key(interface).unwrap_or_else(|| "none: a command has to set it".to_owned());
    let mtu = interface.mtu.map_or("from the routes to the endpoints".to_owned(), |mtu| mtu.to_string());
    let mark = format!("{:#x}", settings.fw_mark);
    let mut own = vec![
        ("interface", interface.name.to_string()),
        ("public key", public_key),
        ("listen port", or(&settings.listen_port, settings.listen_port == 0, "random")),
        ("addresses", list(&interface.addresses)),
        ("MTU", mtu),
        ("mark", or(&mark, settings.fw_mark == 0, "off")),
        ("routes", routes_of(config, Routing::here())),
    ];
    own.extend(host_rows(config));
    let mut table = new_table();
    table.add_rows(own.iter().map(|(label, value)| [*label, value.as_str()]));
    let mut text = fitting(&table, width).unwrap_or_else(|| block(&own));
    if config.peers.is_empty() {
        return text + "no peers\n";
    }
    let peers = &config.peers[..config.peers.len().min(SHOWN_PEERS)];
    let settings = SETTINGS.iter().filter(|setting| peers.iter().any(|peer| (setting.value)(peer).is_some()));
    let settings: Vec<&PeerSetting> = settings.collect();
    let mut header = vec!["peer", "endpoint", "allowed IPs"];
    header.extend(settings.iter().map(|setting| setting.label));
    let row = |peer: &Peer| -> Vec<String> {
        let value =
            |setting: &&PeerSetting| (setting.value)(peer).unwrap_or_else(|| setting.unset.to_owned());
        peer_row(peer).into_iter().chain(settings.iter().map(value)).collect()
    };
    let rows: Vec<Vec<String>> = peers.iter().map(row).collect();
    let mut table = new_table();
    table.set_header(&header).add_rows(&rows);
    let blocks = || {
        let blocks = rows.iter().map(|row| {
            let rows = header.iter().copied().zip(row.iter().cloned());
            format!("\n{}", block(&rows.collect::<Vec<_>>()))
        });
        blocks.collect()
    };
    text += &fitting(&table, width).unwrap_or_else(blocks);
    text + &more(config.peers.len())
}

/// Returns the table, unless a line of it is wider than the terminal: no key is ever broken.
fn fitting(table: &Table, width: Option<usize>) -> Option<String> {
    let is_wider = |width| table.lines().any(|line| line.chars().count() > width);
    (!width.is_some_and(is_wider)).then(|| format!("{table}\n"))
}

fn block(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(label, value)| format!("{label}: {}\n", value.replace('\n', "\n  "))).collect()
}

/// Returns a row for each setting of the system around the tunnel that the configuration has.
fn host_rows(config: &Config) -> Vec<(&'static str, String)> {
    let host = &config.interface.host;
    let clients = &host.clients;
    let on = |label, is_on: bool| is_on.then(|| (label, "on".to_owned()));
    let mut rows = Vec::new();
    rows.extend((!host.dns.is_empty()).then(|| ("DNS", host.dns.to_string())));
    rows.extend(host.hooks.iter().map(|hook| (hook.phase.key(), config::without_keys(&hook.command))));
    let saved = ("when it goes down", "its state is saved into the file".to_owned());
    rows.extend(host.save_config.then_some(saved));
    let has_kill_switch = host.kill_switch != KillSwitch::Off;
    rows.extend(has_kill_switch.then(|| ("kill switch", host.kill_switch.to_string())));
    rows.extend(on("path MTU discovery", host.path_mtu_discovery));
    rows.extend(on("MSS clamp", host.mss_clamp));
    rows.extend(host.metrics.address.as_ref().map(|address| ("metrics", address.to_string())));
    rows.extend(on("speed tests of peers", host.speed_test));
    rows.extend(clients.endpoint.as_ref().map(|endpoint| ("new peers reach it at", endpoint.to_string())));
    rows.extend((!clients.dns.is_empty()).then(|| ("DNS of new peers", clients.dns.to_string())));
    let allowed = (!clients.allowed_ips.is_empty()).then(|| texts(&clients.allowed_ips).join(", "));
    rows.extend(allowed.map(|allowed| ("allowed ips of new peers", allowed)));
    rows
}

fn public_key(interface: &Interface) -> Option<String> {
    interface.settings.private_key.as_ref().map(|key| key.public_key().to_string())
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Returns what every peer is shown with: its name or the beginning of its key, as in `weft status`, its
/// endpoint and the first of its allowed-ips.
fn peer_row(peer: &Peer) -> [String; 3] {
    let name = peer.report.friendly_name.clone();
    let allowed_ips = match peer.allowed_ips.is_empty() {
        true => "none".to_owned(),
        false => first(&texts(&peer.allowed_ips)).join(", "),
    };
    [
        name.unwrap_or_else(|| short_key(&peer.public_key.to_string())),
        peer.endpoint.as_ref().map_or("none: it has to begin".to_owned(), ToString::to_string),
        allowed_ips,
    ]
}

/// A setting that a few files have: a column where a peer has it.
struct PeerSetting {
    label: &'static str,
    value: fn(&Peer) -> Option<String>,
    /// What a peer without it is shown with.
    unset: &'static str,
}

const SETTINGS: [PeerSetting; 5] = [
    PeerSetting {
        label: "keepalive",
        value: |peer| peer.settings.persistent_keepalive.map(|seconds| format!("{seconds} s")),
        unset: "off",
    },
    PeerSetting {
        label: "preshared key",
        value: |peer| peer.settings.preshared_key.as_ref().map(|_| "yes".to_owned()),
        unset: "no",
    },
    PeerSetting { label: "limits", value: |peer| limits(&peer.settings.limits), unset: "none" },
    PeerSetting {
        label: "expected",
        value: |peer| peer.report.expected.map(|is_on| if is_on { "on" } else { "off" }.to_owned()),
        unset: "by its other settings",
    },
    PeerSetting {
        label: "ends",
        value: |peer| peer.report.expires.map(|expiry| expiry.to_string()),
        unset: "never",
    },
];

fn limits(limits: &PeerLimits) -> Option<String> {
    let limits = [("to it", limits.to_peer), ("from it", limits.from_peer)];
    let limits = limits.into_iter().filter_map(|(way, rate)| Some(format!("{} {way}", rate?)));
    let limits: Vec<String> = limits.collect();
    (!limits.is_empty()).then(|| limits.join(", "))
}

fn or(value: &impl Display, unset: bool, otherwise: &str) -> String {
    if unset { otherwise.to_owned() } else { value.to_string() }
}

fn list(nets: &[IpNet]) -> String {
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = nets.iter().take(SHOWN).map(ToString::to_string).collect();
    match nets.len() {
        0 => lines.push("none".to_owned()),
        count if count > SHOWN => lines.push(format!("and {} more", count - SHOWN)),
        _ => {}
    }
    lines.join("\n")
}

/// Describes the routes that a system plans which routes so.
fn routes_of(config: &Config, routing: Routing) -> String {
    let plan = Plan::new(config, &[], &SystemState { routing: routing.clone(), ..SystemState::default() });
    let routes = plan.steps.iter().filter_map(|step| match step {
        Step::Route { prefix, table } => Some((prefix, *table)),
        _ => None,
    });
    let (main, others): (Vec<_>, Vec<_>) = routes.partition(|(_, table)| *table == routes::MAIN_TABLE);
    let allowed_ips = || config.peers.iter().flat_map(|peer| &peer.allowed_ips);
    match (config.interface.table, routing) {
        (RouteTable::Off, _) => "none (Table = off)".to_owned(),
        (RouteTable::Number(table), _) if table != routes::MAIN_TABLE => {
            format!("{} in table {table}", others.len())
        }
        (_, Routing::Halves(_)) if allowed_ips().any(|net| net.prefix_len() == 0) => format!(
            "{} in the main table, in which a default route is two halves\nhost routes to the endpoints, past the tunnel",
            main.len()
        ),
        _ if others.is_empty() => format!("{} in the main table", main.len()),
        _ => format!(
            "{} in the main table\n{} default in a separate table, by the mark of packets",
            main.len(),
            others.len()
        ),
    }
}

/// An error or a warning.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    file: Option<String>,
    line: Option<usize>,
    key: Option<String>,
    message: String,
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.file.as_ref().map(|file| match self.line {
            Some(line) => format!("{file}:{line}"),
            None => file.clone(),
        });
        for part in [&place, &self.key].into_iter().flatten() {
            write!(f, "{part}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl Finding {
    fn new(at: &Location, message: &impl Display) -> Self {
        let file = Some(at.file.display().to_string());
        Self { file, line: Some(at.line), key: at.key.clone(), message: message.to_string() }
    }
}

fn texts(values: &[impl Display]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    /// The public key of that.
    const OWN: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";

    fn parse(peers: &str) -> Config {
        let text = format!("[Interface]\nPrivateKey = {KEY}\n{peers}");
        config::parse(&text, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config
    }

    #[test]
    fn no_key_is_broken_on_a_narrow_terminal() {
        let config = parse(&format!("[Peer]\nPublicKey = {KEY}\nAllowedIPs = 10.9.0.2/32, fd09::2/128\n"));
        let at = |width| summary(&config, width);
        assert_eq!(at(Some(200)), at(None));
        assert!(at(Some(80)).contains("│ listen port ") && at(Some(80)).contains("┆ allowed IPs "));
        let narrow = at(Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(narrow.contains(&format!("\npublic key: {OWN}\n")), "{narrow}");
        assert!(narrow.ends_with(
            "\npeer: yAnz5TF+lX…\nendpoint: none: it has to begin\nallowed IPs: 10.9.0.2/32, fd09::2/128\n"
        ));
    }

    #[test]
    fn of_many_addresses_some_are_shown_and_the_others_counted() {
        let shown = |count: u8| {
            let list: Vec<String> = (1..=count).map(|number| format!("10.{number}.0.1/24")).collect();
            let file = format!("[Interface]\nPrivateKey = {KEY}\nAddress = {}\n", list.join(", "));
            let config = config::parse(&file, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config;
            let text = summary(&config, None);
            (text.matches(".0.1/24").count(), text.contains(" and 2 more "))
        };
        assert_eq!([8, 10].map(shown), [(8, false), (8, true)]);
    }

    /// Returns the lines about peers, without frames.
    fn peer_lines(config: &Config) -> Vec<String> {
        let text = summary(config, None);
        let lines = text.lines().skip_while(|line| !line.starts_with("│ peer ")).map(|line| {
            line.split_whitespace().filter(|word| !["│", "┆"].contains(word)).collect::<Vec<_>>().join(" ")
        });
        lines.filter(|line| line.contains(char::is_alphanumeric)).collect()
    }

    #[test]
    fn each_peer_has_a_line_with_its_name_or_the_beginning_of_its_key() {
        let peer = |number: u8, lines: &str| {
            let key = weft_tunnel::PublicKey::from_bytes([number; 32]);
            format!("[Peer]\nPublicKey = {key}\n{lines}\n")
        };
        let named = "# friendly_name = laptop\nEndpoint = vpn.example:1\nAllowedIPs = 10.9.0.2, fd09::2, 10.1.0.0/16, ::/0";
        let config = parse(&(peer(1, named) + &peer(2, "AllowedIPs = 10.9.0.3")));
        assert_eq!(
            peer_lines(&config),
            [
                "peer endpoint allowed IPs",
                "laptop vpn.example:1 10.9.0.2/32, fd09::2/128, 2 more",
                "AgICAgICAg… none: it has to begin 10.9.0.3/32",
            ]
        );
        // What one peer has beside that is a column for all.
        let more = "PersistentKeepalive = 25\n# weft: RateToPeer = 1Mbit\n# weft: RateFromPeer = 2Mbit";
        let config = parse(&(peer(1, more) + &peer(2, &format!("PresharedKey = {KEY}"))));
        assert_eq!(
            peer_lines(&config),
            [
                "peer endpoint allowed IPs keepalive preshared key limits",
                "AQEBAQEBAQ… none: it has to begin none 25 s no 1Mbit to it, 2Mbit from it",
                "AgICAgICAg… none: it has to begin none off yes none",
            ]
        );
        let many: String = (1..=SHOWN_PEERS as u8 + 3).map(|number| peer(number, "")).collect();
        let lines = peer_lines(&parse(&many));
        assert_eq!(lines.len(), 1 + SHOWN_PEERS + 1);
        assert_eq!(lines.last().unwrap(), "and 3 more peers; --json has them all");
    }

    #[test]
    fn routes_are_those_of_the_system() {
        let rows = |table: &str, allowed_ips: &str| {
            let text = format!(
                "[Interface]\nPrivateKey={KEY}\n{table}\n[Peer]\nPublicKey={KEY}\nAllowedIPs={allowed_ips}\n"
            );
            let config = config::parse(&text, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config;
            [Routing::Rules, Routing::Halves(Vec::new())].map(|routing| routes_of(&config, routing))
        };
        let halves = |count| {
            format!(
                "{count} in the main table, in which a default route is two halves\n\
                 host routes to the endpoints, past the tunnel"
            )
        };
        let by_mark = "1 in the main table\n2 default in a separate table, by the mark of packets";
        assert_eq!(rows("", "10.0.0.0/8, 0.0.0.0/0, ::/0"), [by_mark, &halves(5)]);
        // With a table there is no mark; a table that is not the main one gets a default route as it is.
        assert_eq!(rows("Table=main", "0.0.0.0/0"), ["1 in the main table", &halves(2)]);
        assert_eq!(rows("Table=7", "0.0.0.0/0"), ["1 in table 7"; 2]);
        assert_eq!(rows("Table=off", "0.0.0.0/0"), ["none (Table = off)"; 2]);
        // Linux routes the network of an address by itself.
        assert_eq!(
            rows("Address=10.0.0.1/24", "10.0.0.0/24, 10.1.0.0/16"),
            ["1 in the main table", "2 in the main table"]
        );
        let here = if cfg!(target_os = "linux") { Routing::Rules } else { Routing::Halves(Vec::new()) };
        assert_eq!(Routing::here(), here);
    }
}
