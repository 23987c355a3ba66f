//! Sandboxes over HTTP, on real workers with the provider `process`.

mod access;
mod commands;
mod files;
mod kit;
mod ports;
mod settings;
mod shares;
mod slice;
mod tasks;
mod watching;
mod worker_routes;
