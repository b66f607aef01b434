//! The arguments of `weft peer`.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand, ValueHint};
use weft_config::{Endpoint, Expiry, values};
use weft_tunnel::{PublicKey, Rate};

use super::EXIT_CODES;
use crate::complete;

/// The arguments of `weft peer`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft peer add phone --qr             its file as a QR code
  sudo weft peer add laptop --out laptop.conf
  sudo weft peer add guest --expires 30d    later `weft peer extend guest 30d`
  sudo weft peer list
  sudo weft peer disable phone              until `weft peer enable phone`
  sudo weft peer remove phone

The peers are those of the interface's file. Its comments stay, and a running
interface takes the change over at once. The file says what new peers are told,
in [Interface]:
  # weft: Endpoint = vpn.example.com:51820  where they reach this machine
  # weft: PeerDNS = 10.9.0.1                name servers; else they keep theirs
  # weft: PeerAllowedIPs = 10.9.0.0/24      what they send here; else everything

{EXIT_CODES}"))]
pub struct PeerArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PeerCommand,
}

/// What to do with peers.
#[derive(Clone, Debug, Subcommand)]
pub enum PeerCommand {
    /// Add a peer with the next free addresses, and print its file once: the private key is stored nowhere.
    Add(PeerAddArgs),
    /// List the peers of the file, disabled ones too.
    List(PeerListArgs),
    /// Print the lines that the file has about a peer, without its preshared key.
    Show(PeerNameArgs),
    /// Give a peer another name.
    Rename(PeerRenameArgs),
    /// Give a peer another time at which it ends, also one that has ended.
    Extend(PeerExtendArgs),
    /// Turn a peer away, and keep it in the file, as comments.
    Disable(PeerNameArgs),
    /// Let a disabled peer in again.
    Enable(PeerNameArgs),
    /// Take a peer out of the file: its addresses are free again.
    Remove(PeerNameArgs),
}

/// The interface that has the peers.
#[derive(Clone, Debug, Args)]
pub struct GatewayArgs {
    /// The interface that has the peers, or its configuration file. Without it the only one that runs, else
    /// the only file in /etc/wireguard; files without a ListenPort count if there are no others.
    #[arg(long = "to", visible_alias = "interface", value_name = "NAME|FILE", add = complete::configured())]
    pub target: Option<String>,
}

/// The arguments of `weft peer add`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft peer add laptop > laptop.conf
  sudo weft peer add phone --qr --to wg0
  sudo weft peer add server --public-key xTIB…8Dg=

{EXIT_CODES}"))]
pub struct PeerAddArgs {
    /// The peer's name: the comment `# friendly_name = NAME`, which reports show.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The interface.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Write the peer's file here, for its owner alone, in place of standard output (`-`).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    /// Print the peer's file as a QR code, for the app of a phone.
    #[arg(long)]
    pub qr: bool,
    /// The public key of the peer, which keeps its private key to itself; without it a key is made.
    #[arg(long, value_name = "KEY", value_parser = public_key, conflicts_with = "qr")]
    pub public_key: Option<PublicKey>,
    /// Where the peer reaches this machine, in place of `# weft: Endpoint` of the file.
    #[arg(long, value_name = "HOST:PORT", value_parser = endpoint)]
    pub endpoint: Option<Endpoint>,
    /// When the peer ends: a time from now, such as 30d, or a date in UTC (2030-12-31).
    #[arg(long, value_name = "WHEN", value_parser = expires, allow_hyphen_values = true)]
    pub expires: Option<Expires>,
    /// The highest rate in each direction, such as 50Mbit.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<Rate>,
}

/// The arguments of `weft peer list`.
#[derive(Clone, Debug, Args)]
pub struct PeerListArgs {
    /// The interface.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Print JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The arguments of a command for one peer.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct PeerNameArgs {
    /// The peer's name, its public key, or the beginning of that.
    #[arg(value_name = "PEER", add = complete::peer())]
    pub peer: String,
    /// The interface.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// The arguments of `weft peer rename`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct PeerRenameArgs {
    /// The peer's name, its public key, or the beginning of that.
    #[arg(value_name = "PEER", add = complete::peer())]
    pub peer: String,
    /// The new name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The interface.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// The arguments of `weft peer extend`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct PeerExtendArgs {
    /// The peer's name, its public key, or the beginning of that.
    #[arg(value_name = "PEER", add = complete::peer())]
    pub peer: String,
    /// When the peer ends: a time from now (12h, 30d, 2w), a day, to its end, or a time in UTC (2030-12-31,
    /// 2030-12-31T18:00:00Z), or `never`.
    #[arg(value_name = "WHEN", value_parser = expires, allow_hyphen_values = true)]
    pub expires: Expires,
    /// The interface.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// When a peer ends; `None`: never.
#[derive(Clone, Copy, Debug)]
pub struct Expires(pub Option<Expiry>);

fn expires(text: &str) -> Result<Expires, String> {
    if text.eq_ignore_ascii_case("never") {
        return Ok(Expires(None));
    }
    Expiry::of_command(text, SystemTime::now()).map(|expiry| Expires(Some(expiry)))
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    values::public_key(text).map_err(|problem| problem.to_string())
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    values::endpoint(text).map_err(|problem| problem.to_string())
}

fn rate(text: &str) -> Result<Rate, String> {
    values::parse_rate(text).ok_or_else(|| {
        "write a rate like 500kbit, 50Mbit or 1Gbit, at least 1kbit; without --rate there is no limit"
            .to_owned()
    })
}
