//! The dispatch contract over HTTP.

mod buffers;
mod bundles;
mod claims;
mod crash;
mod credentials;
mod dialects;
mod events;
mod filters;
mod heartbeats;
mod hostile;
pub mod kit;
mod lambda;
mod outputs;
mod payloads;
mod prefixes;
mod replicas;
mod reports;
mod tokens;
mod wakeups;
mod wrappers;
