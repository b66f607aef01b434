//! The commands that look at an interface or change it, and run none: wg(8)'s, `status`, `top`, `doctor`, `check`, `capture`,
//! `reload`, `save`, and those that make keys.

pub mod args;
pub mod capture;
pub mod check;
pub mod doctor;
pub mod hang_up;
pub mod keys;
pub mod output;
pub mod reload;
pub mod save;
pub mod signals;
pub mod status;
pub mod top;
pub mod wg;
