//! The arguments of `weft set`.

use clap::Args;
use weft_config::InterfaceName;

use super::EXIT_CODES;
use crate::complete;
use crate::own_file::interface_of;

fn words() -> Vec<String> {
    let words =
        "listen-port fwmark private-key peer remove preshared-key endpoint persistent-keepalive allowed-ips";
    words.split(' ').map(str::to_owned).collect()
}

/// The arguments of `weft set`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Settings of the interface, before the first peer:
  listen-port PORT           a UDP port; 0: one that the system chooses
  fwmark MARK                of outgoing packets, also as 0x…; 0 or off: none
  private-key FILE           the file with the key; /dev/null or empty: none

Settings of a peer, each after `peer KEY`, or `peer NAME` by # friendly_name:
  remove                     take the peer away
  preshared-key FILE         the file with the key; /dev/null or empty: none
  endpoint HOST:PORT         where to send to
  persistent-keepalive SECS  1 to 65535; 0 or off: none
  allowed-ips LIST           IP/LEN,IP/LEN… in place of those that it has;
                             +IP/LEN adds one, -IP/LEN takes one away

Examples:
  sudo weft set wg0 listen-port 51820 private-key /etc/wireguard/wg0.key
  sudo weft set wg0 peer xTIB…8Dg= endpoint vpn.example:51820
  sudo weft set wg0 peer xTIB…8Dg= allowed-ips +10.0.1.0/24
  sudo weft set wg0 peer laptop remove

{EXIT_CODES}"))]
pub struct SetArgs {
    /// The interface, or its configuration file.
    #[arg(value_name = "NAME|FILE", value_parser = interface_of, add = complete::running())]
    pub interface: InterfaceName,
    /// What to set; see below.
    #[arg(value_name = "SETTING", required = true, trailing_var_arg = true, allow_hyphen_values = true, add = complete::words_or_peer(words))]
    pub settings: Vec<String>,
}
