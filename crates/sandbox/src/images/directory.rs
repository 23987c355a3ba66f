use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

use super::path::{joined, names, shown};
use super::section::{Hashing, hex};
use super::tree::{Attributes, Tree};

/// Copies a directory into an image and returns the digest of its names, attributes and contents.
///
/// Other mounts in it become empty directories, and so does `excluded`, the folder of the image store itself.
pub(super) fn copy(source: &Path, excluded: &Stat, tree: &mut Tree) -> Result<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(source, flags, Mode::empty())
        .map_err(|error| Error::invalid(format!("cannot open {}: {error}", source.display())))?;
    let mut copy =
        DirectoryCopy { root, excluded: identity(excluded), tree, hash: Sha256::new(), links: HashMap::new() };
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        waiting.extend(copy.directory(&path)?);
    }
    Ok(hex(&copy.hash.finalize()))
}

struct DirectoryCopy<'a> {
    root: OwnedFd,
    excluded: (u64, u64),
    tree: &'a mut Tree,
    hash: Sha256,
    /// The first path of each file that has several.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl DirectoryCopy<'_> {
    /// Copies a directory without its subdirectories, and returns those, last first.
    fn directory(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let names = names(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match open_beneath(&self.root, joined(&names).as_slice(), flags) {
            Ok(dir) => dir,
            // The root of another mount: its name is all that is copied.
            Err(Errno::XDEV) => {
                let attributes = Attributes { mode: 0o755, uid: 0, gid: 0, modified: 0 };
                self.record("dir", path, attributes, b"");
                self.tree.budget.take_entry()?;
                return self.tree.add_directory(&names, attributes).map(|()| Vec::new());
            }
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(error) => return Err(cannot_read(path, error)),
        };
        let stat = rustix::fs::fstat(&dir).map_err(|error| cannot_read(path, error))?;
        self.record("dir", path, attributes(&stat), b"");
        self.tree.budget.take_entry()?;
        self.tree.add_directory(&names, attributes(&stat))?;
        if identity(&stat) == self.excluded {
            return Ok(Vec::new());
        }

        let mut entries = Vec::new();
        for entry in Dir::read_from(&dir).map_err(|error| cannot_read(path, error))? {
            let entry = entry.map_err(|error| cannot_read(path, error))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                entries.push(name.to_vec());
            }
        }
        entries.sort_unstable();
        let mut directories = Vec::new();
        for name in entries {
            let child = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            match rustix::fs::statat(&dir, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => directories.push(child),
                Ok(stat) => self.leaf(&dir, &names, &name, &child, &stat)?,
                // It was removed while the directory was read.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(cannot_read(&child, error)),
            }
        }
        directories.reverse();
        Ok(directories)
    }

    fn leaf(&mut self, dir: &OwnedFd, parents: &[&OsStr], name: &[u8], path: &[u8], stat: &Stat) -> Result<()> {
        names(path)?;
        let name = OsStr::from_bytes(name);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(dir, parents, name, path),
            FileType::Symlink => {
                let target = match rustix::fs::readlinkat(dir, name, Vec::new()) {
                    Ok(target) => target,
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                    Err(error) => return Err(cannot_read(path, error)),
                };
                self.record("link", path, attributes(stat), target.as_bytes());
                self.tree.budget.take_entry()?;
                self.tree.add_symlink(parents, name, target.as_bytes(), attributes(stat))
            }
            _ => {
                self.tree.skipped += 1;
                Ok(())
            }
        }
    }

    fn file(&mut self, dir: &OwnedFd, parents: &[&OsStr], name: &OsStr, path: &[u8]) -> Result<()> {
        // Non-blocking, because the file may have become a FIFO since.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match open_beneath(dir, name, flags) {
            Ok(file) => file,
            // It was removed or replaced meanwhile, or something else is mounted over it.
            Err(Errno::NOENT | Errno::LOOP | Errno::XDEV) => return Ok(()),
            Err(error) => return Err(cannot_read(path, error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|error| cannot_read(path, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            self.tree.skipped += 1;
            return Ok(());
        }
        self.tree.budget.take_entry()?;
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&identity(&stat)).cloned() {
                self.record("hard link", path, attributes(&stat), &first);
                return self.tree.add_hard_link(parents, name, &first);
            }
            self.links.insert(identity(&stat), path.to_vec());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.tree.budget.take_bytes(size)?;
        let mut content = Hashing::new(std::io::Read::take(std::fs::File::from(file), size));
        self.tree.add_file(parents, name, attributes(&stat), size, &mut content)?;
        let digest = content
            .finish()
            .map_err(|error| Error::internal(format!("cannot read {:?}: {error}", shown(path))).with_source(error))?;
        self.record("file", path, attributes(&stat), digest.as_bytes());
        Ok(())
    }

    /// Adds an entry to the digest. Every field is preceded by its length, so that no two trees give the same bytes.
    fn record(&mut self, kind: &str, path: &[u8], attributes: Attributes, content: &[u8]) {
        let numbers = format!("{:o} {} {}", attributes.mode & 0o7777, attributes.uid, attributes.gid);
        for field in [kind.as_bytes(), path, numbers.as_bytes(), content] {
            self.hash.update((field.len() as u64).to_le_bytes());
            self.hash.update(field);
        }
    }
}

/// Opens a path without leaving its directory, its mount, or following any link.
fn open_beneath(dir: &OwnedFd, path: impl rustix::path::Arg + Copy, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    for _ in 0..1000 {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn attributes(stat: &Stat) -> Attributes {
    Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid.into(),
        gid: stat.st_gid.into(),
        modified: u64::try_from(stat.st_mtime).unwrap_or(0),
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn cannot_read(path: &[u8], error: Errno) -> Error {
    Error::invalid(format!("cannot read {:?} of the directory: {error}", shown(path)))
        .with_source(std::io::Error::from(error))
}
