//! Queries through a server, run by a real query process.

mod answers;
mod exports;
mod fleet;
mod hostile;
mod jobs;
mod kit;
mod limits;
mod process;
mod s3;
mod tasks;
mod tenants;
