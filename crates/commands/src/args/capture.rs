//! The arguments of `weft capture`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weft_config::InterfaceName;
use weft_report::control_socket as socket;

use crate::complete;
use crate::own_file::interface_of;

/// The arguments of `weft capture`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft capture wg0 -w wg0.pcapng
  sudo weft capture wg0 --peer office --stage inner --count 99 -w office.pcapng
  sudo weft capture wg0 --seconds 60 --snaplen 128 -w headers.pcapng
  sudo weft capture wg0 -w - | tshark -r -
  ssh gateway sudo weft capture wg0 -w - | wireshark -k -i -

Each packet has a comment with its direction and its peer; in Wireshark,
filter for one with `frame.comment contains \"office\"`. No keys are written.
A reader that is too slow costs packets in the file, never packets in the
tunnel; the last line tells how many.

{}", super::EXIT_CODES))]
pub struct CaptureArgs {
    /// The interface, or its configuration file; without it the one that runs.
    #[arg(value_name = "NAME|FILE", value_parser = interface_of, add = complete::running())]
    pub name: Option<InterfaceName>,
    /// The file to write, in the format pcapng; `-`: standard output. A file that is there is written over.
    #[arg(short, long = "write", value_name = "FILE")]
    pub write: PathBuf,
    /// Only packets of this peer: its public key, or what its configuration calls it.
    #[arg(long, value_name = "KEY|NAME", add = complete::peer())]
    pub peer: Option<String>,
    /// Only packets inside the tunnel, or only WireGuard's datagrams around them; without it both, as two
    /// interfaces.
    #[arg(long, value_enum)]
    pub stage: Option<Layer>,
    /// Bytes to keep of each packet.
    #[arg(long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(64..=65_535))]
    pub snaplen: u32,
    /// End after this number of packets.
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this number of seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub seconds: Option<u32>,
}

/// Where packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layer {
    /// Inside the tunnel: IP packets, as the device reads and writes them.
    Inner,
    /// Outside: WireGuard's datagrams.
    Outer,
}

impl From<Layer> for socket::Layer {
    fn from(layer: Layer) -> Self {
        match layer {
            Layer::Inner => Self::Inner,
            Layer::Outer => Self::Outer,
        }
    }
}
