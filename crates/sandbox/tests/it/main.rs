//! What sandboxes promise, tried on real ones.

mod conformance;
mod kit;
mod namespace;
