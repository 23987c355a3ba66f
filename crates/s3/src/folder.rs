//! Files of the folder, reached one segment at a time. No link is followed, and nothing outside is reached.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tenure_core::objects::RESERVED;

use crate::error::{Result, S3Error};
use crate::keys::random_u128;
use crate::sign::hex;

/// Where objects are written before they appear, and where parts of uploads wait.
const TEMPORARY: &str = "tmp";
pub const UPLOADS: &str = "uploads";
/// A directory may be removed by a sweep between its making and its use.
const TRIES: usize = 5;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder of the object store.
#[derive(Debug)]
pub struct Folder {
    root: OwnedFd,
}

/// What is told about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified_s: i64,
    /// With quotation marks. It is not an MD5: it changes when the object is written again.
    pub etag: String,
}

impl Meta {
    fn of(stat: &Stat) -> Self {
        let text = format!("{}/{}/{}/{}", stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
        let sum = digest(&SHA256, text.as_bytes());
        Self {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified_s: stat.st_mtime,
            etag: format!("\"{}-1\"", hex(&sum.as_ref()[..16])),
        }
    }

    pub fn modified(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(self.modified_s).unwrap_or(0))
    }
}

/// A file that has no name yet that others see. It is removed unless it is placed.
#[derive(Debug)]
pub struct Temporary {
    folder: OwnedFd,
    name: String,
    pub file: File,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After it was placed there is nothing under this name.
        let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

impl Folder {
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root })
    }

    /// The directory of a path, which has no slash at its ends. Empty: the folder itself.
    pub fn directory(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        self.descend(path, false)
    }

    /// The same; what is missing is made.
    pub fn make_directory(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        self.descend(path, true)
    }

    fn descend(&self, path: &str, make: bool) -> rustix::io::Result<OwnedFd> {
        let mut at = self.root.try_clone().map_err(|_| Errno::MFILE)?;
        for segment in path.split('/').filter(|_| !path.is_empty()) {
            at = match rustix::fs::openat(&at, segment, FOLDER, Mode::empty()) {
                Err(Errno::NOENT) if make => {
                    match rustix::fs::mkdirat(&at, segment, Mode::from_raw_mode(0o777)) {
                        Ok(()) => rustix::fs::fsync(&at)?,
                        Err(Errno::EXIST) => {}
                        Err(error) => return Err(error),
                    }
                    rustix::fs::openat(&at, segment, FOLDER, Mode::empty())?
                }
                opened => opened?,
            };
        }
        Ok(at)
    }

    /// Opens an object. Anything but a file is as if it were not there.
    pub fn read(&self, key: &str) -> Result<(File, Meta)> {
        let (parent, name) = split(key);
        let found = self.directory(parent).and_then(|parent| open_file(&parent, name));
        found.map_err(|error| if is_absent(error) { S3Error::no_such_key() } else { error.into() })
    }

    /// A file for an object that is to be written.
    pub fn temporary(&self) -> Result<Temporary> {
        self.temporary_in(TEMPORARY)
    }

    /// The same in another of the own directories.
    pub fn temporary_in(&self, own: &str) -> Result<Temporary> {
        let folder = self.make_directory(&format!("{RESERVED}/{own}"))?;
        let name = format!("{:032x}", random_u128()?);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, &name, flags, Mode::from_raw_mode(0o666))?;
        Ok(Temporary { folder, name, file: file.into() })
    }

    /// Makes a file durable, and then an object. `only_new`: unless there is one.
    pub fn place(&self, temporary: Temporary, key: &str, only_new: bool) -> Result<Meta> {
        temporary.file.sync_all()?;
        let meta = Meta::of(&rustix::fs::fstat(&temporary.file)?);
        let (parent, name) = split(key);
        let mut tries = 0;
        loop {
            let placed = self.make_directory(parent).and_then(|folder| {
                let (from, old) = (&temporary.folder, temporary.name.as_str());
                if only_new {
                    rustix::fs::linkat(from, old, &folder, name, AtFlags::empty())?;
                } else {
                    rustix::fs::renameat(from, old, &folder, name)?;
                }
                rustix::fs::fsync(&folder)
            });
            tries += 1;
            match placed {
                Ok(()) => return Ok(meta),
                // The directory was removed meanwhile, or another one made it.
                Err(Errno::NOENT) if tries < TRIES => {}
                Err(Errno::EXIST) if only_new => {
                    return Err(S3Error::precondition_failed("There is an object with this key."));
                }
                Err(Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::EXIST | Errno::NOTEMPTY) => {
                    let message =
                        "The key cannot be used here: an object has the name of a directory above or below it.";
                    return Err(S3Error::invalid_request(message));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes an object. One that is not there is not an error.
    pub fn remove(&self, key: &str) -> Result<()> {
        let (parent, name) = split(key);
        let removed = self.directory(parent).and_then(|parent| {
            // A link is removed, not followed; a directory stays.
            rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
            rustix::fs::fsync(&parent)
        });
        match removed {
            Err(error) if !is_absent(error) && !matches!(error, Errno::ISDIR | Errno::PERM) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Makes a directory that a client wants to see, as other clients see it: an object whose key ends with a slash.
    pub fn mark_directory(&self, path: &str) -> Result<()> {
        match self.make_directory(path) {
            Ok(_) => Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(S3Error::invalid_request("An object has the name of a directory.")),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a directory, if nothing is in it.
    pub fn unmark_directory(&self, path: &str) -> Result<()> {
        let (parent, name) = split(path);
        let removed = self.directory(parent).and_then(|parent| rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR));
        match removed {
            Err(error) if !is_absent(error) && !matches!(error, Errno::NOTEMPTY | Errno::EXIST) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Removes files that a crash has left behind.
    pub fn sweep(&self, older_than: SystemTime) -> Result<usize> {
        let Ok(folder) = self.directory(&format!("{RESERVED}/{TEMPORARY}")) else { return Ok(0) };
        let mut removed = 0;
        for entry in rustix::fs::Dir::read_from(&folder)? {
            let entry = entry?;
            let stat = rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| Meta::of(&stat).modified() < older_than)
                && rustix::fs::unlinkat(&folder, entry.file_name(), AtFlags::empty()).is_ok()
            {
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// A file in a directory. Whatever else has the name is not opened: a pipe would wait, a link would lead elsewhere.
pub fn open_file(folder: impl AsFd, name: &str) -> rustix::io::Result<(File, Meta)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    Ok((file.into(), Meta::of(&stat)))
}

/// What is told about a file of a directory.
pub fn meta(folder: impl AsFd, name: &str) -> rustix::io::Result<Meta> {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Meta::of(&stat))
}

/// Whether an error means that there is no such file.
pub fn is_absent(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO)
}

/// The directory and the name of a key.
pub fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('/').unwrap_or(("", key))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(folder: &Folder, key: &str, content: &str) -> Result<Meta> {
        let mut temporary = folder.temporary()?;
        temporary.file.write_all(content.as_bytes())?;
        folder.place(temporary, key, false)
    }

    #[test]
    fn an_object_appears_whole_and_is_replaced_whole() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let first = put(&folder, "a/b/c", "one").unwrap();
        let (_, read) = folder.read("a/b/c").unwrap();
        assert_eq!((read.bytes, &read.etag), (3, &first.etag));
        let second = put(&folder, "a/b/c", "two").unwrap();
        assert_ne!(first.etag, second.etag);
        let unfinished = folder.temporary().unwrap();
        assert_eq!(folder.place(folder.temporary().unwrap(), "a/b/c", true).unwrap_err().code, "PreconditionFailed");
        drop(unfinished);
        assert_eq!(std::fs::read_dir(root.path().join(".tenure/tmp")).unwrap().count(), 0);
        folder.remove("a/b/c").unwrap();
        folder.remove("a/b/c").unwrap();
        folder.remove("x/y/z").unwrap();
        assert_eq!(folder.read("a/b/c").unwrap_err().code, "NoSuchKey");
    }

    #[test]
    fn links_lead_nowhere() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::fs::create_dir(root.path().join("p")).unwrap();
        symlink(outside.path(), root.path().join("p/out")).unwrap();
        symlink(outside.path().join("secret"), root.path().join("p/file")).unwrap();
        let folder = Folder::open(root.path()).unwrap();
        for key in ["p/out/secret", "p/file", "p/out", "p"] {
            assert_eq!(folder.read(key).unwrap_err().code, "NoSuchKey", "{key}");
        }
        assert!(put(&folder, "p/out/new", "x").is_err());
        assert!(!outside.path().join("new").exists());
        // A link is replaced by an object, not written through.
        put(&folder, "p/file", "x").unwrap();
        folder.remove("p/out").unwrap();
        assert_eq!(std::fs::read_to_string(outside.path().join("secret")).unwrap(), "s");
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(Folder::open(root.path()).unwrap().read("pipe").unwrap_err().code, "NoSuchKey");
    }

    #[test]
    fn an_object_is_not_a_directory_as_well() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        put(&folder, "a/b", "x").unwrap();
        assert_eq!(put(&folder, "a/b/c", "x").unwrap_err().code, "InvalidRequest");
        assert_eq!(put(&folder, "a", "x").unwrap_err().code, "InvalidRequest");
        folder.remove("a").unwrap();
        assert!(folder.read("a/b").is_ok(), "a directory is not removed like an object");
        assert_eq!(put(&folder, &"x".repeat(300), "x").unwrap_err().code, "KeyTooLongError");
    }

    #[test]
    fn old_leftovers_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        std::mem::forget(folder.temporary().unwrap());
        assert_eq!(folder.sweep(SystemTime::now() - Duration::from_secs(60)).unwrap(), 0);
        assert_eq!(folder.sweep(SystemTime::now() + Duration::from_secs(60)).unwrap(), 1);
    }
}
