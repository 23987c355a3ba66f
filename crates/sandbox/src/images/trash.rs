use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};

/// Removes directories, however deep they are: each directory inside is first moved up here, so that nothing recurses and
/// no path grows.
#[derive(Debug)]
pub(super) struct Trash {
    dir: OwnedFd,
    next: u64,
}

impl Trash {
    /// `dir` is empty and on the file system of what is removed.
    pub(super) fn new(dir: OwnedFd) -> Self {
        Self { dir, next: 0 }
    }

    /// Removes a file, a link or a directory with everything in it. An absent one is not an error.
    pub(super) fn remove(&mut self, parent: impl AsFd, name: &OsStr) -> Result<()> {
        let mut waiting = match self.take(parent, name) {
            Ok(taken) => taken.into_iter().collect::<Vec<_>>(),
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        while let Some(number) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(&self.dir, number.as_str(), flags, Mode::empty())?;
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    waiting.extend(self.take(&dir, os_str(name))?);
                }
            }
            rustix::fs::unlinkat(&self.dir, number.as_str(), AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    /// Removes the contents of a directory.
    pub(super) fn clear(&mut self, dir: impl AsFd) -> Result<()> {
        let dir = rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.remove(&dir, os_str(name))?;
            }
        }
        Ok(())
    }

    /// Unlinks a file, or moves a directory here and returns its new name.
    fn take(&mut self, parent: impl AsFd, name: &OsStr) -> Result<Option<String>> {
        let stat = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
            return Ok(None);
        }
        // A directory that its owner cannot write cannot be moved or emptied, except by root.
        if stat.st_mode & 0o700 != 0o700 {
            rustix::fs::chmodat(&parent, name, Mode::RWXU, AtFlags::empty())?;
        }
        let number = self.next.to_string();
        self.next += 1;
        rustix::fs::renameat(&parent, name, &self.dir, number.as_str())?;
        Ok(Some(number))
    }
}

fn os_str(bytes: &[u8]) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}
