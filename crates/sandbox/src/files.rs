use std::fmt;
use std::time::SystemTime;

use crate::provider::Stream;

/// A file in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// Absolute, inside the sandbox.
    pub path: String,
    pub size: u64,
    /// The permission bits, at most `0o7777`.
    pub mode: u32,
    pub is_dir: bool,
    pub modified: SystemTime,
}

/// An open file in a sandbox. Its bytes are read as they are needed.
pub struct FileReader {
    pub info: FileInfo,
    pub content: Stream,
}

/// A file to write. It appears under its name when it is complete.
pub struct FileWrite {
    /// Absolute, or relative to `/workspace`. Missing parent directories are created.
    pub path: String,
    pub mode: u32,
    pub content: Stream,
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader").field("info", &self.info).finish_non_exhaustive()
    }
}

impl fmt::Debug for FileWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWrite").field("path", &self.path).field("mode", &self.mode).finish_non_exhaustive()
    }
}
