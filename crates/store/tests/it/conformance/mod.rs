//! One suite for both stores: every case runs on a SQLite file and on a real Postgres database.

mod audit;
mod callback;
mod cancel;
mod concurrency;
pub mod dags;
mod damage;
mod dead;
mod deletion;
mod events;
mod expiry;
mod identity;
mod keys;
mod leases;
mod lifecycle;
mod limits;
mod lists;
mod opening;
mod order;
mod outbox;
mod owners;
pub mod plans;
mod retention;
mod retrying;
mod runs;
pub mod sandboxes;
mod schedules;
mod tenancy;
