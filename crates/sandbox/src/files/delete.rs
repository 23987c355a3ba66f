use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::path::SandboxPath;
use super::root::{Names, Root, chmod_named};
use super::{failed, unique};
use crate::error::{Error, ErrorKind, Result};

/// Entries that one call removes. Somebody who creates files faster than they are removed does not hold it for ever.
const MAX_STEPS: u64 = 20_000_000;

/// Directories that are open at a time. A deeper tree is cut: its lower part moves up and is removed from there.
const MAX_DEPTH: usize = 32;

/// Names that are read from a directory before they are removed.
const BATCH: usize = 1024;

impl Root {
    /// Removes a file, a link itself, an empty directory, or with `recursive` a directory and everything in it.
    pub(crate) fn delete(&self, path: &str, recursive: bool) -> Result<()> {
        let path = SandboxPath::parse(path)?;
        let (_, name) = path.split()?;
        let parent = self.parent(&path)?;
        let name = c_name(name)?;
        let result = match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
            Err(Errno::ISDIR) if recursive => Tree::remove(parent.as_fd(), &name),
            Err(Errno::ISDIR) => rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR).map_err(Failure::Errno),
            result => result.map_err(Failure::Errno),
        };
        result.map_err(|failure| match failure {
            Failure::Errno(Errno::NOTEMPTY) => Error::invalid(format!("{path} is not empty: delete it recursively")),
            Failure::Errno(error) => failed("delete", &path, error),
            Failure::TooMany => Error::new(
                ErrorKind::ResourceLimit,
                format!("cannot delete {path}: more than {MAX_STEPS} entries, or files are created in it all the time"),
            ),
        })
    }
}

fn c_name(name: &str) -> Result<std::ffi::CString> {
    std::ffi::CString::new(name).map_err(|_| Error::invalid(format!("name {name:?}: contains a NUL byte")))
}

enum Failure {
    Errno(Errno),
    TooMany,
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

/// A directory that is removed with everything in it. Only names in open directories are used, never paths, and no link is
/// followed.
struct Tree {
    top: OwnedFd,
    steps: u64,
}

impl Tree {
    fn remove(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Failure> {
        let mut tree = Self { top: open(parent, name)?, steps: 0 };
        let top = tree.top.try_clone().map_err(|_| Errno::MFILE)?;
        tree.empty(top.as_fd(), 0)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }

    fn empty(&mut self, directory: BorrowedFd<'_>, depth: usize) -> Result<(), Failure> {
        let mut opened = false;
        loop {
            let names: Vec<_> = Names::of(directory)?.take(BATCH).collect::<Result<_, _>>()?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                self.steps += 1;
                if self.steps > MAX_STEPS {
                    return Err(Failure::TooMany);
                }
                match self.entry(directory, &name, depth) {
                    // The owner may have taken the right to change the directory from itself.
                    Err(Failure::Errno(Errno::ACCESS)) if !opened => {
                        opened = true;
                        rustix::fs::fchmod(directory, Mode::RWXU)?;
                        self.entry(directory, &name, depth)?;
                    }
                    result => result?,
                }
            }
        }
    }

    fn entry(&mut self, directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Failure> {
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        if depth == MAX_DEPTH {
            let moved = unique().map_err(|_| Errno::IO)?;
            rustix::fs::renameat(directory, name, &self.top, moved)?;
            return Ok(());
        }
        let child = match open(directory, name) {
            Err(Errno::NOENT) => return Ok(()),
            child => child?,
        };
        self.empty(child.as_fd(), depth + 1)?;
        match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
            // Not empty: somebody else creates files in it. The next round looks at it again.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Opens a directory, if necessary after giving the owner the right to.
fn open(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let named = rustix::fs::openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
            if FileType::from_raw_mode(rustix::fs::fstat(&named)?.st_mode) != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            chmod_named(named.as_fd(), Mode::RWXU)?;
            rustix::fs::openat(parent, name, flags | OFlags::RDONLY, Mode::empty())
        }
        result => result,
    }
}
