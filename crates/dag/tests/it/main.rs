//! DAGs as YAML: what is read, what is refused and where, and the inputs that fuzzing found.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod accepted;
mod corpus;
mod cycles;
mod docs;
mod example;
mod rejections;
mod rows;
mod support;
