//! A bus with a systemd on it that tells of one service.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use futures_util::StreamExt as _;
use weft_lab::{self as lab, bus};
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream, ObjectPath, Variant};

use crate::manager::{Doing, Shared};

const UNIT: &str = "/org/freedesktop/systemd1/unit/weft_40weft0_2eservice";
const JOB: &str = "/org/freedesktop/systemd1/job/42";

/// A private dbus-daemon with a systemd on it. Ends with its owner.
pub(crate) struct Bus {
    _daemon: bus::Bus,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    pub(crate) address: String,
}

impl Bus {
    /// `None`: dbus-daemon is not installed here, which was said.
    pub(crate) fn start(test: &str, directory: &Path, shared: &Arc<Shared>) -> Option<Self> {
        let address = format!("unix:path={}", directory.join("bus").display());
        let daemon = match bus::Bus::start(directory, &address) {
            Ok(daemon) => daemon,
            Err(error) => {
                lab::not_run(test, &error.to_string());
                return None;
            }
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let (to, shared) = (address.clone(), Arc::clone(shared));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let connection = zbus::connection::Builder::address(&*to).build().await.unwrap();
                let mut messages = MessageStream::from(&connection);
                connection.request_name("org.freedesktop.systemd1").await.unwrap();
                ready.send(()).unwrap();
                let serve = async {
                    while let Some(Ok(message)) = messages.next().await {
                        if message.header().message_type() == Type::MethodCall {
                            answer(&connection, &message, &shared).await;
                        }
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        Some(Self { _daemon: daemon, stop: Some(stop), thread: Some(thread), address })
    }
}

async fn answer(connection: &Connection, message: &Message, shared: &Shared) {
    let header = message.header();
    if header.member().is_some_and(|member| member == "GetUnitByPID") {
        return connection.reply(&header, &ObjectPath::try_from(UNIT).unwrap()).await.unwrap();
    }
    let body = message.body();
    let (interface, name): (&str, &str) = body.deserialize().unwrap();
    let path = header.path().unwrap().to_string();
    let doing = shared.doing();
    let none = ObjectPath::try_from("/").unwrap();
    let value = match (path.as_str(), interface.rsplit('.').next().unwrap(), name) {
        (UNIT, "Unit", "Job") if doing == Doing::Nothing => Variant::new((0_u32, none)),
        (UNIT, "Unit", "Job") => Variant::new((42_u32, ObjectPath::try_from(JOB).unwrap())),
        (UNIT, "Service", "NFileDescriptorStore") => {
            Variant::new(u32::try_from(shared.names().len()).unwrap())
        }
        (JOB, "Job", "JobType") => Variant::new(if doing == Doing::Restart { "restart" } else { "stop" }),
        other => panic!("nobody asks for {other:?}"),
    };
    connection.reply(&header, &value).await.unwrap();
}

impl Drop for Bus {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
