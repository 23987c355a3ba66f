//! Where outputs lie in the object store, and what a finished one looks like.
//!
//! Everything here is a decision about names and texts. `crates/objects` talks to the store.

mod layout;
mod manifest;
mod names;
mod path;
mod prefix;
mod scope;
mod template;

pub use layout::{Layout, OutputRef, Staged, StorageRef};
pub use manifest::{MANIFEST, MANIFEST_BYTES, MANIFEST_KEYS, Manifest, ManifestError, SUCCESS, is_data_file};
pub use names::{file_name, parse_file_name};
pub use path::PathProblem;
pub use prefix::{KEY_BYTES, Prefix, PrefixError, Scheme};
pub use scope::{ObjectAccess, POLICY_CHARS, RESERVED, Scope, is_key};
pub use template::{TemplateError, Values, WriteTemplate};
