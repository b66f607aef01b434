//! Why the packet filter could not be read or changed.

use std::io;

use weft_config::exit;

/// Why the packet filter could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The program that changes it is not installed.
    #[error("cannot {action}: there is no program {program}; {advice}")]
    Missing {
        /// The action that failed.
        action: String,
        /// The name of the program.
        program: &'static str,
        advice: &'static str,
    },
    /// The program could not be run.
    #[error("cannot {action}: cannot run {program}: {error}")]
    Run {
        /// The action that failed.
        action: String,
        /// The name of the program.
        program: &'static str,
        /// The error of the system.
        error: io::Error,
    },
    /// The program did not end in time.
    #[error(
        "cannot {action}: {program} did not end in time; run `{program}` by hand to see what it waits for"
    )]
    Timeout {
        /// The action that failed.
        action: String,
        /// The name of the program.
        program: &'static str,
    },
    /// A permission is missing.
    #[error("cannot {action}: the kernel does not permit it; {advice}")]
    Permission {
        /// The action that failed.
        action: String,
        advice: &'static str,
    },
    /// The kernel has no nftables, or not all that the rules are made of.
    #[error(
        "cannot {action}: the kernel lacks a part of nftables ({message}); load its modules (`modprobe -a nf_tables \
         nft_ct nft_fib_ipv4 nft_fib_ipv6 nft_reject_inet`) or see that the kernel has them"
    )]
    Kernel {
        /// The action that failed.
        action: String,
        /// The error message of nft.
        message: String,
    },
    /// The program rejected the change.
    #[error("cannot {action}: {program} says: {message}")]
    Refused {
        /// The action that failed.
        action: String,
        /// The name of the program.
        program: &'static str,
        /// Its error message.
        message: String,
    },
    /// Another program has a table of the name.
    #[error(
        "cannot {action}: nftables has a table {table}, which is not weft's; rename it, or give the interface another name"
    )]
    Foreign {
        /// The action that failed.
        action: String,
        /// The table.
        table: String,
    },
    /// The answer of the program is not in the expected format.
    #[error("cannot {action}: the answer of {program} is not understood: {reason}")]
    Answer {
        /// The action that failed.
        action: String,
        /// The name of the program.
        program: &'static str,
        /// Why the answer could not be parsed, and the advice.
        reason: String,
    },
    /// pf is not enabled, or its module is not loaded.
    #[error(
        "cannot {action}: pf is not enabled; enable it with `sysrc pf_enable=YES` and `service pf start`"
    )]
    Off {
        /// The action that failed.
        action: String,
    },
    /// The main ruleset of pf does not evaluate weft's anchor.
    #[error(
        "cannot {action}: pf does not evaluate the anchor {anchor}, so that its rules would do nothing; add the line \
         `{line}` to /etc/pf.conf, before rules with `quick`, and load it with `pfctl -f /etc/pf.conf`"
    )]
    NotEvaluated {
        /// The action that failed.
        action: String,
        anchor: String,
        /// The line of pf.conf(5) that evaluates it.
        line: String,
    },
    /// A rule of the main ruleset of pf lets packets leave before weft's anchor is evaluated.
    #[error(
        "cannot {action}: the rule `{rule}` of pf lets packets leave before `{line}` is evaluated; move that line above \
         the rule in /etc/pf.conf, and load it with `pfctl -f /etc/pf.conf`"
    )]
    Passed {
        /// The action that failed.
        action: String,
        rule: String,
        /// The line of pf.conf(5) that evaluates the anchor.
        line: String,
    },
    /// pf does not filter on an interface.
    #[error(
        "cannot {action}: pf does not filter on {interface}, by which packets could leave; take it out of `set skip` in \
         /etc/pf.conf, and load it with `pfctl -f /etc/pf.conf`"
    )]
    Skipped {
        /// The action that failed.
        action: String,
        interface: String,
    },
    /// pf would take the name of the interface for something else.
    #[error(
        "cannot {action}: rules of pf need a name of an interface that begins with a letter and ends in a digit, such as \
         tun7, since other names may be groups of interfaces; give it another name"
    )]
    Name {
        /// The action that failed.
        action: String,
    },
    /// A call of the filter engine of Windows failed, or a message to nftables.
    #[error("cannot {action}: {call}: {error}")]
    Engine {
        /// The action that failed.
        action: String,
        /// The name of the call.
        call: &'static str,
        /// The error of the system.
        error: io::Error,
    },
    /// The filter engine of Windows does not run.
    #[error("cannot {action}: the Base Filtering Engine does not run; start it with `sc.exe start BFE`")]
    NoEngine {
        /// The action that failed.
        action: String,
    },
    /// Windows has no MSS clamp.
    #[error(
        "cannot {action}: Windows cannot change the MSS of connections; take `MssClamp` out of the configuration"
    )]
    NoMssClamp {
        /// The action that failed.
        action: String,
    },
    /// This platform cannot do it yet.
    #[error("cannot {action}: weft does not set firewall rules on this platform yet")]
    Unsupported {
        /// The action that failed.
        action: String,
    },
}

impl FirewallError {
    /// Reports whether this machine has no program or kernel that sets the rules.
    pub(crate) fn is_lack(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Run { .. } | Self::Kernel { .. } | Self::Refused { .. })
    }

    /// Returns the exit code for this error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Permission { .. } => exit::Code::Permission,
            Self::Run { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                exit::Code::Permission
            }
            Self::Name { .. } | Self::NoMssClamp { .. } => exit::Code::Usage,
            _ => exit::Code::Failure,
        }
    }
}
