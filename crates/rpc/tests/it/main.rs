//! The client against real workers, and against servers that are none.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod contract_only;
mod credentials;
mod cuts;
mod hostile;
mod kit;
mod methods;
mod mtls;
mod routes;
mod streams;
mod wire;
