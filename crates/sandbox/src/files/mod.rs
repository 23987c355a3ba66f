//! Files of a sandbox, reached from outside by paths that code in the sandbox may be changing.
//!
//! Names with newlines and other control characters are kept as they are. A name that is not UTF-8 is listed with U+FFFD for
//! each wrong byte; such a file can be listed, matched and removed together with its directory, and not be addressed.

mod delete;
mod glob;
mod path;
mod root;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::io;
use std::time::SystemTime;

use rustix::io::Errno;

pub(crate) use path::SandboxPath;
pub(crate) use root::Root;

use crate::error::{Error, ErrorKind, Result};
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

/// A name that nobody else uses, for a file that is in the way of nobody.
fn unique() -> Result<String> {
    Ok(format!(".tenure-{}", crate::random::hex()?))
}

fn failed(verb: &str, path: &dyn fmt::Display, error: Errno) -> Error {
    let kind = match error {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::ResourceLimit,
        Errno::ACCESS
        | Errno::PERM
        | Errno::ROFS
        | Errno::NOTDIR
        | Errno::ISDIR
        | Errno::NOTEMPTY
        | Errno::LOOP
        | Errno::NAMETOOLONG
        | Errno::XDEV
        | Errno::INVAL
        | Errno::BUSY
        | Errno::TXTBSY
        // Of a socket, or of a device without a driver.
        | Errno::NXIO
        | Errno::NODEV => ErrorKind::Invalid,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, format!("cannot {verb} {path}: {}", text(error))).with_source(io::Error::from(error))
}

/// For example `cannot read /workspace/a: Input/output error`.
pub(crate) fn failed_io(verb: &str, path: &dyn fmt::Display, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(code) => failed(verb, path, Errno::from_raw_os_error(code)),
        None => Error::internal(format!("cannot {verb} {path}: {error}")),
    }
}

/// The system's text for an error, without its number.
fn text(error: Errno) -> String {
    let text = io::Error::from(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
