//! The running interfaces, for a command that names none.
//!
//! One rule for all commands: the socket of a dead daemon does not count, and an interface that this user may
//! not read, such as one of root, is an error only if no other interface answers.

use std::io;

use weft_config::InterfaceName;
use weft_config::exit::{Code, Error};
use weft_host::Record;
use weft_ipc::MAY_CONNECT;
use weft_ipc::runtime_dir::runtime_dir;
use weft_report::control_socket::{self as socket, Client, ClientError};

use crate::output;

/// The answers of the running interfaces; answers or errors, or both.
#[derive(Debug)]
pub(crate) struct Running<T> {
    /// Sorted by the names of the interfaces.
    pub(crate) answers: Vec<T>,
    /// Interfaces that this user may not read, beside those that answered.
    pub(crate) forbidden: Vec<ClientError>,
    /// Why other interfaces did not answer.
    pub(crate) errors: Vec<ClientError>,
}

/// Asks all running interfaces.
///
/// # Errors
/// When none runs, or they cannot be listed.
pub(crate) fn ask_all<T>(ask: impl Fn(Client) -> Result<T, ClientError>) -> Result<Running<T>, Error> {
    let names = socket::running().map_err(|error| cannot_look(&error))?;
    sort(names.iter().map(|name| Client::connect(name).and_then(&ask))).ok_or_else(none_is_running)
}

/// Returns the names of the running interfaces, as far as they are known.
pub(crate) fn names() -> Vec<InterfaceName> {
    socket::running().unwrap_or_default()
}

/// Connects to the first running interface that lets this user.
///
/// # Errors
/// When none does, or they cannot be listed.
pub(crate) fn connect_to_first() -> Result<Client, Error> {
    let names = socket::running().map_err(|error| cannot_look(&error))?;
    first(names.iter().map(Client::connect)).unwrap_or_else(|| Err(none_is_running()))
}

/// Warns that a daemon has ended without taking its interface down, as after a crash: of one interface, or of
/// all.
pub(crate) fn warn_of_leftovers(name: Option<&InterfaceName>) {
    for name in name.map_or_else(known, |name| vec![name.clone()]) {
        if let Some(left) = left_behind(&name) {
            output::warning(&format!("{left}: {}", take_back(&name)));
        }
    }
}

/// Returns the interfaces that have a directory, with the socket of a daemon, running or not, or with the
/// record of one that has ended and could not take everything back, and those that have a kill switch.
fn known() -> Vec<InterfaceName> {
    let entries = std::fs::read_dir(runtime_dir()).into_iter().flatten().flatten();
    let mut names: Vec<InterfaceName> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    names.extend(weft_host::firewall::interfaces());
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}

/// Returns a sentence if the daemon of an interface has ended without taking it down.
pub(crate) fn left_behind(name: &InterfaceName) -> Option<String> {
    let left = Record::read(&runtime_dir(), name).ok().flatten();
    let is_left = match left {
        Some(left) => !left.steps.is_empty() && left.handed_over.is_none(),
        None => weft_host::is_left_unrecorded(&runtime_dir(), name),
    };
    (is_left && matches!(Client::connect(name), Err(ClientError::NotRunning { .. }))).then(|| {
        format!(
            "the daemon of {name} has ended, and what it had set up is still in force, such as routes, name servers or \
             a kill switch"
        )
    })
}

/// Returns what to do about what a daemon left behind.
pub(crate) fn take_back(name: &InterfaceName) -> String {
    format!("`weft down {name}` takes it back")
}

fn none_is_running() -> Error {
    let place = socket::place();
    let place = place.display();
    Error::new(
        Code::Failure,
        format!(
            "no interface is running under weft (no daemon answers in {place}); `weft up NAME` brings one up"
        ),
    )
}

/// Returns the first answer, without asking further, or the first error of a running interface; `None` if
/// none runs.
fn first<T>(mut asked: impl Iterator<Item = Result<T, ClientError>>) -> Option<Result<T, Error>> {
    let mut errors = Vec::new();
    let answer = asked.find_map(|asked| asked.map_err(|error| errors.push(Err::<T, _>(error))).ok());
    match answer {
        Some(answer) => Some(Ok(answer)),
        None => Some(Err(sort(errors.into_iter())?.errors.swap_remove(0).into())),
    }
}

/// Separates answers from errors; `None` if there are none.
fn sort<T>(asked: impl Iterator<Item = Result<T, ClientError>>) -> Option<Running<T>> {
    let mut running = Running { answers: Vec::new(), forbidden: Vec::new(), errors: Vec::new() };
    for asked in asked {
        match asked {
            Ok(answer) => running.answers.push(answer),
            Err(ClientError::NotRunning { .. }) => {}
            Err(error @ ClientError::Forbidden { .. }) => running.forbidden.push(error),
            Err(error) => running.errors.push(error),
        }
    }
    if running.answers.is_empty() {
        running.errors.append(&mut running.forbidden);
    }
    (!running.answers.is_empty() || !running.errors.is_empty()).then_some(running)
}

impl<T> Running<T> {
    /// Returns all answers; an error if an interface did not answer.
    pub(crate) fn all(mut self) -> Result<Vec<T>, Error> {
        self.errors.pop().map_or(Ok(self.answers), |error| Err(error.into()))
    }
}

fn cannot_look(error: &io::Error) -> Error {
    let permission = error.kind() == io::ErrorKind::PermissionDenied;
    let advice = if permission { format!("; run as {MAY_CONNECT}") } else { String::new() };
    Error::new(
        if permission { Code::Permission } else { Code::Failure },
        format!("{}: cannot look for running interfaces: {error}{advice}", socket::place().display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> String {
        "weft0".to_owned()
    }

    fn dead() -> Result<u8, ClientError> {
        Err(ClientError::NotRunning { name: name(), path: "control.sock".into() })
    }

    fn forbidden() -> Result<u8, ClientError> {
        Err(ClientError::Forbidden { name: name(), path: "control.sock".into() })
    }

    fn silent() -> Result<u8, ClientError> {
        Err(ClientError::Timeout { name: name(), seconds: 60, process: String::new() })
    }

    #[test]
    fn the_socket_of_a_dead_daemon_does_not_count() {
        assert!(sort([dead()].into_iter()).is_none());
        assert_eq!(sort([dead(), Ok(1)].into_iter()).unwrap().all().unwrap(), [1]);
    }

    #[test]
    fn a_forbidden_interface_is_an_error_only_if_no_other_answers() {
        let beside = sort([forbidden(), Ok(1), Ok(2)].into_iter()).unwrap();
        assert_eq!(beside.forbidden.len(), 1);
        assert_eq!(beside.all().unwrap(), [1, 2]);
        let alone = sort([forbidden(), dead()].into_iter()).unwrap();
        assert!(alone.forbidden.is_empty());
        assert_eq!(alone.all().unwrap_err().code(), Code::Permission);
    }

    #[test]
    fn the_first_one_that_answers_does_not_wait_for_those_after_it() {
        let not_asked = std::iter::once_with(|| -> Result<u8, ClientError> { unreachable!("asked") });
        let asked = [dead(), silent(), forbidden(), Ok(1)].into_iter().chain(not_asked);
        assert_eq!(first(asked).unwrap().unwrap(), 1);
        assert_eq!(first([forbidden(), dead()].into_iter()).unwrap().unwrap_err().code(), Code::Permission);
        assert!(first([dead()].into_iter()).is_none());
    }

    #[test]
    fn an_interface_that_does_not_answer_is_an_error_beside_others() {
        let running = sort([Ok(1), silent()].into_iter()).unwrap();
        assert_eq!(running.answers, [1]);
        assert!(running.all().unwrap_err().to_string().contains("weft0"));
    }
}
