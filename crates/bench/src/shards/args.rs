//! The command line of `weft-bench shards`.

use std::fmt;
use std::num::NonZeroU16;

use clap::{Args, ValueEnum};
use weft_config::{MAX_THREADS, PacketThreads};

/// The arguments of `weft-bench shards`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShardsArgs {
    /// Numbers of packet threads, with commas; the first one is what the others are compared with.
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1,2,4", value_parser = packet_threads)]
    pub(crate) packet_threads: Vec<NonZeroU16>,
    /// Percent of the bytes for peers that another packet thread reads than the peer's, with commas.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "0,10,100", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) foreign: Vec<u8>,
    /// What to measure, with commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "upload,download,both")]
    pub(crate) load: Vec<Load>,
    /// How many peers send and receive.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=250))]
    pub(crate) peers: u16,
    /// How often each measurement is made, in turns; medians count.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// How long each measurement takes, in seconds, without the time for sealing what is sent.
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=30))]
    pub(crate) secs: u32,
    /// Measure the stages of the packet path, and print what follows from them for 1 to 32 packet threads.
    #[arg(long)]
    pub(crate) model: bool,
}

/// Parses a number of packet threads.
fn packet_threads(text: &str) -> Result<NonZeroU16, String> {
    match text.parse() {
        Ok(PacketThreads::Fixed(threads)) => Ok(threads),
        _ => Err(format!("write a number from 1 to {MAX_THREADS}")),
    }
}

/// A direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// From the peers.
    Upload,
    /// To the peers.
    Download,
    Both,
}

impl Load {
    pub(super) fn has_upload(self) -> bool {
        self != Self::Download
    }

    pub(super) fn has_download(self) -> bool {
        self != Self::Upload
    }
}

/// One line of the report: what is measured with how many packet threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(super) packet_threads: NonZeroU16,
    pub(super) load: Load,
    /// Percent of the downloaded bytes; `None` where no other packet thread can read them.
    pub(super) foreign: Option<u8>,
}

impl Case {
    /// Reports whether `other` is compared with this case: the same load on more packet threads.
    pub(super) fn is_base_of(&self, other: &Self) -> bool {
        let foreign = if self.packet_threads.get() == 1 { None } else { other.foreign };
        self.load == other.load && self.foreign == foreign
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = match self.load {
            Load::Upload => "upload",
            Load::Download => "download",
            Load::Both => "both",
        };
        write!(f, "{:>10}, {load}", threads_of(self.packet_threads.get()))?;
        if let Some(foreign) = self.foreign { write!(f, ", {foreign} % foreign") } else { Ok(()) }
    }
}

/// Returns a number of packet threads in words.
pub(super) fn threads_of(count: u16) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

impl ShardsArgs {
    /// Returns all cases, those to be compared next to each other.
    pub(super) fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &load in &self.load {
            for &packet_threads in &self.packet_threads {
                let mut add = |foreign| cases.push(Case { packet_threads, load, foreign });
                if load.has_download() && packet_threads.get() > 1 {
                    self.foreign.iter().for_each(|percent| add(Some(*percent)));
                } else {
                    add(None);
                }
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ShardsArgs,
    }

    fn cases(line: &str) -> Vec<String> {
        let args = Line::try_parse_from(line.split(' ')).unwrap().args;
        args.cases().iter().map(Case::to_string).collect()
    }

    #[test]
    fn foreign_shares_are_those_of_downloads_to_several_threads() {
        assert_eq!(
            cases("shards --packet-threads 1,2 --foreign 0,100 --load upload,download"),
            [
                "  1 thread, upload",
                " 2 threads, upload",
                "  1 thread, download",
                " 2 threads, download, 0 % foreign",
                " 2 threads, download, 100 % foreign",
            ]
        );
    }

    #[test]
    fn a_case_is_compared_with_the_same_load_on_the_first_number_of_threads() {
        let case = |threads, load, foreign| Case {
            packet_threads: NonZeroU16::new(threads).unwrap(),
            load,
            foreign,
        };
        let two = case(2, Load::Download, Some(10));
        assert!(case(1, Load::Download, None).is_base_of(&two));
        assert!(case(2, Load::Download, Some(10)).is_base_of(&case(4, Load::Download, Some(10))));
        assert!(!case(2, Load::Download, Some(0)).is_base_of(&two));
        assert!(!case(1, Load::Upload, None).is_base_of(&two));
    }

    #[test]
    fn wrong_numbers_are_refused() {
        for wrong in ["--packet-threads 0", "--packet-threads auto", "--foreign 101", "--secs 31"] {
            assert!(Line::try_parse_from(format!("shards {wrong}").split(' ')).is_err(), "{wrong}");
        }
    }
}
