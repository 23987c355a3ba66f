//! The rules of leased work.
//!
//! Everything that decides is here, and nothing here does anything: no I/O, no clock, no randomness, no async. Time and
//! fresh ids are arguments. A decision takes the state of one task and a command and says what changes, or why not.
//! Production, the model checker and the property tests run the same functions.

pub mod attempt;
pub mod batch;
pub mod command;
pub mod dag;
pub mod effect;
pub mod event;
pub mod fingerprint;
pub mod id;
pub mod json;
pub mod lease;
pub mod limits;
pub mod mutant;
pub mod objects;
pub mod outage;
pub mod queue;
pub mod retention;
pub mod retry;
pub mod run;
pub mod sandbox;
pub mod schedule;
pub mod task;
pub mod tenant;
pub mod text;
pub mod time;
pub mod why;

pub use id::{AttemptId, Fence, IdPrefix, LeaseToken, RunId, Seq, TaskId, WorkerId};
pub use time::{DurationMs, Timestamp};
