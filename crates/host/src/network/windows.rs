//! Asks IP Helper and the power manager to report changes. They call on threads of the system, which only put
//! a notice into a queue.

use std::ffi::c_void;
use std::io;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{HANDLE, NO_ERROR, WIN32_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    CancelMibChangeNotify2, MIB_IPFORWARD_ROW2, MIB_IPINTERFACE_ROW, MIB_NOTIFICATION_TYPE,
    MIB_UNICASTIPADDRESS_ROW, NotifyIpInterfaceChange, NotifyRouteChange2, NotifyUnicastIpAddressChange,
};
use windows_sys::Win32::Networking::WinSock::AF_UNSPEC;
use windows_sys::Win32::System::Power::{
    DEVICE_NOTIFY_SUBSCRIBE_PARAMETERS, PowerRegisterSuspendResumeNotification,
    PowerUnregisterSuspendResumeNotification,
};
use windows_sys::Win32::System::SystemInformation::GetTickCount64;
use windows_sys::Win32::System::WindowsProgramming::QueryUnbiasedInterruptTime;
use windows_sys::Win32::UI::WindowsAndMessaging::{DEVICE_NOTIFY_CALLBACK, PBT_APMRESUMEAUTOMATIC};

use super::notices::{Machine, Notice, Notices};
use super::{NetworkChange, WatchError};
use crate::routes::Link;
use crate::routes::tables::Refusal;
use crate::routes::windows::{IpHelper, Machine as _, System};

/// The notices of this machine.
pub(super) struct Events(Notices<System>);

/// Ends the waiting, and the notifications with it.
#[derive(Debug)]
pub(super) struct Stop {
    registered: Registered,
}

impl Stop {
    pub(super) fn stop(&mut self) {
        // The thread may have ended already.
        let _ = self.registered.queue.send(Notice::Stop);
    }
}

impl Events {
    pub(super) fn open(device: Option<&Link>) -> Result<(Stop, Self), WatchError> {
        let (sender, notices) = Notices::new(System, device.map(|link| link.index));
        Ok((Stop { registered: Registered::new(sender)? }, Self(notices)))
    }

    /// Waits for changes, at most until `due`. Returns whether the watch has ended.
    pub(super) fn wait(&mut self, due: Option<Instant>, note: impl FnMut(NetworkChange)) -> io::Result<bool> {
        self.0.wait(due, note)
    }
}

impl Machine for System {
    fn device_mtu(&self, device: u32) -> Result<Option<u32>, Refusal> {
        let adapters = self.adapters()?;
        let device = adapters.iter().find(|adapter| adapter.index == device);
        Ok(device.map(|device| IpHelper { machine: System }.mtu_of(device)))
    }

    fn time_asleep(&self) -> Duration {
        const UNITS_A_MILLISECOND: u64 = 10_000;
        let mut without = 0;
        // SAFETY: the time is written to a place that lives until after the call.
        let (with, is_known) = unsafe { (GetTickCount64(), QueryUnbiasedInterruptTime(&raw mut without)) };
        // Only the first clock includes sleep.
        let asleep = with.saturating_sub(without / UNITS_A_MILLISECOND);
        if is_known == 0 { Duration::ZERO } else { Duration::from_millis(asleep) }
    }
}

/// What was registered, until it is dropped.
#[derive(Debug)]
struct Registered {
    /// Pointed to by what was registered.
    queue: Box<Sender<Notice>>,
    network: Vec<HANDLE>,
    power: *mut c_void,
}

// SAFETY: the handles are numbers to this process, and may be given back on any thread.
unsafe impl Send for Registered {}

impl Registered {
    fn new(queue: Sender<Notice>) -> Result<Self, WatchError> {
        let mut this = Self { queue: Box::new(queue), network: Vec::new(), power: std::ptr::null_mut() };
        let context: *const Sender<Notice> = &raw const *this.queue;
        let context: *const c_void = context.cast();
        // SAFETY: the context lives, where it is, until the handle is given back, and so does the handle's
        // place until after the call.
        this.notify("be notified of addresses", |handle| unsafe {
            NotifyUnicastIpAddressChange(AF_UNSPEC, Some(on_address), context, false, handle)
        })?;
        // SAFETY: as above.
        this.notify("be notified of routes", |handle| unsafe {
            NotifyRouteChange2(AF_UNSPEC, Some(on_route), context, false, handle)
        })?;
        // SAFETY: as above.
        this.notify("be notified of interfaces", |handle| unsafe {
            NotifyIpInterfaceChange(AF_UNSPEC, Some(on_interface), context, false, handle)
        })?;
        let parameters =
            DEVICE_NOTIFY_SUBSCRIBE_PARAMETERS { Callback: Some(on_power), Context: context.cast_mut() };
        // SAFETY: the parameters are read during the call; the context lives until the handle is given back.
        let code = unsafe {
            PowerRegisterSuspendResumeNotification(
                DEVICE_NOTIFY_CALLBACK,
                (&raw const parameters).cast_mut().cast(),
                &raw mut this.power,
            )
        };
        refused("be notified of sleep", code)?;
        Ok(this)
    }

    fn notify(
        &mut self,
        what: &'static str,
        register: impl FnOnce(*mut HANDLE) -> WIN32_ERROR,
    ) -> Result<(), WatchError> {
        let mut handle = std::ptr::null_mut();
        refused(what, register(&raw mut handle))?;
        self.network.push(handle);
        Ok(())
    }
}

impl Drop for Registered {
    /// Waits for callbacks that run: afterwards nothing uses the queue.
    fn drop(&mut self) {
        for handle in &self.network {
            // SAFETY: the handle is of a registration that is given back once.
            unsafe { CancelMibChangeNotify2(*handle) };
        }
        if !self.power.is_null() {
            // SAFETY: as above.
            unsafe { PowerUnregisterSuspendResumeNotification(self.power as isize) };
        }
    }
}

fn refused(what: &'static str, code: WIN32_ERROR) -> Result<(), WatchError> {
    if code == NO_ERROR {
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(code.cast_signed());
    Err(WatchError::Refused { what, source })
}

/// Puts a notice into the queue.
///
/// # Safety
/// `context` is what was registered.
unsafe fn put(context: *const c_void, notice: Notice) {
    // SAFETY: the queue lives until the registration is given back, which waits for this call.
    let queue = unsafe { &*context.cast::<Sender<Notice>>() };
    // The thread may have ended already.
    let _ = queue.send(notice);
}

unsafe extern "system" fn on_address(
    context: *const c_void,
    row: *const MIB_UNICASTIPADDRESS_ROW,
    _: MIB_NOTIFICATION_TYPE,
) {
    // SAFETY: the row is valid during the call, or null.
    let index = unsafe { row.as_ref() }.map(|row| row.InterfaceIndex);
    // SAFETY: the context is that of the registration.
    unsafe { put(context, index.map_or(Notice::Unknown, Notice::Address)) }
}

unsafe extern "system" fn on_route(
    context: *const c_void,
    row: *const MIB_IPFORWARD_ROW2,
    _: MIB_NOTIFICATION_TYPE,
) {
    // SAFETY: the row is valid during the call, or null.
    let index = unsafe { row.as_ref() }.map(|row| row.InterfaceIndex);
    // SAFETY: the context is that of the registration.
    unsafe { put(context, index.map_or(Notice::Unknown, Notice::Route)) }
}

unsafe extern "system" fn on_interface(
    context: *const c_void,
    row: *const MIB_IPINTERFACE_ROW,
    _: MIB_NOTIFICATION_TYPE,
) {
    // SAFETY: the row is valid during the call, or null.
    let index = unsafe { row.as_ref() }.map(|row| row.InterfaceIndex);
    // SAFETY: the context is that of the registration.
    unsafe { put(context, index.map_or(Notice::Unknown, Notice::Interface)) }
}

unsafe extern "system" fn on_power(context: *const c_void, kind: u32, _: *const c_void) -> u32 {
    if kind == PBT_APMRESUMEAUTOMATIC {
        // SAFETY: the context is that of the registration.
        unsafe { put(context, Notice::Resumed) }
    }
    NO_ERROR
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use windows_sys::Win32::UI::WindowsAndMessaging::PBT_APMSUSPEND;

    use super::*;
    use crate::network::Watch;

    #[test]
    fn callbacks_put_a_notice_with_the_interface_into_the_queue() {
        let (sender, received) = channel();
        let context: *const c_void = (&raw const sender).cast();
        let route = MIB_IPFORWARD_ROW2 { InterfaceIndex: 7, ..MIB_IPFORWARD_ROW2::default() };
        let address = MIB_UNICASTIPADDRESS_ROW { InterfaceIndex: 8, ..MIB_UNICASTIPADDRESS_ROW::default() };
        let interface = MIB_IPINTERFACE_ROW { InterfaceIndex: 9, ..MIB_IPINTERFACE_ROW::default() };
        // SAFETY: the rows and the queue live until after the calls.
        unsafe {
            on_route(context, &raw const route, 0);
            on_address(context, &raw const address, 0);
            on_interface(context, &raw const interface, 0);
            on_route(context, std::ptr::null(), 0);
            on_power(context, PBT_APMSUSPEND, std::ptr::null());
            on_power(context, PBT_APMRESUMEAUTOMATIC, std::ptr::null());
        }
        let notices: Vec<Notice> = received.try_iter().collect();
        let expected =
            [Notice::Route(7), Notice::Address(8), Notice::Interface(9), Notice::Unknown, Notice::Resumed];
        assert_eq!(notices, expected);
    }

    #[test]
    fn a_watch_starts_and_stops() {
        let watch = Watch::start(None, |_| {}).unwrap();
        assert_eq!(watch.stop.registered.network.len(), 3);
        drop(watch);
    }

    #[test]
    fn a_machine_that_is_awake_does_not_sleep() {
        let before = System.time_asleep();
        assert!(System.time_asleep().saturating_sub(before) < Duration::from_secs(1));
    }

    #[test]
    fn a_device_that_is_not_there_has_no_mtu() {
        assert_eq!(System.device_mtu(u32::MAX).unwrap(), None);
    }
}
