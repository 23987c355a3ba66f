//! SQL over datasets, in a process that has no credential of the control plane.
//!
//! A request brings the SQL, the views that it may read and its limits. [`gate`] judges the SQL, `session` makes a
//! session that knows these views and nothing else, [`run`] runs it within its limits, and [`serve`] speaks to control
//! planes. It is a process of its own so that a hungry query cannot hurt leases.

mod failure;
mod files;
pub mod gate;
mod results;
pub mod run;
pub mod serve;
mod session;
mod tables;
mod values;
