//! Who is let in, to what and how often, over HTTP: the routes that exist, held against the rules that are written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../pull/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the pull contract")]
mod harness;

mod api_keys;
mod audit;
mod browsers;
mod issuers;
mod limits;
mod matrix;
mod narrowing;
mod oidc;
mod people;
mod provider;
mod task_keys;
mod tenants;
mod tls;
mod under_load;
mod worker_tokens;
