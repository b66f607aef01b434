//! Asks systemd over D-Bus (org.freedesktop.systemd1(5)) whether this process is being stopped as part of a
//! restart.

use std::time::Duration;

use tokio::runtime::Builder;
use zbus::{Connection, Message, OwnedObjectPath, OwnedVariant, Variant};

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER_OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// Time limit for all queries together: nothing else delays the end of an interface for longer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The pending job of systemd for the service of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Whether the service is started again right after the stop.
    pub is_restart: bool,
    /// Number of descriptors in the service's store.
    pub kept: u32,
}

/// Returns the ID of this run of the service; the commands that run before and after the process have the
/// same ID.
pub fn invocation() -> Option<String> {
    std::env::var("INVOCATION_ID").ok().filter(|id| !id.is_empty())
}

/// Asks systemd for the job. Must not be called from within a tokio runtime.
///
/// # Errors
/// Why systemd cannot be asked.
pub fn job() -> Result<Job, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let asked = runtime.block_on(async { tokio::time::timeout(TIMEOUT, ask()).await });
    match asked {
        Ok(Ok(job)) => Ok(job),
        Ok(Err(error)) => Err(format!("cannot ask systemd over the system bus: {error}")),
        Err(_) => Err(format!("systemd did not answer on the system bus within {} s", TIMEOUT.as_secs())),
    }
}

async fn ask() -> zbus::Result<Job> {
    let connection = Connection::system().await?;
    let process = std::process::id();
    let answer = connection
        .call_method(Some(SERVICE), MANAGER_OBJECT, Some(MANAGER), "GetUnitByPID", &(process,))
        .await?;
    let unit: OwnedObjectPath = answer.body().deserialize()?;
    let kept: u32 = property(&connection, &unit, "Service", "NFileDescriptorStore").await?.try_into()?;
    let (number, job): (u32, OwnedObjectPath) =
        property(&connection, &unit, "Unit", "Job").await?.try_into()?;
    if number == 0 {
        return Ok(Job { is_restart: false, kept });
    }
    let kind: String = property(&connection, &job, "Job", "JobType").await?.try_into()?;
    Ok(Job { is_restart: kind == "restart" || kind == "try-restart", kept })
}

async fn property(
    connection: &Connection,
    object: &OwnedObjectPath,
    interface: &str,
    name: &str,
) -> zbus::Result<OwnedVariant> {
    let interface = format!("{SERVICE}.{interface}");
    let answer: Message =
        connection.call_method(Some(SERVICE), object, Some(PROPERTIES), "Get", &(interface, name)).await?;
    let body = answer.body();
    let value: Variant<'_> = body.deserialize()?;
    value.try_to_owned()
}
