use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{FileType, Mode, OFlags, XattrFlags, fsetxattr, mkdirat, mknodat, openat, unlinkat};
use sha2::{Digest as _, Sha256};

use super::{CHECKSUM, Hashed, OPAQUE, OPAQUE_ATTRIBUTE, WHITEOUT, hex, is_kept};
use crate::error::{Error, Result};
use crate::images::{ImageLimits, LayerTree, decompressed, for_each_member};

/// Bytes of headers that an archive may have beside the content of files.
const HEADER_ALLOWANCE: u64 = 1 << 30;

/// Decompresses an archive to `plain` and checks its sum. Nothing of it is used before.
pub(crate) fn verified(archive: File, max_bytes: u64, plain: File) -> Result<File> {
    let damaged = |why: &str| Error::invalid(format!("the archive of the sandbox is damaged: {why}"));
    let mut stream = decompressed(archive, max_bytes.saturating_add(HEADER_ALLOWANCE))
        .map_err(|error| damaged(&error.to_string()))?;
    let mut to = Hashed { inner: plain, digest: Sha256::new() };
    // The sum is in the last entry: a header, a block with the sum, and two or more empty blocks.
    let mut held: Vec<u8> = Vec::new();
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let length = stream.read(&mut buffer).map_err(|error| damaged(&error.to_string()))?;
        if length == 0 {
            break;
        }
        held.extend_from_slice(&buffer[..length]);
        let sure = held.len().saturating_sub(64 * 1024) / 512 * 512;
        to.write_all(&held[..sure]).map_err(|error| no_room(&error))?;
        held.drain(..sure);
    }
    let at = held
        .chunks(512)
        .rposition(|block| block.starts_with(CHECKSUM.as_bytes()) && block.get(CHECKSUM.len()) == Some(&0))
        .ok_or_else(|| damaged("it ends too early"))?
        * 512;
    to.digest.update(&held[..at]);
    let sum = held.get(at + 512..at + 512 + 64).ok_or_else(|| damaged("it ends too early"))?;
    if sum != hex(&to.digest).as_bytes() {
        return Err(damaged("its checksum is wrong"));
    }
    let mut plain = to.inner;
    plain.write_all(&held[..at]).and_then(|()| plain.write_all(&[0; 1024])).map_err(|error| no_room(&error))?;
    plain.rewind().map_err(|error| no_room(&error))?;
    Ok(plain)
}

fn no_room(error: &io::Error) -> Error {
    Error::internal(format!("cannot keep the archive while it is checked: {error}"))
}

/// Fills a writable layer from an archive that was checked. It runs in the sandbox, as its root, before the layer is
/// mounted, with the same checks as for images.
pub(crate) fn unpack(archive: OwnedFd, base: &OwnedFd) -> io::Result<()> {
    mkdirat(base, "x", Mode::RWXU)?;
    let trash = openat(base, "x", OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut tree = LayerTree::new(base.try_clone()?, trash, ImageLimits::default());
    let mut marks = Vec::new();
    let unpacked = for_each_member(File::from(archive), |member, content| {
        if !is_kept(member.path.split(|byte| *byte == b'/').next().unwrap_or_default()) {
            return Err(Error::invalid("the archive has an entry outside of the writable layer"));
        }
        let (parent, name) = split(&member.path);
        if name.starts_with(WHITEOUT.as_bytes()) {
            marks.push((parent.to_vec(), name.to_vec()));
            return Ok(());
        }
        tree.add(&member, content)
    });
    unpacked.and_then(|()| tree.finish()).map_err(|error| io::Error::other(error.to_string()))?;
    for (parent, name) in marks {
        let dir = tree.directory(&parent).map_err(|error| io::Error::other(error.to_string()))?;
        if name == OPAQUE.as_bytes() {
            fsetxattr(&dir, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?;
        } else {
            let hidden = OsStr::from_bytes(&name[WHITEOUT.len()..]);
            mknodat(&dir, hidden, FileType::CharacterDevice, Mode::empty(), 0)?;
        }
    }
    unlinkat(base, "x", rustix::fs::AtFlags::REMOVEDIR)?;
    Ok(())
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
