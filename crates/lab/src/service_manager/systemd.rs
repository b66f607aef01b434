//! A bus with a systemd on it that answers questions about one service.

use std::io;
use std::path::Path;
use std::sync::Arc;

use zbus::{Connection, Message, ObjectPath, Variant};

use super::{Doing, Shared};
use crate::bus::{self, Service};

const UNIT: &str = "/org/freedesktop/systemd1/unit/weft_40weft0_2eservice";
const JOB: &str = "/org/freedesktop/systemd1/job/42";

/// A private dbus-daemon with a systemd on it. Ends with its owner.
pub(super) struct Bus {
    // Dropped before its bus.
    _systemd: Service,
    _daemon: bus::Bus,
    pub(super) address: String,
}

impl Bus {
    pub(super) fn start(directory: &Path, shared: &Arc<Shared>) -> io::Result<Self> {
        let address = format!("unix:path={}", directory.join("bus").display());
        let daemon = bus::Bus::start(directory, &address)?;
        let shared = Arc::clone(shared);
        let answer = async move |connection: &Connection, message: &Message| {
            if let Err(error) = answer(connection, message, &shared).await {
                panic!("systemd cannot answer {message:?}: {error}");
            }
        };
        let systemd = Service::start(address.clone(), "org.freedesktop.systemd1", answer)?;
        Ok(Self { _systemd: systemd, _daemon: daemon, address })
    }
}

async fn answer(connection: &Connection, message: &Message, shared: &Shared) -> zbus::Result<()> {
    let header = message.header();
    if header.member().is_some_and(|member| member == "GetUnitByPID") {
        return connection.reply(&header, &ObjectPath::try_from(UNIT)?).await;
    }
    let body = message.body();
    let (interface, name): (&str, &str) = body.deserialize()?;
    let path = header.path().map(ToString::to_string).unwrap_or_default();
    let doing = shared.doing();
    let none = ObjectPath::try_from("/")?;
    let value = match (path.as_str(), interface.rsplit('.').next().unwrap_or_default(), name) {
        (UNIT, "Unit", "Job") if doing == Doing::Nothing => Variant::new((0_u32, none)),
        (UNIT, "Unit", "Job") => Variant::new((42_u32, ObjectPath::try_from(JOB)?)),
        (UNIT, "Service", "NFileDescriptorStore") => {
            Variant::new(u32::try_from(shared.names().len()).unwrap_or(u32::MAX))
        }
        (JOB, "Job", "JobType") => Variant::new(if doing == Doing::Restart { "restart" } else { "stop" }),
        other => panic!("{other:?} is not expected"),
    };
    connection.reply(&header, &value).await
}
