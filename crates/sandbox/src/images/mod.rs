//! Images that sandboxes start from, kept in the data directory under a name.
//!
//! An image is unpacked once and shared read-only by its sandboxes. It comes from a directory, a tar file (plain, gzip
//! or zstd) or an image archive (`docker save`, `skopeo copy … oci-archive:`). The source is not trusted:
//!
//! - Every path is resolved beneath the image's own root by the kernel (`openat2`), so that `..`, absolute links and
//!   links planted by earlier entries never lead outside.
//! - Devices, FIFOs and sockets are left out and counted. Setuid and setgid bits and all extended attributes, and with
//!   them file capabilities, are dropped.
//! - Entries, bytes, layers, path length and depth are bounded: see [`ImageLimits`].
//! - Layers and configurations of image archives must match their digests.
//!
//! A directory is copied without crossing into other mounts, so `/proc` and `/sys` of a running system stay empty.

mod archive;
mod compression;
mod directory;
mod layer;
mod layered;
mod limits;
mod name;
mod path;
mod record;
mod section;
mod store;
mod trash;
mod tree;

#[cfg(test)]
mod tests;

pub(crate) use archive::for_each_member;
pub(crate) use compression::decompressed;
pub(crate) use layer::LayerTree;
pub use limits::ImageLimits;
pub use record::{ImageRecord, ImageSource};
pub use store::{Image, ImageStore};
