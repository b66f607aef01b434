//! Simulation.
fn main() {}
