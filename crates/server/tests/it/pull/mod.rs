//! The pull contract over HTTP.

mod auth;
mod backlog;
mod cancel;
mod claims;
mod exchange;
mod faults;
mod fence;
mod hostile;
mod late;
mod outage;
mod outbox;
mod reaper;
mod receipts;
mod redis;
mod retries;
mod sizes;
mod smoke;
mod sqs;
mod store_gone;
mod streams;
mod times;
mod wakeups;
mod wire;
