//! An S3-compatible endpoint over a local folder, for holders of temporary keys.
//!
//! A key is sealed with what it may do and until when, so that every control plane that has the folder knows it without
//! looking anything up. Requests are judged by their signature and their scope before anything is opened. Files are
//! reached from the folder downwards, one segment at a time, and no link is followed. An object appears whole or not at
//! all: it is written beside the others, made durable, and then renamed.

mod body;
mod checksum;
mod chunked;
mod error;
mod folder;
mod keys;
mod limits;
mod list;
mod operation;
mod query;
mod read;
mod service;
mod sign;
mod upload;
mod write;
mod xml;

pub use body::Body;
pub use keys::{Holder, Issued, KeyError, Keys};
pub use service::{REGION, Service, is_signed};
