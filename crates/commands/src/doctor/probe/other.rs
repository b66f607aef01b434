//! Platforms on which weft does not run yet. The caller has made the checks that are independent of the
//! platform.

use super::super::machine::MachineState;
use super::super::target::DoctorTarget;

pub(super) fn look(_facts: &mut MachineState, _wish: &DoctorTarget) {}
