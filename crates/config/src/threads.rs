//! How many threads an interface has of a kind.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

/// Maximum number of threads of a kind.
pub const MAX_THREADS: u16 = 64;

/// How many threads of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads<N> {
    /// A number that suits the machine.
    Auto,
    /// This number, up to 64.
    Fixed(N),
}

/// How many packet threads share the peers of an interface: at least one.
pub type PacketThreads = Threads<NonZeroU16>;

/// How many queues of a TUN have two threads each; 0: the packet threads read and write the device
/// themselves.
pub type TunThreads = Threads<u16>;

impl Default for PacketThreads {
    fn default() -> Self {
        Self::Fixed(NonZeroU16::MIN)
    }
}

#[expect(clippy::derivable_impls, reason = "the default of packet threads is another one")]
impl Default for TunThreads {
    fn default() -> Self {
        Self::Auto
    }
}

/// The text is no number of threads of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a number from {least} to {MAX_THREADS}, or `auto`")]
pub struct InvalidThreads {
    least: u16,
}

impl<N: FromStr + Copy + Into<u16>> FromStr for Threads<N> {
    type Err = InvalidThreads;

    fn from_str(text: &str) -> Result<Self, InvalidThreads> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let threads = text.parse().ok().filter(|threads: &N| (*threads).into() <= MAX_THREADS);
        threads.map(Self::Fixed).ok_or(InvalidThreads { least: u16::from("0".parse::<N>().is_err()) })
    }
}

impl<N: fmt::Display> fmt::Display for Threads<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(threads) => threads.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_threads_are_1_to_64_or_auto() {
        assert_eq!("auto".parse(), Ok(PacketThreads::Auto));
        assert_eq!("1".parse(), Ok(PacketThreads::default()));
        assert_eq!("64".parse(), Ok(PacketThreads::Fixed(NonZeroU16::new(64).unwrap())));
        for wrong in ["0", "65", "-1", "", "two", "70000"] {
            let error = wrong.parse::<PacketThreads>().unwrap_err();
            assert_eq!(error.to_string(), "write a number from 1 to 64, or `auto`", "{wrong}");
        }
    }

    #[test]
    fn tun_threads_are_0_to_64_or_auto() {
        assert_eq!("auto".parse(), Ok(TunThreads::Auto));
        assert_eq!("0".parse(), Ok(TunThreads::Fixed(0)));
        assert_eq!("64".parse(), Ok(TunThreads::Fixed(64)));
        for wrong in ["65", "-1", "", "two", "70000"] {
            let error = wrong.parse::<TunThreads>().unwrap_err();
            assert_eq!(error.to_string(), "write a number from 0 to 64, or `auto`", "{wrong}");
        }
    }
}
