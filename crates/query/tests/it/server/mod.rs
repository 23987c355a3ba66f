//! Queries through a server, run by a real query process.

mod answers;
mod exports;
mod hostile;
mod kit;
mod process;
mod tasks;
mod tenants;
