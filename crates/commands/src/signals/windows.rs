//! Ctrl-C.

use std::io;

use super::Signal;

pub(super) struct Signals;

impl Signals {
    #[expect(clippy::unnecessary_wraps, reason = "the other platform's can fail")]
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) -> Option<Signal> {
        tokio::signal::ctrl_c().await.ok().map(|()| Signal::Interrupt)
    }
}
