//! The server and the client of the same system, over a pipe.

use std::io::{Read as _, Write as _};
use std::sync::Mutex;
use std::time::Instant;

use weft_config::InterfaceName;
use weft_config::device::{DeviceChange, DeviceState};
use weft_config::settings::{InterfaceSettings, InterfaceSettingsChange};
use weft_ipc::pipe::ListenError;

use super::*;
use crate::client::{self, UapiError};
use crate::{Control, ControlError};

/// An interface that keeps the port of the last change, and refuses port 7.
#[derive(Default)]
struct Fake(Mutex<u16>);

impl Control for Fake {
    fn get(&self) -> Result<DeviceState, ControlError> {
        Ok(DeviceState::from(InterfaceSettings {
            listen_port: *self.0.lock().unwrap(),
            ..Default::default()
        }))
    }

    fn set(&self, change: DeviceChange) -> Result<(), ControlError> {
        let port = change.settings.listen_port.unwrap_or_default();
        if port == 7 {
            return Err(ControlError::PortInUse("port 7 is in use".into()));
        }
        *self.0.lock().unwrap() = port;
        Ok(())
    }
}

fn name(text: &str) -> InterfaceName {
    text.parse().unwrap()
}

fn serve(name: &InterfaceName) -> Server {
    Server::start(Listener::open(name).unwrap(), Arc::new(Fake::default()), || ()).unwrap()
}

fn port(name: &InterfaceName) -> u16 {
    client::get(name).unwrap().state.settings.listen_port
}

#[test]
fn clients_read_and_change_the_interface() {
    let name = name("pipe0");
    let server = serve(&name);
    let change =
        |port| DeviceChange::from(InterfaceSettingsChange { listen_port: Some(port), ..Default::default() });
    client::set(&name, &change(4567)).unwrap();
    assert_eq!(port(&name), 4567);
    let refused = client::set(&name, &change(7)).unwrap_err().to_string();
    assert!(refused.contains("address already in use (another program has that UDP port"), "{refused}");
    assert_eq!(port(&name), 4567);
    server.stop();
    assert!(matches!(client::get(&name), Err(UapiError::NotRunning { .. })), "{:?}", client::get(&name));
}

#[test]
fn a_second_daemon_of_the_name_is_refused_and_disturbs_nothing() {
    let name = name("pipe1");
    let server = serve(&name);
    let refused = Listener::open(&name).unwrap_err();
    assert!(matches!(refused, SocketError::Listen(ListenError::Served { .. })), "{refused}");
    assert_eq!(port(&name), 0);
    server.stop();
    // The name is free again, once the system has ended the cancelled calls.
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = Listener::open(&name) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
}

#[test]
fn silent_clients_keep_no_other_out() {
    let name = name("pipe2");
    let server = serve(&name);
    let path = crate::client::pipe_of(name.as_str());
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(&path);
    let mut silent = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while silent.len() <= Limits::default().clients {
        assert!(Instant::now() < deadline, "{} clients were let in", silent.len());
        // While all instances have a client, the server is about to make the next one.
        match open() {
            Ok(client) => silent.push(client),
            Err(_) => std::thread::yield_now(),
        }
    }
    assert_eq!(port(&name), 0);
    server.stop();
}

#[test]
fn what_follows_the_protocol_badly_gets_the_numbers_of_wireguard_go() {
    let name = name("pipe3");
    let server = serve(&name);
    for (request, number) in [("set=1\nnonsense\n\n", -71), ("set=1\ncolour=red\n\n", -22)] {
        let path = crate::client::pipe_of(name.as_str());
        let mut pipe = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        pipe.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 64];
        let length = pipe.read(&mut answer).unwrap();
        assert_eq!(str::from_utf8(&answer[..length]).unwrap(), format!("errno={number}\n\n"), "{request:?}");
    }
    server.stop();
}
