//! The gate, sessions over files, limits, and the process itself.

mod corpus;
mod gate;
mod limits;
mod parquet;
mod support;
