//! DAGs as YAML, and the conditions of their inputs.
//!
//! [`parse`] turns a text into a [`DagDefinition`](tenure_core::dag::DagDefinition) or lists every error in it, each with
//! its place. Rules that concern other DAGs take them as [`Surroundings`]. Nothing here does I/O.

pub mod filter;
mod graph;
mod problem;
mod read;
mod surroundings;
mod yaml;

pub use problem::{Code, PROBLEMS, Problem};
pub use read::{Parsed, bundle_ids, parse};
pub use surroundings::{Bundle, Bundles, Dataset, Edge, Reader, Settings, Surroundings};

/// A DAG as YAML.
pub const TEXT_BYTES: usize = 1 << 20;
