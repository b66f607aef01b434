//! How many threads drive a TUN device.

use std::fmt;
use std::str::FromStr;

/// How many threads drive a TUN device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TunThreads {
    /// A number that suits the machine.
    #[default]
    Auto,
    /// The number of queues, each with two threads; 0: the packet thread reads and writes the device itself.
    Fixed(u16),
}

/// The text is no number of TUN threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a number from 0 to 64, or `auto`")]
pub struct InvalidTunThreads;

impl FromStr for TunThreads {
    type Err = InvalidTunThreads;

    fn from_str(text: &str) -> Result<Self, InvalidTunThreads> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        text.parse().ok().filter(|&threads| threads <= 64).map(Self::Fixed).ok_or(InvalidTunThreads)
    }
}

impl fmt::Display for TunThreads {
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
    fn tun_threads_are_0_to_64_or_auto() {
        assert_eq!("auto".parse(), Ok(TunThreads::Auto));
        assert_eq!("0".parse(), Ok(TunThreads::Fixed(0)));
        assert_eq!("64".parse(), Ok(TunThreads::Fixed(64)));
        for wrong in ["65", "-1", "", "two", "70000"] {
            assert_eq!(wrong.parse::<TunThreads>(), Err(InvalidTunThreads), "{wrong}");
        }
    }
}
