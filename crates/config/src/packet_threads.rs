//! How many packet threads an interface has.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

/// Maximum number of packet threads of an interface.
pub const MAX_PACKET_THREADS: u16 = 64;

/// How many packet threads share the peers of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketThreads {
    /// A number that suits the machine.
    Auto,
    /// This number, from 1 to 64.
    Fixed(NonZeroU16),
}

impl Default for PacketThreads {
    fn default() -> Self {
        Self::Fixed(NonZeroU16::MIN)
    }
}

/// The text is no number of packet threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a number from 1 to {MAX_PACKET_THREADS}, or `auto`")]
pub struct InvalidPacketThreads;

impl FromStr for PacketThreads {
    type Err = InvalidPacketThreads;

    fn from_str(text: &str) -> Result<Self, InvalidPacketThreads> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let threads: Option<NonZeroU16> = text.parse().ok();
        let threads = threads.filter(|threads| threads.get() <= MAX_PACKET_THREADS);
        threads.map(Self::Fixed).ok_or(InvalidPacketThreads)
    }
}

impl fmt::Display for PacketThreads {
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
            assert_eq!(wrong.parse::<PacketThreads>(), Err(InvalidPacketThreads), "{wrong}");
        }
    }
}
