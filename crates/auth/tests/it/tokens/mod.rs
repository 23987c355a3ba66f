//! Task tokens, capability tokens and tokens of OIDC users: what is taken and, mostly, what is not.
mod arbitrary;
mod capability;
mod forge;
mod known;
mod oidc;
mod oidc_keys;
mod task;
pub mod vectors;
