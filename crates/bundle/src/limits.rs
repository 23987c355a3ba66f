//! How large a bundle may be.

/// The zip file.
pub const BUNDLE_BYTES: u64 = 64 << 20;
pub const MANIFEST_BYTES: u64 = 64 << 10;
/// Files, the manifest not counted.
pub const FILES: usize = 1_000;
/// One file, unpacked.
pub const FILE_BYTES: u64 = 32 << 20;
/// All files, unpacked.
pub const TOTAL_BYTES: u64 = 256 << 20;
/// The path of a file, and one part of it.
pub const PATH_BYTES: usize = 1_024;
pub const SEGMENT_BYTES: usize = 255;
/// Names in `env_allowlist`, and one of them.
pub const ENV_NAMES: usize = 128;
pub const ENV_NAME_BYTES: usize = 128;
