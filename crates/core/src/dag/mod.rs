//! DAGs: jobs that are connected by the data they produce.
//!
//! `tenure-dag` reads these types from YAML; everything that decides about them is here.

pub mod buffer;
pub mod compact;
pub mod data;
pub mod definition;
pub mod deploy;
pub mod deployment;
pub mod filter;
pub mod id;
pub mod judge;
pub mod lineage;
pub mod operators;
pub mod range;
pub mod route;
pub mod schema;
pub mod task;
pub mod value;

#[cfg(test)]
mod testing;

pub use data::{DataRefusal, DataReport, Position};
pub use definition::{DagDefinition, JobDefinition, definition_digest};
pub use deployment::Deployment;
pub use filter::{Comparison, Filter, Literal};
pub use id::{DagVersionId, DatasetId, InvalidationId, JobId, PublishId, VersionId, named_bits, org_id};
pub use range::{Cursor, PartitionKey, Ranges, Span};
pub use schema::{Column, ColumnType, Schema};
