//! Findings about what the routing table does not lead where the configuration means it to go.

use weft_config::{Config, HookPhase};
use weft_host::DnsPast;
use weft_host::misrouted::Misrouted;
use weft_host::routes::{Exception, Family};
use weft_report::finding::{Finding, Level};

/// Returns the finding about a tunnel that is not up. A problem that a command of the file may still change
/// is a warning.
pub(crate) fn before_start(misrouted: &Misrouted, config: &Config) -> Finding {
    let mut finding = finding(misrouted);
    let changes = |phase| match misrouted {
        // Name servers are set before PostUp.
        Misrouted::NoDns { .. } => phase == HookPhase::PreUp,
        _ => matches!(phase, HookPhase::PreUp | HookPhase::PostUp),
    };
    if finding.level == Level::Problem && config.interface.host.hooks.iter().any(|hook| changes(hook.phase)) {
        finding.level = Level::Warning;
    }
    finding
}

/// Returns the finding about packets that do not go where they are meant to go.
pub fn finding(misrouted: &Misrouted) -> Finding {
    let level = match misrouted {
        Misrouted::Loop { .. }
        | Misrouted::NoMain { .. }
        | Misrouted::NoDns { .. }
        | Misrouted::Dns(DnsPast::Lost(_)) => Level::Problem,
        Misrouted::NameServer { is_minor: true, .. }
        | Misrouted::Captured { is_within: true, .. }
        | Misrouted::NotTranslated { .. }
        // A tunnel for IPv6 alone is usual where the provider has none.
        | Misrouted::FamilyPast { family: Family::V4, .. }
        // As a person sets them on purpose.
        | Misrouted::Networks { is_of_network: false, .. }
        | Misrouted::Exception { rule: Exception { names_addresses: true, .. }, .. } => Level::Note,
        _ => Level::Warning,
    };
    Finding::new(misrouted.check(), level, misrouted.to_string()).advise(misrouted.advice())
}
