//! The worker contracts, one file each.

pub mod exchange;
pub mod pull;
