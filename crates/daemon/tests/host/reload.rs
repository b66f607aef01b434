//! Another configuration for an interface that is up: only what differs is done, and a failure brings back
//! what was.

use weft::up::{Daemon, Options};
use weft_config::keys::{InterfaceKey, InterfaceSetting, PeerKey, PeerSetting};
use weft_config::{Config, parse};
use weft_host::{Difference, StepChange};
use weft_tunnel::PresharedKey;

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

/// The lines of both sections, as keys and values.
#[derive(Clone)]
struct Sections([Vec<(String, String)>; 2]);

impl Sections {
    fn with(&self, section: usize, key: &str, value: &str) -> Self {
        let mut others = self.clone();
        // A key is in this file or in another one.
        others.0[section].retain(|(known, _)| *known != key.trim_end_matches("File"));
        others.0[section].push((key.to_owned(), value.to_owned()));
        others
    }

    fn text(&self) -> String {
        let text = |(key, value): &(String, String)| format!("{key} = {value}\n");
        let [interface, peer] = self.0.each_ref().map(|lines| lines.iter().map(text).collect::<String>());
        format!("[Interface]\n{interface}[Peer]\n{peer}")
    }
}

/// What a reload does with another value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// It is a step.
    Step,
    /// A warning names the key, in each reload.
    NextStart,
    /// A warning names the commands, in the first reload only.
    Command,
    /// Nothing: another command reads it in the file.
    Nothing,
}

#[test]
fn a_reload_tells_of_every_key_of_the_file() {
    use Means::{Command, NextStart, Nothing, Step};
    let Some(network) = Network::new() else { return };
    let (own, other) = (End::new(1), End::new(2));
    let in_file = |name: &str, text: &str| network.file(name, text).to_str().unwrap().to_owned();
    let (key, psk) = (End::new(3).key.to_base64(), PresharedKey::generate().unwrap().to_base64());
    let (key_file, psk_file) = (in_file("key", &key), in_file("psk", &psk));
    let public = End::new(4).public().to_string();
    let of_interface = |key_of_file: InterfaceKey| match key_of_file {
        InterfaceKey::PrivateKey => (key.as_str(), Step),
        InterfaceKey::PrivateKeyFile => (key_file.as_str(), Step),
        InterfaceKey::ListenPort => ("51999", Step),
        InterfaceKey::FwMark => ("0x1234", Step),
        InterfaceKey::Address => ("10.78.0.1/24", Step),
        InterfaceKey::Mtu => ("1300", Step),
        InterfaceKey::Table => ("1234", Step),
        InterfaceKey::Dns => ("10.88.0.1", Step),
        InterfaceKey::SaveConfig => ("true", Step),
        InterfaceKey::PreUp | InterfaceKey::PostUp => ("true", Command),
        InterfaceKey::PreDown | InterfaceKey::PostDown => ("true", Step),
    };
    let of_setting = |setting: InterfaceSetting| match setting {
        InterfaceSetting::KillSwitch => ("on", Step),
        InterfaceSetting::PathMtuDiscovery => ("on", NextStart),
        InterfaceSetting::MssClamp => ("on", Step),
        InterfaceSetting::Metrics => ("127.0.0.1:9586", Step),
        InterfaceSetting::MetricsHost => ("gateway.example.com", Step),
        InterfaceSetting::SpeedTest => ("on", Step),
        InterfaceSetting::Endpoint => ("vpn.example.com:51820", Nothing),
        InterfaceSetting::PeerDns => ("10.77.0.1", Nothing),
        InterfaceSetting::PeerAllowedIps => ("10.77.0.0/24", Nothing),
    };
    let of_peer = |key_of_file: PeerKey| match key_of_file {
        PeerKey::PublicKey => public.as_str(),
        PeerKey::PresharedKey => psk.as_str(),
        PeerKey::PresharedKeyFile => psk_file.as_str(),
        PeerKey::AllowedIps => "10.99.0.0/16",
        PeerKey::Endpoint => "192.0.2.9:51820",
        PeerKey::PersistentKeepalive => "25",
    };
    let of_peer_setting = |setting: PeerSetting| match setting {
        PeerSetting::RateToPeer | PeerSetting::RateFromPeer => "10Mbit",
        PeerSetting::Expected => "on",
        PeerSetting::Expires => "2099-12-31",
    };
    let comment = |text: &str| format!("# weft: {text}");
    let all = InterfaceKey::ALL.iter().map(|&key| (0, key.text().to_owned(), of_interface(key)));
    let settings = InterfaceSetting::ALL.iter();
    let all = all.chain(settings.map(|&key| (0, comment(key.text()), of_setting(key))));
    let all = all.chain(PeerKey::ALL.iter().map(|&key| (1, key.text().to_owned(), (of_peer(key), Step))));
    let settings = PeerSetting::ALL.iter();
    let all = all.chain(settings.map(|&key| (1, comment(key.text()), (of_peer_setting(key), Step))));

    let base = Sections([Vec::new(), Vec::new()])
        .with(0, "PrivateKey", &own.key.to_base64())
        .with(0, "Address", "10.77.0.1/24")
        .with(1, "PublicKey", &other.public().to_string())
        .with(1, "AllowedIPs", "10.88.0.0/16");
    let file = network.file("weft0.conf", &base.text());
    let daemon = network.up(&file);
    let reload = |text: &str, options: &[&str]| {
        network.file("weft0.conf", text);
        let said = network.run(&[&["reload", file.to_str().unwrap()], options].concat());
        assert_eq!(said.code, Some(0), "{said:?}\n{text}");
        said
    };
    let nothing = "nothing to change\n";
    for (section, key, (value, means)) in all {
        let text = base.with(section, &key, value).text();
        let name = key.trim_start_matches("# weft: ");
        let check = |options: &[&str]| {
            let said = reload(&text, options);
            assert_eq!(said.stdout != nothing, means == Step, "{key}: {said:?}");
            let warning = match means {
                NextStart => format!("{name}: what is in the file now counts from the next start of weft0"),
                Command => format!("{name}: the commands differ"),
                Step | Nothing => return,
            };
            assert!(said.stderr.contains(&warning), "{key}: {said:?}");
        };
        // The resolver of this machine is left alone: other tests see that steps are done.
        check(&["--dry-run"]);
        if means == NextStart {
            check(&[]);
            check(&[]);
            let said = reload(&base.text(), &[]);
            assert_eq!((said.stdout.as_str(), said.stderr.as_str()), (nothing, ""), "{key}");
        }
    }
    daemon.stop();
}
