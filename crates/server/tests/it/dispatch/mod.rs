//! The dispatch contract over HTTP.

mod claims;
mod dialects;
mod events;
mod heartbeats;
mod kit;
mod lambda;
mod outputs;
mod replicas;
mod reports;
mod tokens;
mod wakeups;
mod wrappers;
