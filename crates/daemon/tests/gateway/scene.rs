//! The namespaces, and weft in them with the files of `contrib/gateway`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use weft::up::{Daemon, Options};
use weft_config as config;
use weft_config::TunThreads;
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, here};
use weft_tunnel::PrivateKey;

/// The peers of `wg0.conf`, by the last number of their addresses.
pub(crate) const LAPTOP: u8 = 2;
pub(crate) const DESKTOP: u8 = 3;
pub(crate) const PHONE: u8 = 4;
const NAMES: [&str; 3] = ["laptop", "desktop", "phone"];

/// The world's addresses.
pub(crate) const WORLD: [&str; 2] = ["198.51.100.1", "2001:db8:1::1"];

/// The gateway's addresses that the world sees.
pub(crate) fn gateway_outside() -> [IpAddr; 2] {
    ["198.51.100.2", "2001:db8:1::2"].map(|text| text.parse().unwrap())
}

/// A peer's addresses inside the tunnel.
pub(crate) fn inner(peer: u8) -> [IpAddr; 2] {
    [IpAddr::from([10, 9, 0, peer]), IpAddr::from([0xfd09, 0, 0, 0, 0, 0, 0, peer.into()])]
}

/// A file as it is shipped.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/gateway").join(name)
}

pub(crate) struct Scene {
    // They go before their namespaces.
    _daemons: Vec<Daemon>,
    clients: Vec<Namespace>,
    gateway: Namespace,
    pub(crate) world: Namespace,
    directory: TempDir,
}

impl Scene {
    /// Everything up; `None` where that is not permitted, which is said.
    pub(crate) fn new() -> Option<Self> {
        if !here::tun_permitted() || !here::installed(&["nft"]) {
            return None;
        }
        let (gateway, world) = (Namespace::new("gateway").unwrap(), Namespace::new("world").unwrap());
        if let Err(error) = gateway.run(|| weft_host::firewall::present(&"wg0".parse().unwrap())) {
            here::not_run(&error.to_string());
            return None;
        }
        let clients = NAMES.map(|name| Namespace::new(name).unwrap());
        join(&world, &gateway, "wan", WORLD, &gateway_outside().map(|address| address.to_string()));
        // It knows where the peers are, and the gateway is on the way.
        for (net, via) in ["10.9.0.0/24", "fd09::/64"].into_iter().zip(gateway_outside()) {
            link::add_route(&world, net.parse().unwrap(), via).unwrap();
        }
        for (number, client) in (1..).zip(&clients) {
            let (near, far) = (4 * number + 2, 4 * number + 1);
            let options = LinkOptions {
                name_b: format!("to-{}", client.name()),
                addresses_a: vec![format!("192.0.2.{near}/30").parse().unwrap()],
                addresses_b: vec![format!("192.0.2.{far}/30").parse().unwrap()],
                ..LinkOptions::default()
            };
            link::join(client, &gateway, &options).unwrap();
            let via = IpAddr::from([192, 0, 2, far]);
            link::add_route(client, "0.0.0.0/0".parse().unwrap(), via).unwrap();
        }

        let directory = tempfile::tempdir().unwrap();
        let key = PrivateKey::generate().unwrap();
        std::fs::write(directory.path().join("wg0.key"), key.to_base64().as_bytes()).unwrap();
        let mut text = std::fs::read_to_string(shipped("wg0.conf")).unwrap();
        let mut client_texts = Vec::new();
        for (number, name) in (1_u8..).zip(NAMES) {
            let own = PrivateKey::generate().unwrap();
            fill(&mut text, &format!("({name})"), &own.public_key().to_string());
            let mut client = std::fs::read_to_string(shipped("client.conf")).unwrap();
            fill(&mut client, "(the laptop's private key)", &own.to_base64());
            fill(&mut client, "(the gateway's public key)", &key.public_key().to_string());
            fill(&mut client, "gateway.example.com", &format!("192.0.2.{}", 4 * number + 1));
            fill(&mut client, "10.9.0.2/32", &format!("10.9.0.{}/32", number + 1));
            fill(&mut client, "fd09::2/128", &format!("fd09::{}/128", number + 1));
            client_texts.push(client);
        }

        let mut scene = Self { _daemons: Vec::new(), clients: clients.into(), gateway, world, directory };
        scene.load();
        if let Err(error) = scene.forward() {
            here::not_run(&error.to_string());
            return None;
        }
        let directory = scene.directory.path();
        let mut daemons = vec![start(&scene.gateway, "wg0", &text, directory)];
        daemons.extend(
            scene
                .clients
                .iter()
                .zip(&client_texts)
                .map(|(client, text)| start(client, "wg0", text, directory)),
        );
        scene._daemons = daemons;
        Some(scene)
    }

    pub(crate) fn client(&self, peer: u8) -> &Namespace {
        &self.clients[usize::from(peer - LAPTOP)]
    }

    /// What weft-gateway.service does first, and for a reload. The pairs of the example may talk.
    #[track_caller]
    pub(crate) fn load(&self) {
        let shipped = std::fs::read_to_string(shipped("gateway.nft")).unwrap();
        let rules = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&rules, shipped.replace("#elements", "elements")).unwrap();
        self.nft(&["-f", rules.path().to_str().unwrap()]);
    }

    /// What it does second.
    fn forward(&self) -> std::io::Result<()> {
        let text = std::fs::read_to_string(shipped("gateway.sysctl"))?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for (name, value) in lines.filter_map(|line| line.split_once('=')) {
            let name = name.trim().replace('.', "/");
            let names = match name.split_once('*') {
                Some((before, after)) => {
                    let interfaces = self.gateway.run(|| std::fs::read_dir(format!("/proc/sys/{before}")))?;
                    let interfaces =
                        interfaces.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                    interfaces.map(|interface| format!("{before}{interface}{after}")).collect()
                }
                None => vec![name],
            };
            names.iter().try_for_each(|name| self.gateway.set_sysctl(name, value.trim()))?;
        }
        Ok(())
    }

    /// Runs nft in the gateway, and gives what it says.
    #[track_caller]
    pub(crate) fn nft(&self, arguments: &[&str]) -> String {
        let output = self.gateway.command("nft").args(arguments).output().unwrap();
        assert!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// How many packets the rule with this comment has met.
    #[track_caller]
    pub(crate) fn counted(&self, comment: &str) -> u64 {
        let rules = self.nft(&["list", "table", "inet", "weft-gateway"]);
        let rule = rules.lines().find(|line| line.contains(&format!("comment \"{comment}\""))).unwrap();
        let mut words = rule.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1).unwrap().parse().unwrap()
    }
}

/// Replaces what stands for something of the operator's.
#[track_caller]
fn fill(text: &mut String, placeholder: &str, value: &str) {
    assert!(text.contains(placeholder), "no {placeholder} in:\n{text}");
    *text = text.replace(placeholder, value);
}

fn join(a: &Namespace, b: &Namespace, name_b: &str, addresses_a: [&str; 2], addresses_b: &[String; 2]) {
    let net = |address: &str| {
        let length = if address.contains(':') { 64 } else { 24 };
        format!("{address}/{length}").parse().unwrap()
    };
    let options = LinkOptions {
        name_b: name_b.to_owned(),
        addresses_a: addresses_a.map(net).to_vec(),
        addresses_b: addresses_b.iter().map(|address| net(address)).collect(),
        ..LinkOptions::default()
    };
    link::join(a, b, &options).unwrap();
}

/// An interface as this text says, which names files of this directory.
#[track_caller]
pub(crate) fn start(namespace: &Namespace, interface: &str, text: &str, directory: &Path) -> Daemon {
    let parsed = config::parse(text, &directory.join("wg0.conf"), interface.parse().unwrap());
    let config = parsed.unwrap_or_else(|error| panic!("{error}")).config;
    let endpoints = config.endpoint_addresses();
    // Driven by the packet thread alone: the tests are not about TUN threads.
    let options = Options { tun_threads: TunThreads::Fixed(0), ..Options::default() };
    namespace.run(|| Daemon::start(&config, &endpoints, &options, || ())).unwrap()
}
