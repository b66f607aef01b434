//! The rules themselves: each is needed, the page shows them as they are, and what stands in their way is
//! said.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::{Value, json};
use weft_host::firewall::{self, FirewallError, FullTunnel, Local, OwnPackets, Rules};
use weft_lab::{Namespace, here};

use crate::scenario::everything;
use crate::world::{NAME, World, marked};

/// A change to one rule that makes a kill switch another.
#[derive(Clone, Debug)]
struct Mutation {
    what: String,
    handle: u64,
    chain: String,
    /// The statements that are left, if the rule is.
    left: Option<Vec<Value>>,
}

/// Every rule without one of its conditions, and the table without each of its rules.
fn mutations(world: &World) -> Vec<Mutation> {
    let listing: Value =
        serde_json::from_str(&world.nft(&["-j", "list", "table", "inet", &table()])).unwrap();
    let rules = listing["nftables"].as_array().unwrap().iter().filter_map(|object| object.get("rule"));
    // What holds packets back is said twice, by the last rule and by the policy.
    let rules = rules.filter(|rule| rule["comment"] != "blocked");
    let mutations = rules.flat_map(|rule| {
        let chain = rule["chain"].as_str().unwrap().to_owned();
        let handle = rule["handle"].as_u64().unwrap();
        let name = format!("{chain}: {}", rule["comment"].as_str().unwrap());
        let whole = Mutation { what: name.clone(), handle, chain: chain.clone(), left: None };
        let statements = rule["expr"].as_array().unwrap().clone();
        let conditions: Vec<usize> =
            (0..statements.len()).filter(|at| statements[*at].get("match").is_some()).collect();
        let without = conditions.into_iter().map(move |at| {
            let mut left = statements.clone();
            let what = format!("{name} without {}", left.remove(at)["match"]["left"]);
            Mutation { what, handle, chain: chain.clone(), left: Some(left) }
        });
        std::iter::once(whole).chain(without)
    });
    mutations.collect()
}

fn table() -> String {
    format!("weft-{NAME}")
}

fn mutate(world: &World, mutation: &Mutation) {
    let rule = json!({
        "family": "inet", "table": table(), "chain": mutation.chain, "handle": mutation.handle
    });
    let mut commands = Vec::new();
    if let Some(left) = &mutation.left {
        let mut other = rule.clone();
        other["expr"] = Value::Array(left.clone());
        // Before it: to replace a rule with a set of networks is more than some versions of nft can do.
        commands.push(json!({ "insert": { "rule": other } }));
    }
    commands.push(json!({ "delete": { "rule": rule } }));
    feed(&world.machine, &["-j"], &json!({ "nftables": commands }).to_string());
}

/// Passes a text to nft.
fn feed(namespace: &Namespace, arguments: &[&str], text: &str) {
    let mut command = namespace.command("nft");
    command.args(arguments).args(["-f", "-"]).stdin(Stdio::piped());
    let mut nft = command.spawn().unwrap();
    nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "{text}");
}

/// What is done to the rules, and whether the scenario tells the difference.
fn outcomes(world: &mut World, rules: &Rules) -> Vec<(String, bool)> {
    world.apply(rules);
    let baseline = everything(world);
    let mutations = mutations(world);
    let outcome = |mutation: Mutation| {
        world.apply(rules);
        mutate(world, &mutation);
        (mutation.what, everything(world) != baseline)
    };
    mutations.into_iter().map(outcome).collect()
}

#[test]
fn every_rule_of_the_kill_switch_is_needed_and_every_condition_of_it() {
    let Some(mut world) = World::new() else { return };
    let dns = ["192.168.93.2", "fd93::2"].map(|server| server.parse().unwrap()).into();
    // Some rules let through what another does already, but not with all of these.
    let kinds = [marked(Local::Blocked), marked(Local::Allowed { dns })];
    let outcomes: Vec<_> = kinds.iter().flat_map(|rules| outcomes(&mut world, rules)).collect();
    let noticed = |wanted: bool| -> BTreeSet<&str> {
        let some = outcomes.iter().filter(|(_, noticed)| *noticed == wanted);
        some.map(|(what, _)| what.as_str()).collect()
    };
    let (unnoticed, noticed) = (noticed(false), noticed(true));
    assert!(noticed.len() > 40, "only {}", noticed.len());
    assert_eq!(unnoticed.difference(&noticed).collect::<Vec<_>>(), [&""; 0]);
}

/// The rules that `rules.nft` has, to which docs/FIREWALL.md links.
fn shown() -> Rules {
    let mark = NonZeroU32::new(51820).unwrap();
    Rules {
        full_tunnel: Some(FullTunnel {
            mark,
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ipv4: true,
            ipv6: true,
        }),
        kill_switch: Some(firewall::KillSwitch {
            own: OwnPackets::Marked(mark),
            local: Local::Allowed { dns: BTreeSet::from(["192.168.1.1".parse().unwrap()]) },
        }),
        mss_clamp: true,
        ..Rules::none("wg0".parse().unwrap())
    }
}

#[test]
fn the_file_that_the_page_links_to_has_the_rules_as_they_are() {
    let Some(world) = World::without_tunnel() else { return };
    let full = include_str!("../../../host/src/firewall/linux/rules.nft");
    let list = || world.nft(&["list", "ruleset"]);
    feed(&world.machine, &[], full);
    let of_the_file = list();
    world.nft(&["flush", "ruleset"]);
    world.apply(&shown());
    assert_eq!(of_the_file, list());
}

/// What `firewall::apply` returns in a new namespace after `before`.
fn refused(prepare: impl FnOnce() -> std::io::Result<()> + Send) -> Option<FirewallError> {
    let world = World::without_tunnel()?;
    Some(world.machine.run(|| {
        prepare().unwrap();
        firewall::apply(&marked(Local::Blocked)).unwrap_err()
    }))
}

#[test]
fn a_missing_permission_is_said() {
    // For this thread and what it starts.
    let prepare = || Ok(remove_capability_from_bounding_set(CapabilitySet::NET_ADMIN)?);
    let Some(error) = refused(prepare) else { return };
    assert!(matches!(error, FirewallError::Permission { .. }), "{error:?}");
    assert_eq!(error.exit_code(), weft_config::exit::Code::Permission);
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}

#[test]
fn nft_is_found_outside_of_the_path_and_missed_by_the_name_of_its_package() {
    const INNER: &str = "WEFT_TEST_NFT_IS";
    if let Some(state) = std::env::var_os(INNER) {
        let error = firewall::apply(&marked(Local::Blocked)).err().map(|error| error.to_string());
        match state.to_str().unwrap() {
            "there" => assert_eq!(error, None),
            state => {
                assert!(error.unwrap().contains("install the package nftables"));
                // Nothing to take away, nothing to complain of.
                let removed = firewall::remove(&NAME.parse().unwrap());
                assert_eq!(removed.is_err(), state == "missing beside rules", "{removed:?}");
            }
        }
        return;
    }
    let Some(world) = World::without_tunnel() else { return };
    let name = here::test_name();
    let again = |state: &str, prepare: fn() -> std::io::Result<()>| {
        let mut command: Command = world.machine.command(std::env::current_exe().unwrap());
        command.args(["--exact", &name]).env(INNER, state).env("PATH", "/nowhere");
        // SAFETY: between fork and exec the closure only makes system calls.
        unsafe { command.pre_exec(prepare) };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{state}: {}", String::from_utf8_lossy(&output.stdout));
    };
    if !["/usr/sbin/nft", "/sbin/nft"].iter().any(|path| std::path::Path::new(path).exists()) {
        return here::not_run("nft is not where Debian has it");
    }
    again("there", || Ok(()));
    let take_away: fn() -> std::io::Result<()> = || {
        use nix::mount::{MsFlags, mount};
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("tmpfs"), "/usr/sbin", Some("tmpfs"), MsFlags::empty(), none)?;
        Ok(())
    };
    again("missing beside rules", take_away);
    world.nft(&["flush", "ruleset"]);
    again("missing", take_away);
}
