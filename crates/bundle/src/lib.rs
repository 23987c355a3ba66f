//! Bundles: code of users, as a zip file with a manifest that names every file and its hash.
//!
//! [`Archive::open`] checks the structure of the zip file and the manifest, [`Archive::check`] every file. Nothing that the
//! file says about its own size is trusted: bytes are counted as they are read. [`pack`] makes a bundle of a folder.

mod archive;
mod error;
pub mod limits;
mod manifest;
mod pack;

pub use archive::{Archive, File};
pub use error::{BundleError, PackError};
pub use manifest::{FileEntry, Language, MANIFEST, Manifest};
pub use pack::{Options, pack};
pub use rawzip::FileReader;

use std::fmt::Write as _;

/// A digest in lower-case hex, as manifests write it.
pub fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
