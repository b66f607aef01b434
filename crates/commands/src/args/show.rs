//! The arguments of `weft show` and `weft showconf`.

use clap::{Args, ValueEnum};
use weft_config::InterfaceName;

use super::EXIT_CODES;
use crate::complete;
use crate::own_file::interface_of;

/// The arguments of `weft show`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  weft show                      everything, for people
  weft show wg0
  weft show interfaces           the names of the interfaces
  weft show wg0 laptop           one peer: its name, or the beginning of its key
  weft show all latest-handshakes
  weft show wg0 dump             tab-separated, keys included, for scripts

Environment:
  WG_COLOR_MODE   always, never or auto (on a terminal, unless NO_COLOR is set)
  WG_HIDE_KEYS    never: show private and preshared keys

{EXIT_CODES}"))]
pub struct ShowArgs {
    /// An interface, or its configuration file; `all` (as without it); or `interfaces`, for the names only.
    #[arg(value_name = "NAME|FILE|all|interfaces", default_value = "all", add = complete::subject())]
    pub what: Subject,
    /// One property only, tab-separated, as wg(8) prints it: public-key, private-key, listen-port, fwmark,
    /// peers, preshared-keys, endpoints, allowed-ips, latest-handshakes, transfer, persistent-keepalive, or
    /// dump for all of them. Any other word is a peer.
    #[arg(value_name = "FIELD|PEER", add = complete::words_or_peer(fields))]
    pub part: Option<Part>,
    /// Print JSON; with keys only if WG_HIDE_KEYS is `never`.
    #[arg(long)]
    pub json: bool,
}

/// The part of an interface that `weft show` is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A property.
    Field(Field),
    /// A peer, as a user names it.
    Peer(String),
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Field::from_str(text, false).map_or_else(|_| Self::Peer(text.to_owned()), Self::Field)
    }
}

/// What `weft show` is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Every interface.
    All,
    /// Their names.
    Interfaces,
    /// One interface.
    One(InterfaceName),
}

impl std::str::FromStr for Subject {
    type Err = weft_config::LoadError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "all" => Self::All,
            "interfaces" => Self::Interfaces,
            _ => Self::One(interface_of(text)?),
        })
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Interfaces => f.write_str("interfaces"),
            Self::One(name) => name.fmt(f),
        }
    }
}

/// A property of an interface or of its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Field {
    /// Its public key.
    PublicKey,
    /// Its private key.
    PrivateKey,
    /// Its UDP port.
    ListenPort,
    /// The mark of its outgoing packets, or `off`.
    Fwmark,
    /// The public keys of the peers.
    Peers,
    /// The preshared key of each peer.
    PresharedKeys,
    /// The endpoint of each peer.
    Endpoints,
    /// The allowed-ips of each peer, separated by spaces.
    AllowedIps,
    /// When each peer's latest handshake was, in Unix time.
    LatestHandshakes,
    /// The bytes received from and sent to each peer.
    Transfer,
    /// The keepalive interval of each peer in seconds, or `off`.
    PersistentKeepalive,
    /// A line of the interface, and one of each peer, with everything.
    Dump,
}

fn fields() -> Vec<String> {
    let values = Field::value_variants().iter().filter_map(Field::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect()
}

/// The arguments of `weft showconf`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Example:
  sudo weft showconf wg0 > wg0.backup

{EXIT_CODES}"))]
pub struct ShowconfArgs {
    /// The interface, or its configuration file.
    #[arg(value_name = "NAME|FILE", value_parser = interface_of, add = complete::running())]
    pub interface: InterfaceName,
}
