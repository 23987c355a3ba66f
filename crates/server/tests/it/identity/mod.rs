//! Who is let in, to what and how often, over HTTP: the routes that exist, held against the rules that are written.

mod api_keys;
mod audit;
mod browsers;
mod issuers;
mod limits;
mod matrix;
mod narrowing;
mod oidc;
pub mod people;
mod provider;
mod task_keys;
mod tenants;
mod tls;
mod under_load;
mod worker_tokens;
