//! The arguments of `weft proxy`.

use std::net::{AddrParseError, IpAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use weft_commands::args::EXIT_CODES;
use weft_proxy::{Destination, Forward, LocalAddress, Reverse};

use super::RootlessArgs;

const SERVED: &str = "What is served";
const PAST: &str = "Past the tunnel";
const ACCESS: &str = "Access";

/// The arguments of `weft proxy`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
LOCAL is an address of this host: PORT (of 127.0.0.1), ADDRESS:PORT, or the
path of a Unix socket with a `/` in it, which only this user can use. Names are
looked up through the tunnel only.

Examples:
  weft proxy ./office.conf --socks5 1080
      curl --proxy socks5h://127.0.0.1:1080 https://intranet.example
  weft proxy ./office.conf --http 3128 --socks5 1080 --elsewhere direct
      for a browser: what is in no peer's AllowedIPs goes by this host's network
  weft proxy ./office.conf --forward 5432=db:5432 --forward udp:53=10.0.0.53:53
      psql --host 127.0.0.1
  weft proxy ./office.conf --forward ./db.sock=db.internal:5432
  weft proxy ./office.conf --reverse 8080=3000
      port 3000 of this host, for others at port 8080 of the tunnel's addresses
  ssh -o ProxyCommand='weft proxy ./office.conf --stdio %h:%p' build.internal
  weft proxy ./office.conf --socks5 0.0.0.0:1080 --password-file users
      for other machines, with a line USER:PASSWORD for each user

{EXIT_CODES}"))]
pub struct ProxyArgs {
    /// Serve SOCKS5 at this address: TCP, and UDP by UDP ASSOCIATE. May be given several times.
    #[arg(long, value_name = "LOCAL", help_heading = SERVED)]
    pub socks5: Vec<LocalAddress>,
    /// Serve an HTTP proxy at this address: CONNECT, and http:// URLs. May be given several times.
    #[arg(long, value_name = "LOCAL", help_heading = SERVED)]
    pub http: Vec<LocalAddress>,
    /// Carry connections, or datagrams with `udp:`, from an address of this host to HOST:PORT in the tunnel.
    /// May be given several times.
    #[arg(long, value_name = "[udp:]LOCAL=REMOTE", help_heading = SERVED)]
    pub forward: Vec<Forward>,
    /// Carry connections, or datagrams with `udp:`, from PORT or ADDRESS:PORT of this end of the tunnel to an
    /// address of this host. May be given several times.
    #[arg(long, value_name = "[udp:]TUNNEL=LOCAL", help_heading = SERVED)]
    pub reverse: Vec<Reverse>,
    /// Connect standard input and output to this port in the tunnel, and end with the connection.
    #[arg(long, help_heading = SERVED, value_name = "HOST:PORT", conflicts_with_all = ["socks5", "http", "forward", "reverse"])]
    pub stdio: Option<Destination>,
    /// What happens to destinations that are in no peer's AllowedIPs. Addresses of this host, link-local ones
    /// and the networks of its other devices (as those of containers) are refused.
    #[arg(long, help_heading = PAST, value_name = "WAY", value_enum, default_value_t)]
    pub elsewhere: Elsewhere,
    /// Let clients reach these addresses by this host's network all the same. 127.0.0.0/8 and ::1 stay
    /// refused. May be given several times.
    #[arg(long, help_heading = PAST, value_name = "ADDRESS[/LENGTH]", value_parser = network)]
    pub elsewhere_allow: Vec<IpNet>,
    /// Ask users of SOCKS5 and HTTP for a password: the file has a line USER:PASSWORD for each.
    #[arg(long, value_name = "FILE", help_heading = ACCESS)]
    pub password_file: Option<PathBuf>,
    /// Listen on addresses that other machines reach, without a password.
    #[arg(long, help_heading = ACCESS)]
    pub allow_anyone: bool,
    /// The TCP/IP stack of connections in the tunnel.
    #[arg(long, value_name = "STACK", value_enum, default_value_t)]
    pub stack: Stack,
    /// With --stack own, count on at most this memory, in MiB: connections in the tunnel have a sixteenth of
    /// it, and the number of clients follows from it. Otherwise the limit of the cgroup counts, else the
    /// memory of the machine.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..))]
    pub memory_limit: Option<u32>,
    /// The tunnel.
    #[command(flatten)]
    pub rootless: RootlessArgs,
}

fn network(text: &str) -> Result<IpNet, String> {
    let address = || Ok(IpNet::from(text.parse::<IpAddr>()?.to_canonical()));
    text.parse()
        .or_else(|_| address())
        .map_err(|_: AddrParseError| "not an address or ADDRESS/LENGTH".to_owned())
}

/// The TCP/IP stack of connections in the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Stack {
    /// The kernel's where the system allows it, else that of this process.
    #[default]
    Auto,
    /// The kernel's, in a network namespace.
    Kernel,
    /// That of this process: it needs no namespace, no /dev/net/tun and no other process.
    Own,
}

/// What happens to destinations outside the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Elsewhere {
    /// They are refused.
    #[default]
    Refuse,
    /// They are reached by this host's network.
    Direct,
}

impl Elsewhere {
    /// Reports whether the host's network is used.
    pub fn is_direct(self) -> bool {
        self == Self::Direct
    }
}
