//! Calls IP Helper (netioapi.h).

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use windows_sys::Win32::Foundation::{
    ERROR_FILE_NOT_FOUND, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR, WIN32_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceIndexToLuid, CreateIpForwardEntry2, CreateUnicastIpAddressEntry, DeleteIpForwardEntry2,
    DeleteUnicastIpAddressEntry, FreeMibTable, GetIfTable2, GetIpForwardTable2, GetIpInterfaceEntry,
    GetUnicastIpAddressTable, IF_TYPE_SOFTWARE_LOOPBACK, IP_ADDRESS_PREFIX, InitializeIpForwardEntry,
    InitializeUnicastIpAddressEntry, MIB_IF_ROW2, MIB_IF_TABLE2, MIB_IPFORWARD_ROW2, MIB_IPFORWARD_TABLE2,
    MIB_IPINTERFACE_ROW, MIB_UNICASTIPADDRESS_ROW, MIB_UNICASTIPADDRESS_TABLE, SetIpInterfaceEntry,
};
use windows_sys::Win32::NetworkManagement::Ndis::{IfOperStatusUp, NET_LUID_LH};
use windows_sys::Win32::Networking::WinSock::{
    ADDRESS_FAMILY, AF_INET, AF_INET6, AF_UNSPEC, IpDadStatePreferred, MIB_IPPROTO_NETMGMT,
    RouterDiscoveryDisabled, RouterDiscoveryUnchanged, SOCKADDR_INET,
};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};

use super::{Adapter, IpHelper, Machine, Row, Settings};
use crate::routes::tables::{Configurator, Refusal};
use crate::routes::{Family, RouteError};

/// How long the system may take to bind a protocol to a new adapter.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is asked meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// This machine.
#[derive(Debug)]
pub struct System;

impl Configurator<IpHelper<System>> {
    /// Returns the network configuration of this machine.
    #[allow(clippy::unnecessary_wraps, reason = "it is opened on other systems")]
    pub fn open() -> Result<Self, RouteError> {
        Ok(Self::new(IpHelper { machine: System }))
    }
}

impl Machine for System {
    fn luid(&self, index: u32) -> Result<u64, Refusal> {
        let mut luid = NET_LUID_LH::default();
        // SAFETY: the LUID is written to a place that lives until after the call.
        let code = unsafe { ConvertInterfaceIndexToLuid(index, &raw mut luid) };
        if code == NO_ERROR { Ok(luid_value(luid)) } else { Err(Refusal::Gone) }
    }

    fn adapters(&self) -> Result<Vec<Adapter>, Refusal> {
        let rows: Vec<MIB_IF_ROW2> = read(
            c"GetIfTable2",
            // SAFETY: the table is written to a place that lives until after the call.
            |table| unsafe { GetIfTable2(table) },
            // SAFETY: `read` passes a table that the system has written.
            |table: *const MIB_IF_TABLE2| unsafe {
                ((*table).NumEntries, (&raw const (*table).Table).cast())
            },
        )?;
        let adapter = |row: &MIB_IF_ROW2| Adapter {
            luid: luid_value(row.InterfaceLuid),
            index: row.InterfaceIndex,
            name: text(&row.Alias),
            mtu: row.Mtu,
            is_up: row.OperStatus == IfOperStatusUp,
            is_loopback: row.Type == IF_TYPE_SOFTWARE_LOOPBACK,
        };
        Ok(rows.iter().map(adapter).collect())
    }

    fn settings(&self, luid: u64, family: Family) -> Result<Settings, Refusal> {
        let row = interface_row(luid, family)?;
        Ok(Settings {
            mtu: row.NlMtu,
            metric: row.Metric,
            is_metric_automatic: row.UseAutomaticMetric,
            dad_transmits: row.DadTransmits,
            asks_routers: row.RouterDiscoveryBehavior != RouterDiscoveryDisabled,
        })
    }

    fn settings_of_new(&self, luid: u64, family: Family) -> Result<Settings, Refusal> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.settings(luid, family) {
                Err(Refusal::Gone) if Instant::now() < end => std::thread::sleep(PAUSE),
                settings => return settings,
            }
        }
    }

    fn set(&self, luid: u64, family: Family, settings: &Settings) -> Result<(), Refusal> {
        let mut row = interface_row(luid, family)?;
        row.NlMtu = settings.mtu;
        row.Metric = settings.metric;
        row.UseAutomaticMetric = settings.is_metric_automatic;
        row.DadTransmits = settings.dad_transmits;
        row.RouterDiscoveryBehavior =
            if settings.asks_routers { RouterDiscoveryUnchanged } else { RouterDiscoveryDisabled };
        row.ManagedAddressConfigurationSupported &= settings.asks_routers;
        row.OtherStatefulConfigurationSupported &= settings.asks_routers;
        if family == Family::V4 {
            // The call refuses what the system has filled in here.
            row.SitePrefixLength = 0;
        }
        // SAFETY: the row lives until after the call.
        call(c"SetIpInterfaceEntry", || unsafe { SetIpInterfaceEntry(&raw mut row) })
    }

    fn routes(&self) -> Result<Vec<Row>, Refusal> {
        let rows: Vec<MIB_IPFORWARD_ROW2> = read(
            c"GetIpForwardTable2",
            // SAFETY: the table is written to a place that lives until after the call.
            |table| unsafe { GetIpForwardTable2(AF_UNSPEC, table) },
            // SAFETY: `read` passes a table that the system has written.
            |table: *const MIB_IPFORWARD_TABLE2| unsafe {
                ((*table).NumEntries, (&raw const (*table).Table).cast())
            },
        )?;
        let row = |row: &MIB_IPFORWARD_ROW2| {
            let IP_ADDRESS_PREFIX { Prefix, PrefixLength } = &row.DestinationPrefix;
            Some(Row {
                luid: luid_value(row.InterfaceLuid),
                prefix: IpNet::new(address(Prefix)?, *PrefixLength).ok()?.trunc(),
                next_hop: address(&row.NextHop)?,
                metric: row.Metric,
            })
        };
        Ok(rows.iter().filter_map(row).collect())
    }

    fn create_route(&self, row: &Row) -> Result<(), Refusal> {
        call(c"CreateIpForwardEntry2", || {
            let row = forward_row(row);
            // SAFETY: the row lives until after the call.
            unsafe { CreateIpForwardEntry2(&raw const row) }
        })
    }

    fn delete_route(&self, row: &Row) -> Result<(), Refusal> {
        call(c"DeleteIpForwardEntry2", || {
            let row = forward_row(row);
            // SAFETY: the row lives until after the call.
            unsafe { DeleteIpForwardEntry2(&raw const row) }
        })
    }

    fn addresses(&self) -> Result<Vec<(u64, IpNet)>, Refusal> {
        let rows: Vec<MIB_UNICASTIPADDRESS_ROW> = read(
            c"GetUnicastIpAddressTable",
            // SAFETY: the table is written to a place that lives until after the call.
            |table| unsafe { GetUnicastIpAddressTable(AF_UNSPEC, table) },
            // SAFETY: `read` passes a table that the system has written.
            |table: *const MIB_UNICASTIPADDRESS_TABLE| unsafe {
                ((*table).NumEntries, (&raw const (*table).Table).cast())
            },
        )?;
        let found = |row: &MIB_UNICASTIPADDRESS_ROW| {
            let net = IpNet::new(address(&row.Address)?, row.OnLinkPrefixLength).ok()?;
            Some((luid_value(row.InterfaceLuid), net))
        };
        Ok(rows.iter().filter_map(found).collect())
    }

    fn create_address(&self, luid: u64, address: IpNet) -> Result<(), Refusal> {
        call(c"CreateUnicastIpAddressEntry", || {
            let mut row = unicast_row(luid, address.addr());
            row.OnLinkPrefixLength = address.prefix_len();
            row.DadState = IpDadStatePreferred;
            // SAFETY: the row lives until after the call.
            unsafe { CreateUnicastIpAddressEntry(&raw const row) }
        })
    }

    fn delete_address(&self, luid: u64, address: IpAddr) -> Result<(), Refusal> {
        call(c"DeleteUnicastIpAddressEntry", || {
            let row = unicast_row(luid, address);
            // SAFETY: the row lives until after the call.
            unsafe { DeleteUnicastIpAddressEntry(&raw const row) }
        })
    }
}

/// Returns what the number of an error means.
fn check(code: WIN32_ERROR) -> Result<(), Refusal> {
    match code {
        NO_ERROR => Ok(()),
        ERROR_OBJECT_ALREADY_EXISTS => Err(Refusal::Exists),
        ERROR_NOT_FOUND | ERROR_FILE_NOT_FOUND => Err(Refusal::Gone),
        code => Err(Refusal::Failed(io::Error::from_raw_os_error(code.cast_signed()))),
    }
}

/// Makes a call, unless the library does not have it: without the check, Wine ends the process.
fn call(name: &CStr, call: impl FnOnce() -> WIN32_ERROR) -> Result<(), Refusal> {
    // SAFETY: both texts end with a zero; the library is loaded with this program.
    let is_there = unsafe {
        let library = GetModuleHandleA(c"iphlpapi.dll".as_ptr().cast());
        GetProcAddress(library, name.as_ptr().cast()).is_some()
    };
    if is_there {
        return check(call());
    }
    let text = format!("iphlpapi.dll has no {}", name.to_string_lossy());
    Err(Refusal::Failed(io::Error::new(io::ErrorKind::Unsupported, text)))
}

/// Reads a table. `get` has the system write it; `rows` returns the number of its rows, and the first.
fn read<T, R: Copy>(
    name: &CStr,
    get: impl FnOnce(*mut *mut T) -> WIN32_ERROR,
    rows: impl FnOnce(*const T) -> (u32, *const R),
) -> Result<Vec<R>, Refusal> {
    let mut table = ptr::null_mut();
    match call(name, || get(&raw mut table)) {
        // A table of one family may be told to be missing when it is empty.
        Err(Refusal::Gone) => return Ok(Vec::new()),
        result => result?,
    }
    if table.is_null() {
        return Ok(Vec::new());
    }
    let (count, first) = rows(table);
    // SAFETY: the table has this number of rows, and lives until it is freed below.
    let found = unsafe { std::slice::from_raw_parts(first, count as usize) }.to_vec();
    // SAFETY: the system has allocated the table, and nothing points to it any more.
    unsafe { FreeMibTable(table.cast()) };
    Ok(found)
}

fn interface_row(luid: u64, family: Family) -> Result<MIB_IPINTERFACE_ROW, Refusal> {
    let mut row = MIB_IPINTERFACE_ROW {
        Family: number(family),
        InterfaceLuid: NET_LUID_LH { Value: luid },
        ..MIB_IPINTERFACE_ROW::default()
    };
    // SAFETY: the row lives until after the call.
    call(c"GetIpInterfaceEntry", || unsafe { GetIpInterfaceEntry(&raw mut row) })?;
    Ok(row)
}

fn forward_row(route: &Row) -> MIB_IPFORWARD_ROW2 {
    let mut row = MIB_IPFORWARD_ROW2::default();
    // SAFETY: the row lives until after the call.
    unsafe { InitializeIpForwardEntry(&raw mut row) };
    row.InterfaceLuid = NET_LUID_LH { Value: route.luid };
    row.DestinationPrefix =
        IP_ADDRESS_PREFIX { Prefix: sockaddr(route.prefix.addr()), PrefixLength: route.prefix.prefix_len() };
    row.NextHop = sockaddr(route.next_hop);
    row.Metric = route.metric;
    row.Protocol = MIB_IPPROTO_NETMGMT;
    row
}

fn unicast_row(luid: u64, address: IpAddr) -> MIB_UNICASTIPADDRESS_ROW {
    let mut row = MIB_UNICASTIPADDRESS_ROW::default();
    // SAFETY: the row lives until after the call.
    unsafe { InitializeUnicastIpAddressEntry(&raw mut row) };
    row.InterfaceLuid = NET_LUID_LH { Value: luid };
    row.Address = sockaddr(address);
    row
}

fn number(family: Family) -> ADDRESS_FAMILY {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

fn luid_value(luid: NET_LUID_LH) -> u64 {
    // SAFETY: every value of the other field is a number too.
    unsafe { luid.Value }
}

/// Returns a text that ends with a zero.
fn text(characters: &[u16]) -> String {
    let end = characters.iter().position(|character| *character == 0).unwrap_or(characters.len());
    String::from_utf16_lossy(&characters[..end])
}

fn sockaddr(address: IpAddr) -> SOCKADDR_INET {
    let mut sockaddr = SOCKADDR_INET::default();
    match address {
        IpAddr::V4(address) => {
            sockaddr.Ipv4.sin_family = AF_INET;
            sockaddr.Ipv4.sin_addr.S_un.S_addr = u32::from_ne_bytes(address.octets());
        }
        IpAddr::V6(address) => {
            sockaddr.Ipv6.sin6_family = AF_INET6;
            sockaddr.Ipv6.sin6_addr.u.Byte = address.octets();
        }
    }
    sockaddr
}

fn address(sockaddr: &SOCKADDR_INET) -> Option<IpAddr> {
    // SAFETY: the family, which each of the fields begins with, tells which of them is in use.
    unsafe {
        match sockaddr.si_family {
            AF_INET => Some(Ipv4Addr::from(sockaddr.Ipv4.sin_addr.S_un.S_addr.to_ne_bytes()).into()),
            AF_INET6 => Some(Ipv6Addr::from(sockaddr.Ipv6.sin6_addr.u.Byte).into()),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "system_tests.rs"]
mod tests;
