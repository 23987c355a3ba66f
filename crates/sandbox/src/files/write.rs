use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::path::{SandboxPath, joined};
use super::root::{Root, permissions, special};
use super::{failed, unique};
use crate::error::{Error, Result};

/// A file that is being written. It appears under its name by [`Pending::commit`]; dropped before, it is removed.
#[derive(Debug)]
pub(crate) struct Pending {
    path: SandboxPath,
    directory: OwnedFd,
    temporary: String,
    file: File,
    mode: Mode,
    committed: bool,
}

impl Root {
    /// Starts a file. Missing directories are created. A regular file or a link at that path is replaced.
    pub(crate) fn create(&self, path: &str, mode: u32) -> Result<Pending> {
        let path = SandboxPath::parse(path)?;
        let mode = permissions(mode)?;
        let (parents, name) = path.split()?;
        let directory = self.directories(&path, parents)?;
        match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile | FileType::Symlink => {}
                FileType::Directory => return Err(Error::invalid(format!("{path} is a directory"))),
                _ => return Err(special(&path)),
            },
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed("write", &path, error)),
        }
        let temporary = unique()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, &temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| failed("write", &path, error))?;
        Ok(Pending { path, directory, temporary, file: File::from(file), mode, committed: false })
    }

    /// The directory of a new file. Each missing one is created by name in the one before it.
    fn directories(&self, path: &SandboxPath, parents: &[String]) -> Result<OwnedFd> {
        let open = |components: &[String]| self.resolve(&joined(components), OFlags::PATH | OFlags::DIRECTORY);
        match open(parents) {
            Err(Errno::NOENT) => {}
            result => return result.map_err(|error| failed("write", path, error)),
        }
        let mut directory = open(&[]).map_err(|error| failed("write", path, error))?;
        for (index, name) in parents.iter().enumerate() {
            let so_far = &parents[..=index];
            directory = match open(so_far) {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(failed("create the directory of", path, error)),
                    }
                    open(so_far)
                }
                result => result,
            }
            .map_err(|error| failed("create the directory of", path, error))?;
        }
        Ok(directory)
    }
}

impl Pending {
    /// A second handle to the file, for a writer that needs to own it.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives the file its mode and its name.
    pub(crate) fn commit(mut self) -> Result<()> {
        let (_, name) = self.path.split()?;
        rustix::fs::fchmod(&self.file, self.mode).map_err(|error| failed("write", &self.path, error))?;
        rustix::fs::renameat(&self.directory, &self.temporary, &self.directory, name)
            .map_err(|error| failed("write", &self.path, error))?;
        self.committed = true;
        Ok(())
    }
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.committed
            && let Ok(name) = CString::new(self.temporary.as_str())
        {
            // It fails if somebody in the sandbox has removed or renamed it, and then nothing is left to do.
            let _ = rustix::fs::unlinkat(self.directory.as_fd(), &name, AtFlags::empty());
        }
    }
}
