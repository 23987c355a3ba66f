//! Both data stores do the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod batches;
mod concurrency;
mod corpus;
mod outage;
mod stand;
mod tables;
mod values;
