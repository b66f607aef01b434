//! A panic ends the interface, and not the program.

#![cfg(target_os = "linux")]

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use weft_ffi::{Error, Interface, Options};
use weft_lab::{Namespace, here};

#[test]
fn a_panic_of_the_event_loop_ends_the_interface_and_not_the_program() {
    if !here::tun_permitted() {
        return;
    }
    Namespace::new("panic").unwrap().run(|| {
        let tun = weft_tun::open_queues("mob0", Vec::new(), 1).unwrap();
        let is_to_panic = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_to_panic);
        let protect: weft_ffi::Protect = Box::new(move |_| {
            assert!(!seen.load(Ordering::Relaxed), "on purpose");
            true
        });
        let options = Options { protect: Some(protect), ..Options::default() };
        let interface = Interface::open("set=1\n", tun[0].as_raw_fd(), options).unwrap();
        std::thread::scope(|scope| {
            let run = scope.spawn(|| interface.run());
            weft_lab::until("the interface runs", || interface.get().is_ok());
            is_to_panic.store(true, Ordering::Relaxed);
            static QUIET: Once = Once::new();
            QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));
            let changed = interface.network_changed();
            interface.stop().unwrap();
            assert_eq!(changed, Err(Error::Stopped));
            assert_eq!(run.join().unwrap(), Err(Error::Panicked("on purpose".to_owned())));
        });
        assert_eq!(interface.run(), Err(Error::Stopped));
        assert_eq!(interface.set("set=1\n"), Err(Error::Stopped));
        // The descriptor is the program's still, and another interface can be opened over it.
        is_to_panic.store(false, Ordering::Relaxed);
        Interface::open("set=1\n", tun[0].as_raw_fd(), Options::default()).unwrap();
    });
}
