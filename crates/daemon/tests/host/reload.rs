//! Another configuration for an interface that is up: only what differs is done, and a failure brings back
//! what was.

use weft::up::{Daemon, Options};
use weft_config::{Config, parse};
use weft_host::{Difference, StepChange};

use crate::support::{End, NAME, Network, Picture, peer};

struct Ends(End, End);

impl Ends {
    fn config(&self, interface: &str, allowed_ips: &str) -> Config {
        let text =
            self.0.interface(interface) + &peer(self.1.public(), &format!("AllowedIPs = {allowed_ips}"));
        parse(&text, "weft0.conf".as_ref(), NAME.parse().unwrap()).unwrap().config
    }
}

fn told(changes: &[StepChange<'_>]) -> Vec<String> {
    let wg0 = NAME.parse().unwrap();
    let tell = |change: &StepChange<'_>| match change {
        StepChange::Add(step) | StepChange::Replace { to: step, .. } => step.doing(&wg0).to_string(),
        StepChange::Remove(step) => step.undoing(&wg0).to_string(),
    };
    changes.iter().map(tell).collect()
}

#[test]
fn a_reload_does_what_differs_and_brings_back_what_was_when_it_fails() {
    let Some(network) = Network::new() else { return };
    let client = &network.client;
    let before = Picture::of(client);
    let ends = Ends(End::new(1), End::new(2));
    let narrow = ends.config("", "10.88.0.0/16");
    let full = ends.config("Address = 10.78.0.1/24\nMTU = 1300", "10.99.0.0/16, 0.0.0.0/0, ::/0");
    let mut impossible = ends.config("MTU = 1350", "10.66.0.0/16, 192.0.2.0/24");
    impossible.interface.addresses = ["10.77.0.3/24", "fd77::1/128"].map(|net| net.parse().unwrap()).into();
    // All of it in the namespace, the clean-up after a failure too.
    client.run(|| {
        let mut daemon = Daemon::start(&narrow, &[None], &Options::default(), || {}).unwrap();
        let with_narrow = Picture::of(client);
        let host = daemon.host_mut().unwrap();
        assert_eq!(host.reload(&narrow, &[]).unwrap(), 0);

        let plan = host.plan_for(&full, &[]).unwrap();
        let told = told(&Difference::between(host.in_force(), &plan.steps).changes);
        assert_eq!(host.reload(&full, &[]).unwrap(), told.len());
        let expected = [
            "add address 10.78.0.1/24 dev weft0",
            "set mtu 1300 dev weft0",
            "add route 10.99.0.0/16 dev weft0 table main",
            "set sysctl net.ipv4.conf.all.src_valid_mark=1",
            "add route 0.0.0.0/0 dev weft0 table 51820",
            "add ip rule table main suppress_prefixlength 0 priority 32764",
            "add ip rule not fwmark 0xca6c table 51820 priority 32765",
            "add route ::/0 dev weft0 table 51820",
            "add ip6 rule table main suppress_prefixlength 0 priority 32764",
            "add ip6 rule not fwmark 0xca6c table 51820 priority 32765",
            "add firewall full tunnel of IPv4 and IPv6 with mark 0xca6c dev weft0",
            "remove route 10.88.0.0/16 dev weft0 table main",
        ];
        assert_eq!(told, expected);
        assert_eq!(host.mark(), 51_820);
        let with_full = Picture::of(client);
        assert_eq!(host.reload(&full, &[]).unwrap(), 0, "nothing is left to do");

        let error = host.reload(&impossible, &[]).unwrap_err().to_string();
        assert!(error.contains("192.0.2.0/24"), "{error}");
        assert_eq!(Picture::of(client), with_full);
        assert_eq!(host.reload(&full, &[]).unwrap(), 0, "the full one is in force");

        host.reload(&narrow, &[]).unwrap();
        assert_eq!(Picture::of(client), with_narrow);
        daemon.stop().unwrap();
    });
    before.assert_restored(client);
}

#[test]
fn a_reload_says_which_commands_do_not_run_and_which_run_at_the_end() {
    let Some(network) = Network::new() else { return };
    let (ends, log) = (Ends(End::new(1), End::new(2)), network.directory.path().join("log"));
    let write = |number: u8, phases: [&str; 4]| {
        let hook = |phase: &str| format!("{phase} = echo {phase}-{number} >> {}\n", log.display());
        let text = ends.0.interface(&phases.map(hook).concat()) + &peer(ends.1.public(), "");
        network.file("weft0.conf", &text)
    };
    let all = ["PreUp", "PostUp", "PreDown", "PostDown"];
    let file = write(1, all);
    let daemon = network.up(&file);
    let reload = || network.run(&["reload", file.to_str().unwrap()]);
    assert_eq!(reload().stdout, "nothing to change\n");
    write(2, all);
    let said = reload();
    assert_eq!(said.code, Some(0), "{said:?}");
    for phase in ["PreUp", "PostUp"] {
        assert!(said.stderr.contains(&format!(": {phase}: the commands differ")), "{said:?}");
        assert!(!said.stdout.contains(phase), "{said:?}");
    }
    for phase in ["PreDown", "PostDown"] {
        assert!(
            said.stdout.contains(&format!("at the end, run {phase} as it is in the file now")),
            "{said:?}"
        );
        assert!(!said.stderr.contains(phase), "{said:?}");
    }
    daemon.stop();
    let ran = std::fs::read_to_string(&log).unwrap();
    assert_eq!(ran.lines().collect::<Vec<_>>(), ["PreUp-1", "PostUp-1", "PreDown-2", "PostDown-2"]);
}
