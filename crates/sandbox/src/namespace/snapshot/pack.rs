use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fgetxattr, openat2, readlinkat, statat};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::{CHECKSUM, Frames, Hashed, OPAQUE, OPAQUE_ATTRIBUTE, WHITEOUT, hex, is_kept};

/// The deepest directory that is archived. The kernel allows deeper ones; programs do not make them.
const MAX_DEPTH: usize = 120;
const MAX_FILES: u64 = 2_000_000;

type Archive = Builder<Hashed<Frames<File>>>;

/// Writes the archive of a writable layer whose commands are stopped.
///
/// Its content is hostile: nothing is followed, and bytes and files are counted. `first_id` is what id 0 of the sandbox is
/// on this machine.
pub(crate) fn pack(writable: &OwnedFd, first_id: u32, max_bytes: u64, to: File) -> io::Result<File> {
    let archive = Builder::new(Hashed { inner: Frames::new(to), digest: Sha256::new() });
    let mut packer = Packer { archive, first_id, bytes_left: max_bytes, files_left: MAX_FILES, links: HashMap::new() };
    for name in names(writable)?.into_iter().filter(|name| is_kept(name)) {
        packer.directory(writable, &name, &name, 0)?;
    }
    let sum = hex(&packer.archive.get_ref().digest);
    let mut header = plain_header(sum.len() as u64);
    packer.archive.append_data(&mut header, CHECKSUM, sum.as_bytes())?;
    packer.archive.into_inner()?.inner.finish()
}

struct Packer {
    archive: Archive,
    first_id: u32,
    bytes_left: u64,
    files_left: u64,
    /// Where a file with several names was written first.
    links: HashMap<u64, Vec<u8>>,
}

impl Packer {
    fn directory(&mut self, parent: &OwnedFd, name: &[u8], path: &[u8], depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other(format!("{:?} is too deep", String::from_utf8_lossy(path))));
        }
        let dir = open(parent, name, OFlags::DIRECTORY | OFlags::RDONLY)?;
        self.append(&rustix::fs::fstat(&dir)?, EntryType::Directory, path, None, io::empty(), 0)?;
        let mut value = [0; 1];
        if fgetxattr(&dir, OPAQUE_ATTRIBUTE, &mut value).is_ok() && value == *b"y" {
            self.mark(&joined(path, OPAQUE.as_bytes()))?;
        }
        for name in names(&dir)? {
            let stat = statat(&dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
            let below = joined(path, &name);
            self.files_left = self.files_left.checked_sub(1).ok_or_else(|| io::Error::other("too many files"))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.directory(&dir, &name, &below, depth + 1)?,
                FileType::RegularFile => self.file(&dir, &name, &below, &stat)?,
                FileType::Symlink => {
                    let target = readlinkat(&dir, name.as_slice(), Vec::new())?.into_bytes();
                    self.append(&stat, EntryType::Symlink, &below, Some(&target), io::empty(), 0)?;
                }
                FileType::CharacterDevice if stat.st_rdev == 0 => {
                    self.mark(&joined(path, &[WHITEOUT.as_bytes(), name.as_slice()].concat()))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8], stat: &Stat) -> io::Result<()> {
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino).cloned() {
                return self.append(stat, EntryType::Link, path, Some(&first), io::empty(), 0);
            }
            self.links.insert(stat.st_ino, path.to_vec());
        }
        let file = File::from(open(dir, name, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let size = file.metadata()?.len();
        self.bytes_left = self.bytes_left.checked_sub(size).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::StorageFull,
                "the files of the sandbox claim more bytes than its disk has: remove sparse files",
            )
        })?;
        // A file that is shorter than it was is filled: the length is in the archive already.
        let content = file.chain(io::repeat(0)).take(size);
        self.append(stat, EntryType::Regular, path, None, content, size)
    }

    /// An empty file with a name that has a meaning.
    fn mark(&mut self, path: &[u8]) -> io::Result<()> {
        self.archive.append_data(&mut plain_header(0), os_path(path), io::empty())
    }

    fn append(
        &mut self,
        stat: &Stat,
        kind: EntryType,
        path: &[u8],
        link: Option<&[u8]>,
        content: impl io::Read,
        size: u64,
    ) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o1777);
        header.set_uid(u64::from(stat.st_uid.wrapping_sub(self.first_id)));
        header.set_gid(u64::from(stat.st_gid.wrapping_sub(self.first_id)));
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_size(size);
        match link {
            Some(link) => self.archive.append_link(&mut header, os_path(path), os_path(link)),
            None => self.archive.append_data(&mut header, os_path(path), content),
        }
    }
}

/// A file of the archive itself.
fn plain_header(size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o444);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn open(dir: &OwnedFd, name: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    Ok(openat2(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// The names in a directory, sorted, so that the same content gives the same archive.
fn names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path, b"/", name].concat()
}

fn os_path(path: &[u8]) -> &std::path::Path {
    std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path))
}
