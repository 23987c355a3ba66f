//! The pull contract and the user API over HTTP, on SQLite and on Postgres.

#![allow(clippy::unwrap_used, reason = "tests")]

mod auth;
mod backlog;
mod cancel;
mod claims;
mod events;
mod exchange;
mod faults;
mod fence;
mod harness;
mod health;
mod hostile;
mod late;
mod lists;
mod outage;
mod outbox;
mod reaper;
mod receipts;
mod redis;
mod redrive;
mod retries;
mod sizes;
mod smoke;
mod sqs;
mod store_gone;
mod streams;
mod submits;
mod tenants;
mod times;
mod wakeups;
mod wire;
