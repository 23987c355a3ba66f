//! The worker's side of the worker RPC contract, over real HTTP.

mod checks;
mod fences;
mod files;
mod hostile;
mod kit;
mod mtls;
mod ports;
mod replays;
mod sandboxes;
mod snapshots;
mod sockets;
mod streams;
mod tokens;
