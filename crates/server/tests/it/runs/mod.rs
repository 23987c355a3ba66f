//! Runs over HTTP, executed by pull workers.

mod crash;
mod ends;
mod kit;
mod large;
mod outputs;
mod rerun;
mod submits;
mod watching;
