//! What is missing on systems other than Linux, and what cannot be known on systems other than Unix.

/// Speed tests read the TCP_INFO of Linux.
pub mod speedtest {
    use weft_config::exit::{Code, Error};

    use crate::args::SpeedtestArgs;

    /// Reports that there are no speed tests.
    pub fn run(_: &SpeedtestArgs) -> Result<(), Error> {
        let message =
            format!("`weft speedtest` needs Linux, and there are no speed tests on {}", std::env::consts::OS);
        Err(Error::new(Code::Failure, message))
    }
}

/// Returns `None`: files have no permission bits.
#[cfg(not(unix))]
pub(crate) fn open_to_all() -> Option<u32> {
    None
}

/// Always false: the null device is not told apart.
#[cfg(not(unix))]
pub(crate) fn is_lost() -> bool {
    false
}

/// Returns `None`: a write to a closed one fails.
#[cfg(not(unix))]
pub(crate) fn closed() -> Option<std::io::Error> {
    None
}

/// Has nothing to do: a write that succeeded is enough.
#[cfg(not(unix))]
pub(crate) fn settle() -> std::io::Result<()> {
    Ok(())
}

/// Always false: every failure of the resolver counts as temporary.
#[cfg(not(unix))]
pub(crate) fn is_unknown(_: &str) -> bool {
    false
}

/// Always false: the next read or write fails instead.
#[cfg(not(unix))]
pub(crate) fn is_hung_up<S>(_: S) -> bool {
    false
}
