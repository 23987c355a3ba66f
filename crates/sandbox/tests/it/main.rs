//! What sandboxes promise, tried on real ones.

mod attack;
mod conformance;
#[cfg(feature = "docker")]
mod docker;
mod kit;
mod namespace;
mod process;
