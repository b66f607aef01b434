//! Tells what another program has undone and weft does not restore, and what the system lacks something for.

use weft_commands::own_file;
use weft_config::{InterfaceName, KillSwitch};
use weft_host::{Host, Step, Undone};
use weft_report::finding::{Finding, Level};

use super::Supervisor;
use super::told::Told;

/// The number of steps that are named; the rest are counted.
const NAMED_STEPS: usize = 5;

impl Supervisor {
    /// Tells that another interface had the key at the start.
    pub(in super::super) fn tell_of_same_key(&mut self) {
        let found = own_file::same_key(&self.config);
        Told::default().tell(found.into_iter().collect(), &self.managed);
    }

    /// Tells what is undone now.
    pub(super) fn tell_of_undone(&mut self) {
        let Some(host) = self.daemon.host() else { return };
        let mut found = findings(host, &self.config.interface.name);
        found.extend(weft_host::hung_programs().into_iter().map(|program| {
            let says = format!("{program} did not end in time: what weft needs it for may not be done");
            let advice =
                format!("run `{program}` by hand to see what it waits for; weft tries it again in a minute");
            Finding::new("program_hangs", Level::Warning, says).advise(advice)
        }));
        self.undone.tell(found, &self.managed);
    }
}

fn findings(host: &Host, interface: &InterfaceName) -> Vec<Finding> {
    let steps = host.in_force();
    let is_full = steps.iter().any(|step| matches!(step, Step::Rule(_)));
    let is_blocked = steps
        .iter()
        .any(|step| matches!(step, Step::Firewall(firewall) if firewall.kill_switch != KillSwitch::Off));
    let (without_device, level) = match (is_full, is_blocked) {
        (_, true) => ("the kill switch blocks what is meant for the tunnel", Level::Problem),
        (true, false) => ("what is meant for the tunnel leaves past it", Level::Problem),
        (false, false) => ("nothing goes through the tunnel", Level::Warning),
    };
    let mut findings = Vec::new();
    let mut more = 0;
    for undone in host.undone() {
        let finding = match undone {
            Undone::Down => Finding::new(
                "device_down",
                level,
                format!("the interface was set down by another program: {without_device}"),
            )
            .advise(format!("ip link set {interface} up")),
            Undone::Elsewhere => Finding::new(
                "device_elsewhere",
                if is_full { level } else { Level::Note },
                format!(
                    "the interface was moved to another network namespace{}",
                    if is_full { format!(": here {without_device}") } else { String::new() }
                ),
            )
            .advise("take it down, or use `weft exec` to run programs in a namespace of the tunnel"),
            Undone::Renamed(name) => Finding::new(
                "device_renamed",
                Level::Problem,
                format!("another program has renamed the interface to {name}, and {interface} is taken"),
            )
            .advise(
                "its rules are for its own name: take it down and up again; a rule or .link file of systemd-udevd \
                 (`grep -r 'NAME=\\|Name=' /etc/udev/rules.d /etc/systemd/network`) may rename each new interface",
            ),
            Undone::Added(rules) => Finding::new(
                "rules_added",
                if is_blocked { Level::Warning } else { Level::Note },
                format!(
                    "another program has added to the firewall rules of {interface} (rules: {rules}){}",
                    if is_blocked { ": they may let packets past the kill switch" } else { "" }
                ),
            )
            .advise("see `nft list ruleset`: they stay, since they may be meant, until `weft down`"),
            Undone::Lacking(what) => {
                Finding::new("lacking", Level::Warning, what).advise("`weft reload` tries it again")
            }
            Undone::Step(..) if findings.len() >= NAMED_STEPS => {
                more += 1;
                continue;
            }
            Undone::Step(step, None) => Finding::new(
                "undone",
                Level::Warning,
                format!("another program has undone this: {}", step.doing(interface)),
            )
            .advise("it stays so, since it may be meant; `weft reload` does it again"),
            Undone::Step(step, Some(why)) => Finding::new(
                "undone",
                Level::Problem,
                format!("another program has undone this: {}: {why}", step.doing(interface)),
            )
            .advise("weft tries it again at the next change"),
        };
        findings.push(finding);
    }
    if more > 0 {
        let says = format!("another program has undone {more} more addresses, routes or rules");
        findings.push(Finding::new("undone", Level::Warning, says).advise("`weft reload` does them again"));
    }
    findings
}
