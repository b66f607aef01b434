//! weft as a service of Windows: the service control manager starts, stops and shuts it down.
//!
//! The thread that called `host` waits for the controls of the service, and a thread of the system runs the
//! command.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::windows::io::IntoRawHandle as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_commands::{output, signals};
use weft_config::exit::Code;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::{define_windows_service, service_dispatcher};
use windows_sys::Win32::Foundation::ERROR_FAILED_SERVICE_CONTROLLER_CONNECT;
use windows_sys::Win32::System::Console::{STD_ERROR_HANDLE, STD_OUTPUT_HANDLE, SetStdHandle};

use super::progress::{Message, Progress, State, name_of};
use crate::logging;

/// How long the end of a service may take: longer than `weft down` waits.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(100);

/// Messages to a running service.
const ACCEPTED: ServiceControlAccept =
    ServiceControlAccept::STOP.union(ServiceControlAccept::SHUTDOWN).union(ServiceControlAccept::PRESHUTDOWN);

/// The main function of a service. Its argument is the log file.
type Main = Box<dyn FnOnce(Option<logging::File>) -> Code + Send>;

/// The service of this process.
struct Hosted {
    interface: String,
    main: Option<Main>,
    /// `None` until the system runs the command.
    told: Option<(ServiceStatusHandle, Progress)>,
    code: Code,
}

static HOSTED: Mutex<Option<Hosted>> = Mutex::new(None);

fn hosted() -> MutexGuard<'static, Option<Hosted>> {
    HOSTED.lock().unwrap_or_else(PoisonError::into_inner)
}

define_windows_service!(entry, serve);

/// Runs `main` as the service of an interface, until it ends. Returns its exit code.
pub fn host(interface: &str, main: impl FnOnce(Option<logging::File>) -> Code + Send + 'static) -> Code {
    *hosted() = Some(Hosted {
        interface: interface.to_owned(),
        main: Some(Box::new(main)),
        told: None,
        code: Code::Failure,
    });
    match service_dispatcher::start(name_of(interface), entry) {
        Ok(()) => hosted().as_ref().map_or(Code::Failure, |hosted| hosted.code),
        Err(error) => {
            output::error(&match error {
                windows_service::Error::Winapi(error) if is_console(&error) => {
                    "--service is for the service control manager: use `weft service install`, or `weft up`"
                        .to_owned()
                }
                windows_service::Error::Winapi(error) => format!("cannot run as a service: {error}"),
                error => format!("cannot run as a service: {error}"),
            });
            Code::Usage
        }
    }
}

fn is_console(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_FAILED_SERVICE_CONTROLLER_CONNECT.cast_signed())
}

/// Runs the command, on a thread of the system.
fn serve(_: Vec<OsString>) {
    let taken = hosted().as_mut().and_then(|hosted| Some((hosted.interface.clone(), hosted.main.take()?)));
    let Some((interface, main)) = taken else { return };
    // The library frees what a handler holds at the first request to stop, and could call it again: this one
    // holds nothing.
    let Ok(status) = service_control_handler::register(name_of(&interface), handle) else { return };
    let (progress, message) = Progress::begin();
    send(status, message);
    if let Some(hosted) = &mut *hosted() {
        hosted.told = Some((status, progress));
    }
    let code = main(open_log(&interface));
    if let Some(hosted) = &mut *hosted() {
        hosted.code = code;
        hosted.tell(|progress| progress.ended(code));
    }
}

/// Returns the directory of the services' logs. Only administrators can write there: no service follows a
/// link of another user.
pub(crate) fn logs() -> PathBuf {
    let system = std::env::var_os("SystemRoot").unwrap_or_else(|| r"C:\Windows".into());
    Path::new(&system).join(r"System32\LogFiles\weft")
}

/// Opens the log, and has standard output and standard error in it: errors, and what commands of the
/// configuration print.
fn open_log(interface: &str) -> Option<logging::File> {
    let _ = fs::create_dir_all(logs());
    let log = logging::File::open(&logs().join(format!("{interface}.log"))).ok()?;
    for place in [STD_OUTPUT_HANDLE, STD_ERROR_HANDLE] {
        if let Ok(file) = log.try_clone() {
            // SAFETY: the handle is open, and stays so until the process ends.
            unsafe { SetStdHandle(place, file.into_raw_handle()) };
        }
    }
    Some(log)
}

/// Handles a control, on the thread that called `host`. It must not wait.
fn handle(control: ServiceControl) -> ServiceControlHandlerResult {
    let mut guard = hosted();
    let Some(hosted) = &mut *guard else { return ServiceControlHandlerResult::NotImplemented };
    match control {
        ServiceControl::Stop | ServiceControl::Shutdown | ServiceControl::Preshutdown => {
            hosted.tell(|progress| progress.ending(END_WITHIN));
            signals::terminate();
        }
        ServiceControl::Interrogate => {}
        _ => return ServiceControlHandlerResult::NotImplemented,
    }
    ServiceControlHandlerResult::NoError
}

impl Hosted {
    fn tell(&mut self, message: impl FnOnce(&mut Progress) -> Option<Message>) {
        if let Some((status, progress)) = &mut self.told
            && let Some(message) = message(progress)
        {
            send(*status, message);
        }
    }
}

fn tell(message: impl FnOnce(&mut Progress) -> Option<Message>) {
    if let Some(hosted) = &mut *hosted() {
        hosted.tell(message);
    }
}

fn send(status: ServiceStatusHandle, message: Message) {
    let (current_state, controls_accepted) = match message.state {
        State::Starting => (ServiceState::StartPending, ServiceControlAccept::empty()),
        State::Running => (ServiceState::Running, ACCEPTED),
        State::Ending => (ServiceState::StopPending, ServiceControlAccept::empty()),
        State::Ended(_) => (ServiceState::Stopped, ServiceControlAccept::empty()),
    };
    let told = status.set_service_status(ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state,
        controls_accepted,
        exit_code: match message.state {
            State::Ended(code) if code != Code::Success => ServiceExitCode::ServiceSpecific(code as u32),
            _ => ServiceExitCode::NO_ERROR,
        },
        checkpoint: message.checkpoint,
        wait_hint: message.wait,
        process_id: None,
    });
    if let Err(error) = told {
        tracing::debug!(%error, "cannot report to the service control manager");
    }
}

/// Reports whether this process is a service.
pub fn is_present() -> bool {
    hosted().is_some()
}

/// Always false: services have no line about what they do.
pub(crate) fn shows_status() -> bool {
    false
}

/// Reports that the interface can be used.
pub(super) fn ready(_: &str) {
    tell(Progress::ready);
}

/// Does nothing: a service runs while it reloads.
pub fn reloading() {}

/// Reports that the interface is being taken down.
pub fn stopping() {
    tell(|progress| progress.ending(END_WITHIN));
}

/// Does nothing: there is no such line.
pub(super) fn status(_: &str) {}

/// Extends the time for the start or the end.
pub(super) fn extend_timeout(by: Duration) {
    tell(|progress| progress.extend(by));
}

/// Does nothing: there is no watchdog.
pub(super) fn alive() {}

/// Always `None`: there is no watchdog.
pub(super) fn watchdog_timeout() -> Option<Duration> {
    None
}
