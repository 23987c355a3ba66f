//! Outputs of tasks in an object store: a local folder, or S3 and what speaks like it.
//!
//! Which names there are and what a finished output looks like is decided in `tenure_core::objects`. Here they are read,
//! written, listed and removed: every call ends within a time-out, every list is bounded, and an error says whether the
//! store or the task is to blame.

mod error;
mod folder;
mod open;
mod output;
mod results;
mod store;
mod sweep;
mod whole;

pub use error::ObjectError;
pub use open::{Credentials, LOCAL_BUCKET, Limits, Place, Settings};
pub use output::{File, Finished, Output};
pub use results::{Reach, Upload};
pub use store::{Entry, Objects};
pub use sweep::{Judge, Left, Swept};
