//! A bus with a systemd on it that tells of one service.

use std::path::Path;
use std::sync::Arc;

use weft_lab::{bus, here};
use zbus::{Connection, Message, ObjectPath, Variant};

use crate::bus_service::BusService;
use crate::manager::{Doing, Shared};

const UNIT: &str = "/org/freedesktop/systemd1/unit/weft_40weft0_2eservice";
const JOB: &str = "/org/freedesktop/systemd1/job/42";

/// A private dbus-daemon with a systemd on it. Ends with its owner.
pub(crate) struct Bus {
    // It goes before its bus.
    _systemd: BusService,
    _daemon: bus::Bus,
    pub(crate) address: String,
}

impl Bus {
    /// `None`: dbus-daemon is not installed here, which was said.
    pub(crate) fn start(directory: &Path, shared: &Arc<Shared>) -> Option<Self> {
        let address = format!("unix:path={}", directory.join("bus").display());
        let daemon =
            bus::Bus::start(directory, &address).map_err(|error| here::not_run(&error.to_string())).ok()?;
        let shared = Arc::clone(shared);
        let answer = async move |connection: &Connection, message: &Message| {
            answer(connection, message, &shared).await;
        };
        let systemd = BusService::start(address.clone(), "org.freedesktop.systemd1", answer);
        Some(Self { _systemd: systemd, _daemon: daemon, address })
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
        other => panic!("{other:?} is not expected"),
    };
    connection.reply(&header, &value).await.unwrap();
}
