//! Sets rules in an anchor of pf, by pfctl(8).
//!
//! An anchor's rules are replaced in one transaction, and stay until they are flushed, whatever becomes of
//! the process. They take effect only if pf is enabled and the main ruleset evaluates the anchor: both are
//! checked, or brought about, before the rules are loaded.
//!
//! Everything but [`system`] is the same on any system, and is tested against a pf in memory.

use weft_config::InterfaceName;

use super::error::FirewallError;
use super::program::{Ended, Program};
use super::{Family, Present, Rules, Table};

mod answers;
mod ruleset;
#[cfg(test)]
mod simulation;
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
pub(crate) mod system;
#[cfg(test)]
mod tests;

use answers::Labels;

/// What differs between the systems that have pf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavor {
    MacOs,
    FreeBsd,
}

impl Flavor {
    /// Returns the anchor of which the main ruleset evaluates all children, but no grandchildren. On macOS it
    /// is the one that the main ruleset of the system has.
    pub(super) fn parent(self) -> &'static str {
        match self {
            Self::MacOs => "com.apple",
            Self::FreeBsd => "weft",
        }
    }

    /// Returns what the name of a child begins with. Children are evaluated in the order of their names:
    /// those of macOS begin with 200 and more.
    fn prefix(self) -> &'static str {
        match self {
            Self::MacOs => "100.weft-",
            Self::FreeBsd => "",
        }
    }

    /// Returns the anchor of an interface.
    pub(super) fn anchor(self, interface: &InterfaceName) -> String {
        format!("{}/{}{interface}", self.parent(), self.prefix())
    }

    /// Returns the lines of the main ruleset that evaluate the anchors for these rules.
    fn lines_for(self, rules: &Rules) -> Vec<String> {
        let scrubs = rules.mss_clamp && self == Self::MacOs;
        let kinds = if scrubs { &["anchor", "scrub-anchor"][..] } else { &["anchor"] };
        kinds.iter().map(|kind| format!("{kind} \"{}/*\"", self.parent())).collect()
    }
}

/// Returns where the rules of an interface are.
pub(super) fn place(flavor: Flavor, interface: &InterfaceName) -> String {
    format!("pf anchor {}", flavor.anchor(interface))
}

/// Returns the command that removes the rules of an interface without weft.
pub(super) fn flushing_command(flavor: Flavor, interface: &InterfaceName) -> String {
    format!("pfctl -a {} -F rules", flavor.anchor(interface))
}

/// Runs pfctl(8).
pub(super) trait Pfctl {
    /// Runs it with these arguments, and waits for its end.
    fn run(&self, arguments: &[&str], input: &str, action: &str) -> Result<Ended, FirewallError>;
}

/// The packet filter pf.
#[derive(Debug)]
pub(super) struct Pf<P> {
    pub(super) flavor: Flavor,
    pub(super) pfctl: P,
}

impl Pfctl for Program {
    fn run(&self, arguments: &[&str], input: &str, action: &str) -> Result<Ended, FirewallError> {
        self.run(arguments, input.as_bytes(), action)
    }
}

const PROGRAM: &str = "pfctl";
const PFCTL: Program = Program {
    name: PROGRAM,
    elsewhere: ["/sbin/pfctl", "/usr/sbin/pfctl"],
    advice: "it belongs to the system: see PATH",
};

/// How pf is kept enabled.
enum Hold {
    /// It is enabled by the administrator, and weft leaves it so.
    Theirs,
    /// By a token that is in the anchor already.
    Kept(u64),
    /// By a token that was just given.
    New(u64),
}

impl Hold {
    fn token(&self) -> Option<u64> {
        match self {
            Self::Theirs => None,
            Self::Kept(token) | Self::New(token) => Some(*token),
        }
    }
}

impl<P: Pfctl> Pf<P> {
    /// Replaces the rules of the interface with exactly these, in one transaction, and sees that they take
    /// effect.
    ///
    /// pf is enabled before the rules are loaded, so that one transaction brings the rules and the token that
    /// disables pf again. A process that is killed in between leaves pf enabled, without rules.
    ///
    /// # Errors
    /// Those of [`FirewallError`]; the rules are unchanged then.
    pub(super) fn apply(&self, rules: &Rules) -> Result<(), FirewallError> {
        if !ruleset::has_any(rules) {
            return self.remove(&rules.interface);
        }
        let action = &format!("set the firewall rules of {}", rules.interface);
        self.see_that_it_is_evaluated(rules, action)?;
        let anchor = self.flavor.anchor(&rules.interface);
        let before = self.labels(&anchor, action)?;
        let hold = self.enable(before.and_then(|labels| labels.token), action)?;
        let text = ruleset::text(self.flavor, rules, hold.token());
        if let Err(error) = self.load(&["-a", &anchor, "-f", "-"], rules, &text, action) {
            self.take_back(&anchor, before.is_none(), &hold, action);
            return Err(error);
        }
        if rules.kill_switch.is_some() && before.is_none_or(|labels| labels.blocked.is_none()) {
            self.tell_of_states(action);
        }
        Ok(())
    }

    /// Takes back what was done before the rules could not be loaded. A pfctl that was ended because it took
    /// too long may have loaded them.
    fn take_back(&self, anchor: &str, was_empty: bool, hold: &Hold, action: &str) {
        let flushed = if was_empty { self.flush(anchor, action) } else { Ok(()) };
        let released = if let Hold::New(token) = hold { self.release(*token, action) } else { Ok(()) };
        for error in [flushed, released].into_iter().filter_map(Result::err) {
            tracing::warn!("while taking back firewall rules that failed: {error}");
        }
    }

    /// Checks whether pf would accept and evaluate these rules; nothing is changed.
    ///
    /// # Errors
    /// Those of [`FirewallError`].
    pub(super) fn check(&self, rules: &Rules) -> Result<(), FirewallError> {
        if !ruleset::has_any(rules) {
            return Ok(());
        }
        let action = &format!("check the firewall rules of {}", rules.interface);
        self.see_that_it_is_evaluated(rules, action)?;
        if self.flavor == Flavor::FreeBsd {
            self.see_that_it_is_enabled(action)?;
        }
        let text = ruleset::text(self.flavor, rules, None);
        self.load(&["-n", "-a", &self.flavor.anchor(&rules.interface), "-f", "-"], rules, &text, action)
    }

    /// Removes everything that [`Self::apply`] can have set for an interface, also in an earlier run of the
    /// daemon. It is no error if there is nothing.
    ///
    /// The token is released first: a process that is killed in between leaves rules from which a later call
    /// sees what is left to do.
    ///
    /// # Errors
    /// Those of [`FirewallError`].
    pub(super) fn remove(&self, interface: &InterfaceName) -> Result<(), FirewallError> {
        let action = &format!("remove the firewall rules of {interface}");
        let anchor = self.flavor.anchor(interface);
        let Some(labels) = self.labels(&anchor, action)? else { return Ok(()) };
        if let Some(token) = labels.token
            && self.is_held(token, action)?
        {
            self.release(token, action)?;
        }
        self.flush(&anchor, action)
    }

    /// Returns the anchor of an interface, if its rules take effect.
    ///
    /// # Errors
    /// Those of [`FirewallError`].
    pub(super) fn present(&self, interface: &InterfaceName) -> Result<Present, FirewallError> {
        let action = &format!("read the firewall rules of {interface}");
        let name = self.flavor.anchor(interface);
        let Some(labels) = self.labels(&name, action)? else { return Ok(Present::default()) };
        let line = format!("anchor \"{}/*\"", self.flavor.parent());
        let is_evaluated = answers::has_line(&self.run(&["-s", "rules"], "", action)?, &line);
        if !is_evaluated || !self.is_enabled(action)? {
            return Ok(Present::default());
        }
        Ok(Present { tables: vec![Table { family: Family::Inet, name }], blocked: labels.blocked })
    }

    /// Fails if packets can leave without being seen by these rules.
    fn see_that_it_is_evaluated(&self, rules: &Rules, action: &str) -> Result<(), FirewallError> {
        let action = || action.to_owned();
        if !ruleset::is_exact(&rules.interface) {
            return Err(FirewallError::Name { action: action() });
        }
        let main = match self.run(&["-s", "rules"], "", &action()) {
            Err(FirewallError::Refused { message, .. }) if answers::is_without_pf(&message) => {
                return Err(FirewallError::Off { action: action() });
            }
            main => main?,
        };
        for line in self.flavor.lines_for(rules) {
            if !answers::has_line(&main, &line) {
                let anchor = self.flavor.anchor(&rules.interface);
                return Err(FirewallError::NotEvaluated { action: action(), anchor, line });
            }
            if rules.kill_switch.is_some()
                && let Some(rule) = answers::passes_before(&main, &line)
            {
                return Err(FirewallError::Passed { action: action(), rule: rule.to_owned(), line });
            }
        }
        if rules.kill_switch.is_some() {
            let interfaces = self.run(&["-v", "-s", "Interfaces"], "", &action())?;
            if let Some(interface) = answers::skipped(&interfaces, &rules.interface) {
                return Err(FirewallError::Skipped { action: action(), interface: interface.to_owned() });
            }
        }
        Ok(())
    }

    /// Sees that pf is enabled. On macOS it stays enabled as long as there is a token.
    fn enable(&self, before: Option<u64>, action: &str) -> Result<Hold, FirewallError> {
        if self.flavor == Flavor::FreeBsd {
            return self.see_that_it_is_enabled(action).map(|()| Hold::Theirs);
        }
        if let Some(token) = before
            && self.is_held(token, action)?
        {
            return Ok(Hold::Kept(token));
        }
        let said = self.run(&["-E"], "", action)?;
        match answers::token(&said) {
            Some(token) => Ok(Hold::New(token)),
            None => Err(FirewallError::Answer {
                action: action.to_owned(),
                program: PROGRAM,
                reason: "`pfctl -E` gives no token; `pfctl -s References` shows whether pf stays enabled"
                    .to_owned(),
            }),
        }
    }

    fn see_that_it_is_enabled(&self, action: &str) -> Result<(), FirewallError> {
        if self.is_enabled(action)? { Ok(()) } else { Err(FirewallError::Off { action: action.to_owned() }) }
    }

    fn is_enabled(&self, action: &str) -> Result<bool, FirewallError> {
        Ok(answers::is_enabled(&self.run(&["-s", "info"], "", action)?))
    }

    /// Reports whether a token keeps pf enabled. `pfctl -d` ends all of them.
    fn is_held(&self, token: u64, action: &str) -> Result<bool, FirewallError> {
        Ok(answers::has_token(&self.run(&["-s", "References"], "", action)?, token))
    }

    /// Passes the rules to pfctl.
    fn load(&self, arguments: &[&str], rules: &Rules, text: &str, action: &str) -> Result<(), FirewallError> {
        match self.run(arguments, text, action) {
            Err(FirewallError::Refused { action, program, message })
                if self.flavor == Flavor::FreeBsd && rules.mss_clamp && message.contains("syntax error") =>
            {
                let message = format!("{message}; MssClamp needs FreeBSD 14 or newer");
                Err(FirewallError::Refused { action, program, message })
            }
            result => result.map(drop),
        }
    }

    fn flush(&self, anchor: &str, action: &str) -> Result<(), FirewallError> {
        self.run(&["-a", anchor, "-F", "rules"], "", action).map(drop)
    }

    fn release(&self, token: u64, action: &str) -> Result<(), FirewallError> {
        self.run(&["-X", &token.to_string()], "", action).map(drop)
    }

    /// Connections that pf knew before the kill switch go on past it, because their packets are not looked up
    /// in the rules.
    fn tell_of_states(&self, action: &str) {
        let states = self.run(&["-s", "info"], "", action).map(|info| answers::states(&info));
        if let Ok(Some(states @ 1..)) = states {
            tracing::warn!(
                "pf has the states of {states} connections, which the kill switch does not see until they end; \
                 `pfctl -F states` ends those of all programs"
            );
        }
    }

    /// Returns the labels of an anchor; `None` if there is no such anchor.
    fn labels(&self, anchor: &str, action: &str) -> Result<Option<Labels>, FirewallError> {
        if !self.anchors(action)?.iter().any(|name| name == anchor) {
            return Ok(None);
        }
        match self.run(&["-a", anchor, "-s", "labels"], "", action) {
            // It was removed meanwhile.
            Err(FirewallError::Refused { message, .. }) if answers::is_without_anchor(&message) => Ok(None),
            said => said.map(|said| Some(answers::labels(&said))),
        }
    }

    fn anchors(&self, action: &str) -> Result<Vec<String>, FirewallError> {
        let said = match self.run(&["-a", self.flavor.parent(), "-s", "Anchors"], "", action) {
            Err(FirewallError::Refused { message, .. })
                if answers::is_without_anchor(&message) || answers::is_without_pf(&message) =>
            {
                return Ok(Vec::new());
            }
            said => said?,
        };
        let prefix = format!("{}/{}", self.flavor.parent(), self.flavor.prefix());
        let mut names: Vec<String> =
            said.lines().map(str::trim).filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// Returns what pfctl writes to both outputs: which of them it takes for what differs between systems.
    fn run(&self, arguments: &[&str], input: &str, action: &str) -> Result<String, FirewallError> {
        let ended = self.pfctl.run(arguments, input, action)?;
        if ended.is_success {
            return Ok(format!(
                "{}\n{}",
                String::from_utf8_lossy(&ended.answer),
                String::from_utf8_lossy(&ended.complaint)
            ));
        }
        let (action, message) = (action.to_owned(), answers::complaint(&ended));
        if answers::is_without_permission(&message) {
            return Err(FirewallError::Permission { action, advice: "run weft as root" });
        }
        Err(FirewallError::Refused { action, program: PROGRAM, message })
    }
}
