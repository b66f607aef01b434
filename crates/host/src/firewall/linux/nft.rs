//! Runs the program nft.

use super::super::error::FirewallError;
use super::super::program::{Ended, Program};

const NFT: Program = Program {
    name: "nft",
    elsewhere: ["/usr/sbin/nft", "/sbin/nft"],
    advice: "install the package nftables",
};

/// What is needed to read and change tables.
pub(super) fn privilege() -> &'static str {
    weft_config::as_root(
        "run weft as root or give it CAP_NET_ADMIN",
        "start the unit weft-client@NAME in place of weft@NAME, or give this one CAP_NET_ADMIN",
    )
}

/// Runs nft with these arguments and returns its answer.
pub(super) fn run(arguments: &[&str], input: &[u8], action: &str) -> Result<String, FirewallError> {
    let ended = NFT.run(arguments, input, action)?;
    if ended.is_success {
        Ok(String::from_utf8_lossy(&ended.answer).into_owned())
    } else {
        Err(refusal(&ended, action))
    }
}

/// Finds the error that a message of nft means.
fn refusal(ended: &Ended, action: &str) -> FirewallError {
    let (action, message) = (action.to_owned(), ended.message());
    let says = |text: &str| message.contains(text);
    if says("Operation not permitted") || says("Permission denied") {
        FirewallError::Permission { action, advice: privilege() }
    } else if says("not supported") || says("Unable to initialize Netlink socket") {
        FirewallError::Kernel { action, message }
    } else {
        FirewallError::Refused { action, program: NFT.name, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(complaint: &str) -> FirewallError {
        refusal(&Ended { complaint: complaint.into(), ..Ended::default() }, "do it")
    }

    #[test]
    fn a_complaint_says_what_to_do() {
        let denied = of("Error: Could not process rule: Operation not permitted\ntable inet weft-wg0\n");
        assert!(matches!(denied, FirewallError::Permission { .. }), "{denied:?}");
        assert!(denied.to_string().contains("CAP_NET_ADMIN"));
        let old = of("Error: Could not process rule: Operation not supported\n");
        assert!(old.to_string().contains("modprobe -a nf_tables"), "{old}");
        let other = of("\nError: no such\n  table \nc\nd\n");
        assert_eq!(other.to_string(), "cannot do it: nft says: Error: no such / table / c");
    }

    #[test]
    fn a_program_that_is_not_there_names_its_package() {
        let absent = Program { name: "nft-that-is-not-there", elsewhere: ["/none/nft"; 2], ..NFT };
        let missing = absent.run(&[], &[], "do it").unwrap_err();
        assert!(matches!(missing, FirewallError::Missing { .. }), "{missing:?}");
        assert!(missing.to_string().contains("install the package nftables"));
    }
}
