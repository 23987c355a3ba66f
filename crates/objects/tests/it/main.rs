//! Outputs in a local folder, and in a bucket of moto, a server that stands in for S3.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod folder;
mod outputs;
mod s3;
mod stand;
mod sweeps;
