//! Task tokens, capability tokens and tokens of OIDC users: what is taken and, mostly, what is not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod arbitrary;
mod capability;
mod forge;
mod known;
mod oidc;
mod oidc_keys;
mod task;
mod vectors;
