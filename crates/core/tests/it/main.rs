//! The rules of the core: in every state of small models, in random batches and in runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod batch;
mod grace;
mod model;
mod objects;
mod routing;
mod runs;
