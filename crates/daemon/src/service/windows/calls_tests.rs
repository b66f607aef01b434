//! The steps of an installation with the service control manager of this machine. The service runs `weft
//! run`, which needs no set-up of the host.

use std::path::Path;

use super::*;
use crate::service::lifecycle::{Daemons, Installed, Manager as _, Service as Installation};
use crate::service::windows::Windows;
use crate::service_manager::logs;

struct Nothing;

impl Daemons for Nothing {
    fn running(&self, _: &InterfaceName) -> Result<Option<u32>, exit::Error> {
        Ok(None)
    }

    fn take_down(&self, _: &InterfaceName) -> Result<(), exit::Error> {
        Ok(())
    }
}

#[test]
#[ignore = "needs a service control manager, and weft.exe with wintun.dll beside this program"]
fn a_service_is_installed_once_replaced_and_removed() {
    let interface: InterfaceName = "wg0".parse().unwrap();
    let mut windows = Windows::new(Calls::new, &logs(), &interface, || false);
    windows.command = &["run", "-f"];
    let with = |windows: &Windows<Calls>, what: &dyn Fn(&Installation<'_>)| {
        let interrupted = || false;
        let (manager, interface) = (windows, &interface);
        what(&Installation { manager, daemons: &Nothing, interface, interrupted: &interrupted });
    };
    let weft = std::env::current_exe().unwrap().with_file_name("weft.exe");
    with(&windows, &|service| {
        assert_eq!(service.install(&weft, Path::new("wg0")).unwrap(), Installed::Started);
        let first = service.report().unwrap();
        assert!(first.installed && first.enabled && first.running, "{}", first.text());
        assert_eq!(service.install(&weft, Path::new("wg0")).unwrap(), Installed::Unchanged);
        assert_eq!(service.report().unwrap().pid, first.pid);
    });
    windows.command = &["run", "-f", "--no-offload"];
    with(&windows, &|service| {
        assert_eq!(service.install(&weft, Path::new("wg0")).unwrap(), Installed::Replaced);
        assert!(service.report().unwrap().running);
    });
    // One that does not start gives way to the one before.
    windows.command = &["run", "-f", "--no-such-option"];
    with(&windows, &|service| {
        let error = service.install(&weft, Path::new("wg0")).unwrap_err();
        assert!(error.to_string().contains("weft$wg0"), "{error}");
        assert!(windows.read().unwrap().unwrap().contains("--no-offload"));
        assert!(service.report().unwrap().running);
        assert!(service.remove().unwrap());
        assert!(!service.report().unwrap().installed && !service.remove().unwrap());
    });
}
