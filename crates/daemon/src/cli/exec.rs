//! The arguments of the commands that use a tunnel without root.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use clap::Args;
use weft_commands::complete;
use weft_config::{PacketThreads, TunThreads};
use weft_proxy::LocalAddress;

use super::{Elsewhere, MetricsArgs, ProxyArgs, Stack, TunArgs};

/// Which tunnel is brought up without root, and how.
#[derive(Clone, Debug, Args)]
pub struct RootlessArgs {
    /// A wg-quick configuration file of any name, `-` for standard input, or a name for
    /// /etc/wireguard/NAME.conf. Its commands (PostUp and the
    /// like), FwMark, Table and SaveConfig have no effect.
    #[arg(value_name = "FILE|NAME", add = complete::configured())]
    pub target: String,
    /// Look names up at this server inside the tunnel, instead of the file's `DNS`. May be given several
    /// times. `host`: look them up at the name servers of this host, OUTSIDE the tunnel: its operators see
    /// which names are asked for.
    #[arg(long, value_name = "ADDRESS|host")]
    pub dns: Vec<NameServer>,
    /// Congestion control of TCP in the tunnel, such as `bbr`. For `weft exec` it is that of all programs in
    /// the tunnel, and has to be one of the host's net.ipv4.tcp_allowed_congestion_control.
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Logs and metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// How packets pass the TUN device.
    #[command(flatten)]
    pub tun: TunArgs,
}

/// A server that names are looked up at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameServer {
    /// Those of the host, outside the tunnel.
    Host,
    /// One inside the tunnel.
    Address(IpAddr),
}

impl FromStr for NameServer {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "host" {
            return Ok(Self::Host);
        }
        text.parse().map(Self::Address).map_err(|_| "write the address of a name server, or host")
    }
}

impl RootlessArgs {
    /// Returns the options that are for the tunnel and not for a command that uses it, as they are written.
    pub fn of_tunnel(&self) -> Vec<String> {
        let Self { target: _, dns: _, congestion: _, metrics, tun } = self;
        let TunArgs { packet_threads, pin, tun_threads, no_offload, ring: _ } = tun;
        let mut given = metrics.given();
        if *packet_threads != PacketThreads::default() {
            given.push(format!("--packet-threads {packet_threads}"));
        }
        if *tun_threads != TunThreads::default() {
            given.push(format!("--tun-threads {tun_threads}"));
        }
        given.extend(pin.then(|| "--pin".to_owned()));
        given.extend(no_offload.then(|| "--no-offload".to_owned()));
        given
    }
}

const EXIT_CODES: &str = "\
Exit codes:
  N        that of the command
  128+N    signal N ended the command
  2        the command line of weft is wrong
  77       a permission is missing: to make namespaces, or to read the file
  78       the configuration is wrong
  125      weft failed otherwise
  126      the command cannot be executed
  127      the command is not found";

/// The arguments of `weft exec`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  weft exec ./office.conf -- curl https://intranet.example
  weft exec ./office.conf -- bash             its only network is the tunnel
  weft exec ./office.conf --dns 10.0.0.53 -- ssh db.internal
  weft exec ./office.conf --publish 8080:3000 --host-port 5432 -- npm start
  weft exec ./office.conf --with-proxy -- git fetch
      where namespaces are forbidden; only for programs that use proxies

{EXIT_CODES}"))]
pub struct ExecArgs {
    /// Let programs of this host reach a port of the command: `8080:3000` brings port 3000 of 127.0.0.1 in
    /// the namespace to port 8080 of this host's 127.0.0.1, `0.0.0.0:8080:3000` to all of its IPv4 addresses.
    /// May be given several times.
    #[arg(long, value_name = "LOCAL:PORT")]
    pub publish: Vec<Publish>,
    /// Let the command reach this port of the host's 127.0.0.1, at the same port inside. May be given
    /// several times.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub host_port: Vec<u16>,
    /// Run the command in the host's network, with variables that name proxies into the tunnel (ALL_PROXY,
    /// HTTP_PROXY, HTTPS_PROXY): works without namespaces. ONLY PROGRAMS THAT HONOUR THESE VARIABLES USE THE
    /// TUNNEL; everything else goes by the host's network.
    #[arg(long, conflicts_with_all = ["publish", "host_port"])]
    pub with_proxy: bool,
    /// With --with-proxy, the TCP/IP stack of connections in the tunnel.
    #[arg(long, value_name = "STACK", value_enum, default_value_t, requires = "with_proxy")]
    pub stack: Stack,
    /// With --stack own, count on at most this memory, in MiB, as `weft proxy` does.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..), requires = "with_proxy")]
    pub memory_limit: Option<u32>,
    /// The tunnel.
    #[command(flatten)]
    pub rootless: RootlessArgs,
    /// The command, with its arguments. It runs as this user, in this directory.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl ExecArgs {
    /// Returns the arguments of the proxies that the command gets, at free ports.
    pub fn proxies(&self) -> ProxyArgs {
        let local = vec![LocalAddress::Ip((Ipv4Addr::LOCALHOST, 0).into())];
        ProxyArgs {
            socks5: local.clone(),
            http: local,
            forward: Vec::new(),
            reverse: Vec::new(),
            stdio: None,
            elsewhere: Elsewhere::Refuse,
            elsewhere_allow: Vec::new(),
            password_file: None,
            allow_anyone: false,
            stack: self.stack,
            memory_limit: self.memory_limit,
            rootless: self.rootless.clone(),
        }
    }
}

/// A port of the command, and where it is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The address on the host.
    pub at: SocketAddr,
    /// The port in the namespace.
    pub port: u16,
}

impl FromStr for Publish {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "write PORT:PORT or ADDRESS:PORT:PORT, as in 8080:3000 or [::1]:8080:3000";
        let port = |text: &str| text.parse().ok().filter(|port| *port != 0).ok_or(FORM);
        let (local, inside) = text.rsplit_once(':').ok_or(FORM)?;
        let at = match local.parse::<SocketAddr>() {
            Ok(at) if at.port() != 0 => at,
            _ => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(local)?),
        };
        Ok(Self { at, port: port(inside)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_published_at_loopback_unless_it_says_otherwise() {
        for (text, at) in [
            ("8080:3000", Some("127.0.0.1:8080")),
            ("0.0.0.0:8080:3000", Some("0.0.0.0:8080")),
            ("[::1]:8080:3000", Some("[::1]:8080")),
            ("3000", None),
            ("0:3000", None),
            ("8080:0", None),
            ("localhost:8080:3000", None),
            ("8080:http", None),
        ] {
            let expected = at.map(|at| Publish { at: at.parse().unwrap(), port: 3000 });
            assert_eq!(text.parse::<Publish>().ok(), expected, "{text}");
        }
    }
}
