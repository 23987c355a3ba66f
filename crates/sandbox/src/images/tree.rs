use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

use super::archive::{Member, MemberKind};
use super::limits::{Budget, MAX_PATH_BYTES};
use super::path::{joined, names, shown};
use super::trash::Trash;

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// The mode, owner and time of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) modified: u64,
}

impl Member {
    fn attributes(&self) -> Attributes {
        Attributes { mode: self.mode, uid: self.uid, gid: self.gid, modified: self.modified }
    }
}

/// The root of an image that is being unpacked.
///
/// Parents are resolved by the kernel as if the root were `/` (`RESOLVE_IN_ROOT`), so a link in the image leads to where it
/// would lead in a sandbox. The last name is never followed: what has it is replaced.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    trash: Trash,
    pub(super) budget: Budget,
    pub(super) skipped: u64,
    /// Only root may give files away; without it everything belongs to the user who adds the image.
    keeps_owners: bool,
    /// Set at the end: a directory may be read-only.
    directories: HashMap<Vec<u8>, Attributes>,
    buffer: Vec<u8>,
}

impl Tree {
    pub(super) fn new(root: OwnedFd, trash: Trash, budget: Budget) -> Self {
        let keeps_owners = rustix::process::geteuid().is_root();
        let buffer = vec![0; 128 * 1024];
        Self { root, trash, budget, skipped: 0, keeps_owners, directories: HashMap::new(), buffer }
    }

    /// Adds an entry of an archive. Whiteouts are left out: [`Tree::apply_whiteout`] has applied them before.
    pub(super) fn add(&mut self, member: &Member, content: &mut dyn Read, layered: bool) -> Result<()> {
        let names = names(&member.path)?;
        if layered && names.last().is_some_and(|name| is_whiteout(name)) {
            return Ok(());
        }
        let Some((name, parents)) = names.split_last() else {
            return match member.kind {
                MemberKind::Directory => self.add_directory(&[], member.attributes()),
                _ => Err(Error::invalid("the archive replaces the root of the image by something else")),
            };
        };
        self.budget.take_entry()?;
        match &member.kind {
            MemberKind::Directory => self.add_directory(&names, member.attributes()),
            MemberKind::File => {
                self.budget.take_bytes(member.size)?;
                self.add_file(parents, name, member.attributes(), member.size, content)
            }
            MemberKind::Symlink(target) => self.add_symlink(parents, name, target, member.attributes()),
            MemberKind::HardLink(target) => self.add_hard_link(parents, name, target),
            MemberKind::Special => {
                self.skipped += 1;
                Ok(())
            }
        }
    }

    /// Removes what a whiteout of a layer hides in the layers below. Other entries are ignored.
    pub(super) fn apply_whiteout(&mut self, member: &Member) -> Result<()> {
        let names = names(&member.path)?;
        let Some((name, parents)) = names.split_last() else { return Ok(()) };
        if !is_whiteout(name) {
            return Ok(());
        }
        let parent = match self.open_directory(parents) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(at(&member.path, error)),
        };
        let removed = if *name == OPAQUE {
            self.trash.clear(&parent)
        } else {
            let hidden: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&name.as_encoded_bytes()[WHITEOUT.len()..]);
            if hidden.is_empty() || hidden == "." || hidden == ".." {
                return Err(Error::invalid(format!("the whiteout {:?} names no file", shown(&member.path))));
            }
            self.trash.remove(&parent, hidden)
        };
        removed.map_err(|error| at(&member.path, error))
    }

    pub(super) fn add_directory(&mut self, names: &[&OsStr], attributes: Attributes) -> Result<()> {
        let path = joined(names);
        if let Some((name, parents)) = names.split_last() {
            let parent = self.parent(parents)?;
            match rustix::fs::mkdirat(&parent, *name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) if is_directory(&parent, name) => {}
                Err(Errno::EXIST) => {
                    self.trash.remove(&parent, name).map_err(|error| at(&path, error))?;
                    rustix::fs::mkdirat(&parent, *name, Mode::RWXU).map_err(|error| at(&path, error))?;
                }
                Err(error) => return Err(at(&path, error)),
            }
        }
        self.directories.insert(path, attributes);
        Ok(())
    }

    pub(super) fn add_file(
        &mut self,
        parents: &[&OsStr],
        name: &OsStr,
        attributes: Attributes,
        size: u64,
        content: &mut dyn Read,
    ) -> Result<()> {
        let parent = self.vacant(parents, name)?;
        let path = path_of(parents, name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| at(&path, error))?;
        let mut left = size;
        while left > 0 {
            let room = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = content.read(&mut self.buffer[..room]).map_err(|error| {
                Error::invalid(format!("cannot read {:?} of the image: {error}", shown(&path))).with_source(error)
            })?;
            if count == 0 {
                return Err(Error::invalid(format!("{:?} ends {left} bytes too early", shown(&path))));
            }
            let mut written = 0;
            while written < count {
                written += rustix::io::write(&file, &self.buffer[written..count]).map_err(|error| at(&path, error))?;
            }
            left -= count as u64;
        }
        self.set_attributes(&file, attributes, attributes.mode & 0o777).map_err(|error| at(&path, error))
    }

    pub(super) fn add_symlink(
        &mut self,
        parents: &[&OsStr],
        name: &OsStr,
        target: &[u8],
        attributes: Attributes,
    ) -> Result<()> {
        let path = path_of(parents, name);
        if target.is_empty() || target.len() > MAX_PATH_BYTES || target.contains(&0) {
            return Err(Error::invalid(format!("the target of the link {:?} is not a path", shown(&path))));
        }
        let parent = self.vacant(parents, name)?;
        rustix::fs::symlinkat(target, &parent, name).map_err(|error| at(&path, error))?;
        if self.keeps_owners {
            let (uid, gid) = owner(attributes);
            rustix::fs::chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| at(&path, error))?;
        }
        Ok(())
    }

    /// Links to a file that is already in the image. The last name of `target` is not followed either.
    pub(super) fn add_hard_link(&mut self, parents: &[&OsStr], name: &OsStr, target: &[u8]) -> Result<()> {
        let path = path_of(parents, name);
        let missing = || {
            let target = shown(target);
            Error::invalid(format!("the hard link {:?} leads to {target:?}, which is not in the image", shown(&path)))
        };
        let target_names = names(target)?;
        let Some((target_name, target_parents)) = target_names.split_last() else { return Err(missing()) };
        let target_parent = match self.open_directory(target_parents) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(missing()),
            Err(error) => return Err(at(target, error)),
        };
        let stat = rustix::fs::statat(&target_parent, *target_name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|error| if error == Errno::NOENT { missing() } else { at(target, error) })?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(Error::invalid(format!("the hard link {:?} leads to a directory", shown(&path))));
        }
        if self.same_file(parents, name, &stat)? {
            return Ok(());
        }
        let parent = self.vacant(parents, name)?;
        match rustix::fs::linkat(&target_parent, *target_name, &parent, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Err(missing()),
            other => other.map_err(|error| at(&path, error)),
        }
    }

    /// Sets what was recorded for directories. Their owner can always write them, so that the image can be removed.
    pub(super) fn finish(&mut self) -> Result<()> {
        for (path, attributes) in std::mem::take(&mut self.directories) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match self.open(&path, flags) {
                Ok(dir) => {
                    let mode = attributes.mode & 0o1777 | 0o700;
                    self.set_attributes(&dir, attributes, mode).map_err(|error| at(&path, error))?;
                }
                // A later entry replaced it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(at(&path, error)),
            }
        }
        rustix::fs::syncfs(&self.root).map_err(|error| at(b".", error))
    }

    /// The directory for a new entry, with nothing under the entry's name.
    fn vacant(&mut self, parents: &[&OsStr], name: &OsStr) -> Result<OwnedFd> {
        let parent = self.parent(parents)?;
        self.trash.remove(&parent, name).map_err(|error| at(&path_of(parents, name), error))?;
        Ok(parent)
    }

    /// Opens a directory for reading and for its attributes, and makes it if it does not exist.
    pub(super) fn readable_directory(&mut self, names: &[&OsStr]) -> Result<OwnedFd> {
        self.parent(names)?;
        let path = joined(names);
        self.open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC).map_err(|error| at(&path, error))
    }

    /// Opens a directory and makes those that the path only implies.
    fn parent(&mut self, names: &[&OsStr]) -> Result<OwnedFd> {
        match self.open_directory(names) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(|error| at(&joined(names), error)),
        }
        for depth in 0..names.len() {
            let parent = self.open_directory(&names[..depth]).map_err(|error| at(&joined(names), error))?;
            match rustix::fs::mkdirat(&parent, names[depth], Mode::from_raw_mode(0o755)) {
                Ok(()) => self.budget.take_entry()?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(at(&joined(names), error)),
            }
        }
        self.open_directory(names).map_err(|error| match error {
            Errno::NOENT => {
                let path = joined(names);
                Error::invalid(format!(
                    "the path {:?} goes through a link that leads nowhere in the image",
                    shown(&path)
                ))
            }
            error => at(&joined(names), error),
        })
    }

    fn open_directory(&self, names: &[&OsStr]) -> Result<OwnedFd, Errno> {
        self.open(&joined(names), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        // The kernel asks to try again if something was renamed anywhere while it resolved `..`.
        for _ in 0..1000 {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Whether an entry is already a link to this file. Removing it first could remove the file.
    fn same_file(&mut self, parents: &[&OsStr], name: &OsStr, file: &rustix::fs::Stat) -> Result<bool> {
        let parent = self.parent(parents)?;
        Ok(rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (file.st_dev, file.st_ino)))
    }

    fn set_attributes(&self, file: impl AsFd, attributes: Attributes, mode: u32) -> Result<(), Errno> {
        if self.keeps_owners {
            let (uid, gid) = owner(attributes);
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        // The year 9999: what RFC 3339 can express.
        let seconds = i64::try_from(attributes.modified).unwrap_or(0).min(253_402_300_799);
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })
    }
}

/// Owners inside an image are 16-bit numbers, because a sandbox maps that many; others become root.
fn owner(attributes: Attributes) -> (Uid, Gid) {
    let id = |id: u64| u16::try_from(id).map_or(0, u32::from);
    (Uid::from_raw(id(attributes.uid)), Gid::from_raw(id(attributes.gid)))
}

fn is_whiteout(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(WHITEOUT.as_bytes())
}

fn is_directory(parent: impl AsFd, name: &OsStr) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn path_of(parents: &[&OsStr], name: &OsStr) -> Vec<u8> {
    let mut names = parents.to_vec();
    names.push(name);
    joined(&names)
}

fn at(path: &[u8], error: Errno) -> Error {
    let kind = match error {
        Errno::NOSPC | Errno::DQUOT => ErrorKind::ResourceLimit,
        Errno::LOOP | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::XDEV => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, format!("cannot unpack {:?}: {error}", shown(path))).with_source(std::io::Error::from(error))
}
