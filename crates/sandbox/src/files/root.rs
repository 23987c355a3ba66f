use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::path::{SandboxPath, joined};
use super::{FileInfo, failed};
use crate::error::{Error, ErrorKind, Result};

/// Entries that a list may have.
const MAX_LIST_ENTRIES: usize = 50_000;

/// Directories that are open while files are counted; those beyond are left out.
const MAX_OPEN_DIRECTORIES: usize = 256;

/// The kernel answers `EAGAIN` when a directory was renamed while it resolved a path; it may do so again.
const MAX_RESOLVE_TRIES: u32 = 256;

/// Everything below one directory. A path is resolved by the kernel as if that directory were `/`, so that no symbolic
/// link leads outside, also when it is exchanged during the call. Calls block.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
}

impl Root {
    pub(crate) fn open(directory: &std::path::Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, directory, flags, Mode::empty())
            .map_err(|error| failed("open", &directory.display(), error))?;
        Ok(Self { fd })
    }

    /// Opens a path beneath the root. Links are followed inside it, except those that `/proc` invents.
    pub(super) fn resolve(&self, beneath: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let terminal = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
        let flags = flags | OFlags::CLOEXEC | terminal;
        for _ in 0..MAX_RESOLVE_TRIES {
            match rustix::fs::openat2(&self.fd, beneath, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// A directory, as a descriptor that names it and can do nothing else.
    pub(crate) fn directory(&self, path: &SandboxPath) -> Result<OwnedFd> {
        self.resolve(&path.beneath(), OFlags::PATH | OFlags::DIRECTORY).map_err(|error| failed("open", path, error))
    }

    pub(super) fn parent(&self, path: &SandboxPath) -> Result<OwnedFd> {
        let (parents, _) = path.split()?;
        self.resolve(&joined(parents), OFlags::PATH | OFlags::DIRECTORY).map_err(|error| failed("open", path, error))
    }

    /// Opens a regular file for reading. Anything else is refused, and a FIFO does not block.
    pub(crate) fn read(&self, path: &str) -> Result<(FileInfo, File)> {
        let path = SandboxPath::parse(path)?;
        // Opening a device can act on it, so the type is looked at first.
        let named = self.resolve(&path.beneath(), OFlags::PATH).map_err(|error| failed("read", &path, error))?;
        regular(&path, &stat(&path, named.as_fd())?)?;
        let opened = self
            .resolve(&path.beneath(), OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|error| failed("read", &path, error))?;
        let found = stat(&path, opened.as_fd())?;
        regular(&path, &found)?;
        Ok((info(path.to_string(), &found), File::from(opened)))
    }

    /// Follows a link to its target inside the root.
    pub(crate) fn stat(&self, path: &str) -> Result<FileInfo> {
        let path = SandboxPath::parse(path)?;
        let named = self.resolve(&path.beneath(), OFlags::PATH).map_err(|error| failed("stat", &path, error))?;
        Ok(info(path.to_string(), &stat(&path, named.as_fd())?))
    }

    /// The entries of a directory, sorted by path. A link is described itself, not its target.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        let path = SandboxPath::parse(path)?;
        let directory = self
            .resolve(&path.beneath(), OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|error| failed("list", &path, error))?;
        let mut files = Vec::new();
        for name in Names::of(directory.as_fd()).map_err(|error| failed("list", &path, error))? {
            let name = name.map_err(|error| failed("list", &path, error))?;
            let found = match rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed("list", &path, error)),
            };
            if files.len() == MAX_LIST_ENTRIES {
                return Err(Error::new(
                    ErrorKind::ResourceLimit,
                    format!("{path} has more than {MAX_LIST_ENTRIES} entries: list its directories, or use a pattern"),
                ));
            }
            files.push(info(path.child(&name.to_string_lossy()), &found));
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    pub(crate) fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let path = SandboxPath::parse(path)?;
        let mode = permissions(mode)?;
        let named = self.resolve(&path.beneath(), OFlags::PATH).map_err(|error| failed("chmod", &path, error))?;
        let kind = FileType::from_raw_mode(stat(&path, named.as_fd())?.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory) {
            return Err(special(&path));
        }
        chmod_named(named.as_fd(), mode).map_err(|error| failed("chmod", &path, error))
    }

    /// Renames a file or directory. A file at the new path is replaced; a directory must be absent or empty.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (SandboxPath::parse(from)?, SandboxPath::parse(to)?);
        let (source, target) = (self.parent(&from)?, self.parent(&to)?);
        let ((_, old), (_, new)) = (from.split()?, to.split()?);
        match rustix::fs::renameat(&source, old, &target, new) {
            Ok(()) => Ok(()),
            Err(Errno::XDEV) => self.copy_across(&from, &to),
            Err(error) => Err(failed("move", &from, error)),
        }
    }

    /// The size of all files, of the first `max_entries` that are found.
    pub(crate) fn size(&self, max_entries: usize) -> Result<u64> {
        let top = self.resolve(".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(|error| failed("size", &"/", error))?;
        let (mut bytes, mut seen) = (0, 0);
        let mut directories = vec![top];
        while let Some(directory) = directories.pop() {
            // A directory that may not be read, or is gone, counts nothing.
            for name in Names::of(directory.as_fd()).into_iter().flatten().flatten() {
                seen += 1;
                if seen > max_entries {
                    return Ok(bytes);
                }
                let Ok(found) = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                bytes += u64::try_from(found.st_blocks).unwrap_or(0) * 512;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if FileType::from_raw_mode(found.st_mode) == FileType::Directory
                    && directories.len() < MAX_OPEN_DIRECTORIES
                    && let Ok(child) = rustix::fs::openat(&directory, &name, flags, Mode::empty())
                {
                    directories.push(child);
                }
            }
        }
        Ok(bytes)
    }

    /// Directories of a sandbox can be different file systems, for example `/tmp`.
    fn copy_across(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let (info, mut source) = self.read(&from.to_string())?;
        let mut target = self.create(&to.to_string(), info.mode)?;
        std::io::copy(&mut source, &mut target).map_err(|error| super::failed_io("move", from, &error))?;
        target.commit()?;
        self.delete(&from.to_string(), false)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The names in a directory without `.` and `..`.
pub(super) struct Names(Dir);

impl Names {
    pub(super) fn of(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        Dir::read_from(directory).map(Self)
    }
}

impl Iterator for Names {
    type Item = Result<std::ffi::CString, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.0.read()? {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                entry => return Some(entry.map(|entry| entry.file_name().to_owned())),
            }
        }
    }
}

/// Changes the mode of a file that is open with `O_PATH`, which `fchmod` refuses.
pub(super) fn chmod_named(named: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    let link = format!("/proc/self/fd/{}", named.as_raw_fd());
    rustix::fs::chmodat(CWD, link, mode, AtFlags::empty())
}

pub(super) fn permissions(mode: u32) -> Result<Mode> {
    if mode > 0o7777 {
        return Err(Error::invalid(format!("mode {mode:o} is not a file mode: use an octal number up to 7777")));
    }
    Ok(Mode::from_raw_mode(mode))
}

fn stat(path: &SandboxPath, fd: BorrowedFd<'_>) -> Result<Stat> {
    rustix::fs::fstat(fd).map_err(|error| failed("stat", path, error))
}

fn regular(path: &SandboxPath, found: &Stat) -> Result<()> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Error::invalid(format!("{path} is a directory"))),
        _ => Err(special(path)),
    }
}

pub(super) fn special(path: &SandboxPath) -> Error {
    Error::invalid(format!("{path} is not a regular file or directory: devices, FIFOs and sockets are refused"))
}

fn info(path: String, found: &Stat) -> FileInfo {
    FileInfo {
        path,
        size: u64::try_from(found.st_size).unwrap_or(0),
        mode: found.st_mode & 0o7777,
        is_dir: FileType::from_raw_mode(found.st_mode) == FileType::Directory,
        modified: modified(found.st_mtime),
    }
}

/// Whole seconds. A time before 1970, which anybody can set, is shown as 1970.
fn modified(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(u64::from(u32::MAX) * 4))
}
