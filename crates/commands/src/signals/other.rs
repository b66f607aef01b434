//! Ctrl-C.

use std::io;

pub(super) struct Signals;

impl Signals {
    #[expect(clippy::unnecessary_wraps, reason = "the other platform's can fail")]
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) -> Option<&'static str> {
        tokio::signal::ctrl_c().await.ok().map(|()| "Ctrl-C")
    }
}
