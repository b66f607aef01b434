//! The limit of this machine: the path without a cipher plus the cipher, and weft in comparison.

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::args::StagesArgs;
use super::cipher::CipherCosts;
use super::ends;
use super::null_path::NullPath;
use super::transfer::{self, Transfer};
use super::weft_path::Weft;
use crate::interrupt::Interrupt;
use crate::stats::Summary;

/// TCP payload of a full packet: the MTU less IPv4 and TCP headers with timestamps.
const PAYLOAD: usize = ends::MTU as usize - 20 - 32;
/// Cores that the limit assumes: one for each end.
const CORES: usize = 2;

/// The limit of the machine, in TCP payload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Floor {
    pub(crate) null_gbit_per_second: Summary,
    pub(crate) null_cpu_seconds_per_gbit: Summary,
    /// Cost of sealing and opening.
    pub(crate) cipher_seconds_per_gbit: f64,
    /// Cost of path and cipher.
    pub(crate) limit_cpu_seconds_per_gbit: f64,
    /// With two otherwise idle cores; with fewer if the machine has fewer.
    pub(crate) limit_gbit_per_second: f64,
    pub(crate) weft: Option<WeftReport>,
}

/// weft's figures on the same machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WeftReport {
    pub(crate) gbit_per_second: Summary,
    /// `None` if weft was measured elsewhere.
    pub(crate) cpu_seconds_per_gbit: Option<Summary>,
    /// weft's speed divided by the limit.
    pub(crate) speed_by_limit: f64,
    /// The limit's CPU time divided by weft's.
    pub(crate) limit_by_cpu: Option<f64>,
    /// weft's speed divided by that of the path without a cipher, round by round.
    pub(crate) speed_by_null: Option<Summary>,
}

impl Floor {
    /// Runs iperf3 through both paths in turn.
    pub(super) fn measure(args: &StagesArgs, cipher: &CipherCosts, interrupt: &Interrupt) -> Result<Self> {
        transfer::check()?;
        let null_ends = ends::namespaces()?;
        let _null = NullPath::start(&null_ends)?;
        transfer::wait_for_tunnel(&null_ends, interrupt).context("the path without a cipher")?;
        let weft = match args.weft_gbit {
            Some(_) => None,
            None => {
                let namespaces = ends::namespaces()?;
                let weft = Weft::start(&namespaces, args.tun_threads)?;
                transfer::wait_for_tunnel(&namespaces, interrupt).context("weft")?;
                Some((namespaces, weft))
            }
        };
        let (mut null_runs, mut weft_runs) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            null_runs.push(transfer::run(&null_ends, args.secs, interrupt)?);
            if let Some((namespaces, _weft)) = &weft {
                weft_runs.push(transfer::run(namespaces, args.secs, interrupt)?);
            }
        }
        Self::of(&null_runs, &weft_runs, args.weft_gbit, cipher.seconds_per_gbit(PAYLOAD))
            .context("nothing was measured")
    }

    fn of(null: &[Transfer], weft: &[Transfer], weft_gbit: Option<f64>, cipher: f64) -> Option<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(CORES);
        let null_cpu = Summary::of(costs(null))?;
        let limit_cpu = null_cpu.median + cipher;
        let limit = cores as f64 / limit_cpu;
        let gbit = match weft_gbit {
            Some(gbit) => Summary::of([gbit]),
            None => Summary::of(speeds(weft)),
        };
        let weft_cpu = Summary::of(costs(weft));
        let weft = gbit.map(|gbit_per_second| WeftReport {
            gbit_per_second,
            cpu_seconds_per_gbit: weft_cpu,
            speed_by_limit: gbit_per_second.median / limit,
            limit_by_cpu: weft_cpu.map(|cpu| limit_cpu / cpu.median),
            speed_by_null: Summary::of(speeds(weft).iter().zip(speeds(null)).map(|(weft, null)| weft / null)),
        });
        Some(Self {
            null_gbit_per_second: Summary::of(speeds(null))?,
            null_cpu_seconds_per_gbit: null_cpu,
            cipher_seconds_per_gbit: cipher,
            limit_cpu_seconds_per_gbit: limit_cpu,
            limit_gbit_per_second: limit,
            weft,
        })
    }
}

fn speeds(transfers: &[Transfer]) -> Vec<f64> {
    transfers.iter().map(|transfer| transfer.gbit_per_second).collect()
}

fn costs(transfers: &[Transfer]) -> Vec<f64> {
    transfers.iter().map(|transfer| transfer.cpu_seconds_per_gbit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_path_and_the_cipher() {
        let transfer =
            |gbit_per_second, cpu_seconds_per_gbit| Transfer { gbit_per_second, cpu_seconds_per_gbit };
        let floor = Floor::of(&[transfer(12.0, 0.12)], &[transfer(4.0, 0.5)], None, 0.13).unwrap();
        let cores = floor.limit_gbit_per_second * floor.limit_cpu_seconds_per_gbit;
        assert!((floor.limit_cpu_seconds_per_gbit - 0.25).abs() < 1e-9 && cores.round() <= 2.0);
        let weft = floor.weft.unwrap();
        assert!((weft.limit_by_cpu.unwrap() - 0.5).abs() < 1e-9);
        assert!((weft.speed_by_null.unwrap().median - 1.0 / 3.0).abs() < 1e-9);

        let told = Floor::of(&[transfer(12.0, 0.12)], &[], Some(4.0), 0.13).unwrap().weft.unwrap();
        assert_eq!((told.gbit_per_second.median, told.cpu_seconds_per_gbit), (4.0, None));
        assert!((told.speed_by_limit - weft.speed_by_limit).abs() < 1e-9);
    }
}
