//! The service control manager itself.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use weft_config::InterfaceName;
use weft_config::exit::{self, Code};
use windows_service::Error;
use windows_service::service::{
    Service, ServiceAccess, ServiceAction, ServiceActionType, ServiceDependency, ServiceErrorControl,
    ServiceExitCode, ServiceFailureActions, ServiceFailureResetPeriod, ServiceInfo, ServiceSidType,
    ServiceStartType, ServiceState, ServiceType,
};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_sys::Win32::Foundation::ERROR_SERVICE_DOES_NOT_EXIST;

use super::{Phase, ServiceControl, Settings, Start};
use crate::service_manager::END_WITHIN;

/// The services that have to run before: the network's store of settings, and TCP/IP.
const DEPENDENCIES: [&str; 2] = ["Nsi", "TcpIp"];
/// When a service that failed is started again: after its first, second and every further failure.
const RESTARTS: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(300)];
/// How long a service has to run until its failures are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(24 * 60 * 60);

/// The service of an interface.
pub(in crate::service) struct Calls {
    name: String,
    interface: InterfaceName,
}

/// Fails unless this user may change services.
///
/// # Errors
/// With what to do.
pub(in crate::service) fn may_change() -> Result<(), exit::Error> {
    let all = ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE;
    let Err(error) = ServiceManager::local_computer(None::<&str>, all) else { return Ok(()) };
    let error = system(error);
    if error.kind() == io::ErrorKind::PermissionDenied {
        let advice = "only an administrator installs and removes services: run the command in a terminal that was \
                      opened with `Run as administrator`";
        return Err(exit::Error::new(Code::Permission, advice));
    }
    Err(exit::Error::new(Code::Failure, format!("cannot ask the service control manager: {error}")))
}

impl Calls {
    pub(in crate::service) fn new(name: &str, interface: &InterfaceName) -> Self {
        Self { name: name.to_owned(), interface: interface.clone() }
    }

    fn open(&self, access: ServiceAccess) -> io::Result<Service> {
        let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT);
        manager.and_then(|manager| manager.open_service(&self.name, access)).map_err(system)
    }

    /// Returns what defines the service. No dependencies means that they stay as they are.
    fn info(&self, command: &[String], start: Start, dependencies: &[&str]) -> ServiceInfo {
        let (program, arguments) = command.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
        ServiceInfo {
            name: OsString::from(&self.name),
            display_name: OsString::from(format!("weft: WireGuard interface {}", self.interface)),
            service_type: ServiceType::OWN_PROCESS,
            start_type: match start {
                Start::Auto => ServiceStartType::AutoStart,
                Start::Demand => ServiceStartType::OnDemand,
                Start::Disabled => ServiceStartType::Disabled,
            },
            error_control: ServiceErrorControl::Normal,
            executable_path: PathBuf::from(program),
            launch_arguments: arguments.iter().map(OsString::from).collect(),
            dependencies: dependencies.iter().map(|name| ServiceDependency::Service(name.into())).collect(),
            account_name: None,
            account_password: None,
        }
    }
}

impl ServiceControl for Calls {
    fn settings(&self) -> io::Result<Option<Settings>> {
        let service = match self.open(ServiceAccess::QUERY_CONFIG) {
            Err(error) if error.raw_os_error() == Some(ERROR_SERVICE_DOES_NOT_EXIST.cast_signed()) => {
                return Ok(None);
            }
            other => other?,
        };
        let config = service.query_config().map_err(system)?;
        Ok(Some(Settings {
            command: config.executable_path.to_string_lossy().into_owned(),
            start: match config.start_type {
                ServiceStartType::Disabled => Start::Disabled,
                ServiceStartType::OnDemand => Start::Demand,
                _ => Start::Auto,
            },
        }))
    }

    fn create(&self, command: &[String]) -> io::Result<()> {
        let access = ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE;
        let info = self.info(command, Start::Demand, &DEPENDENCIES);
        let manager = ServiceManager::local_computer(None::<&str>, access).map_err(system)?;
        manager.create_service(&info, ServiceAccess::QUERY_STATUS).map(drop).map_err(system)
    }

    fn change(&self, command: &[String], start: Start) -> io::Result<()> {
        let service = self.open(ServiceAccess::CHANGE_CONFIG)?;
        service.change_config(&self.info(command, start, &[])).map_err(system)
    }

    fn refine(&self) -> Vec<(&'static str, io::Error)> {
        // Restarts need the right to start.
        let service = match self.open(ServiceAccess::CHANGE_CONFIG | ServiceAccess::START) {
            Ok(service) => service,
            Err(error) => return vec![("a description, restarts and the like", error)],
        };
        let restart = |delay| ServiceAction { action_type: ServiceActionType::Restart, delay };
        let restarts = ServiceFailureActions {
            reset_period: ServiceFailureResetPeriod::After(FORGOTTEN),
            reboot_msg: None,
            command: None,
            actions: Some(RESTARTS.map(restart).into()),
        };
        let description = "Runs a WireGuard interface from its configuration (weft up).";
        [
            ("a description", service.set_description(description)),
            ("a SID of the service", service.set_config_service_sid_info(ServiceSidType::Unrestricted)),
            ("restarts after a crash", service.update_failure_actions(restarts)),
            ("restarts after a failure", service.set_failure_actions_on_non_crash_failures(true)),
            ("a time for its end at a shutdown", service.set_preshutdown_timeout(END_WITHIN)),
        ]
        .into_iter()
        .filter_map(|(what, result)| Some((what, system(result.err()?))))
        .collect()
    }

    fn delete(&self) -> io::Result<()> {
        self.open(ServiceAccess::DELETE)?.delete().map_err(system)
    }

    fn phase(&self) -> io::Result<Phase> {
        let status = self.open(ServiceAccess::QUERY_STATUS)?.query_status().map_err(system)?;
        Ok(match (status.current_state, status.process_id) {
            (ServiceState::Stopped, _) => Phase::Stopped(match status.exit_code {
                ServiceExitCode::Win32(code) | ServiceExitCode::ServiceSpecific(code) => code,
            }),
            (ServiceState::StopPending, _) => Phase::Ending,
            (ServiceState::Running, Some(pid)) => Phase::Running(pid),
            _ => Phase::Starting,
        })
    }

    fn start(&self) -> io::Result<()> {
        self.open(ServiceAccess::START)?.start::<&str>(&[]).map_err(system)
    }

    fn stop(&self) -> io::Result<()> {
        self.open(ServiceAccess::STOP)?.stop().map(drop).map_err(system)
    }
}

/// Returns the error of the system, which the library hides in its own.
fn system(error: Error) -> io::Error {
    match error {
        Error::Winapi(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
