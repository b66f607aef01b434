//! The name of a service of Windows, and the states that it reports to the service control manager, in order.

use std::time::Duration;

use weft_config::exit::Code;

/// How long a start may be silent.
pub(super) const START_WITHIN: Duration = Duration::from_secs(30);

/// Returns the name of the service of an interface.
pub(crate) fn name_of(interface: &str) -> String {
    format!("weft${interface}")
}

/// The state of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starting,
    Running,
    Ending,
    Ended(Code),
}

/// A message to the service control manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub state: State,
    /// Larger in each message while the service starts or ends.
    pub checkpoint: u32,
    /// When the next message follows at the latest.
    pub wait: Duration,
}

/// The reported state, and the states that may follow it.
#[derive(Debug)]
pub(super) struct Progress {
    state: State,
    checkpoint: u32,
}

impl Progress {
    /// Returns the beginning, and the message of it.
    pub(super) fn begin() -> (Self, Message) {
        let mut progress = Self { state: State::Starting, checkpoint: 0 };
        let message = progress.enter(State::Starting, START_WITHIN);
        (progress, message)
    }

    /// The interface is up. Nothing to report after a reload, or when the service is ending already.
    pub(super) fn ready(&mut self) -> Option<Message> {
        (self.state == State::Starting).then(|| self.enter(State::Running, Duration::ZERO))
    }

    /// The start or the end takes this long from now on.
    pub(super) fn extend(&mut self, wait: Duration) -> Option<Message> {
        matches!(self.state, State::Starting | State::Ending).then(|| self.enter(self.state, wait))
    }

    /// The interface is being taken down.
    pub(super) fn ending(&mut self, wait: Duration) -> Option<Message> {
        matches!(self.state, State::Starting | State::Running).then(|| self.enter(State::Ending, wait))
    }

    /// The service has ended. Nothing follows.
    pub(super) fn ended(&mut self, code: Code) -> Option<Message> {
        (!matches!(self.state, State::Ended(_))).then(|| self.enter(State::Ended(code), Duration::ZERO))
    }

    fn enter(&mut self, state: State, wait: Duration) -> Message {
        self.checkpoint = match state {
            State::Starting | State::Ending if state == self.state => self.checkpoint + 1,
            State::Starting | State::Ending => 1,
            State::Running | State::Ended(_) => 0,
        };
        self.state = state;
        Message { state, checkpoint: self.checkpoint, wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn told(message: Option<Message>) -> Option<(State, u32)> {
        message.map(|message| (message.state, message.checkpoint))
    }

    #[test]
    fn a_service_starts_runs_and_ends() {
        let (mut progress, first) = Progress::begin();
        assert_eq!(first, Message { state: State::Starting, checkpoint: 1, wait: START_WITHIN });
        let longer = Message { state: State::Starting, checkpoint: 2, wait: 9 * SECOND };
        assert_eq!(progress.extend(9 * SECOND), Some(longer));
        assert_eq!(told(progress.ready()), Some((State::Running, 0)));
        assert_eq!(
            progress.ending(SECOND),
            Some(Message { state: State::Ending, checkpoint: 1, wait: SECOND })
        );
        assert_eq!(told(progress.extend(SECOND)), Some((State::Ending, 2)));
        assert_eq!(told(progress.ended(Code::Success)), Some((State::Ended(Code::Success), 0)));
    }

    #[test]
    fn a_reload_or_a_late_word_changes_no_state() {
        let (mut progress, _) = Progress::begin();
        progress.ready();
        assert_eq!(progress.ready(), None, "after a reload");
        assert_eq!(progress.extend(SECOND), None, "nothing is waited for");
        progress.ending(SECOND);
        assert_eq!((progress.ready(), progress.ending(SECOND)), (None, None));
        progress.ended(Code::Failure);
        assert_eq!((progress.ready(), progress.extend(SECOND)), (None, None));
        assert_eq!((progress.ending(SECOND), progress.ended(Code::Success)), (None, None));
    }

    #[test]
    fn a_start_that_fails_ends_at_once() {
        let (mut progress, _) = Progress::begin();
        let state = State::Ended(Code::Configuration);
        assert_eq!(told(progress.ended(Code::Configuration)), Some((state, 0)));
    }
}
