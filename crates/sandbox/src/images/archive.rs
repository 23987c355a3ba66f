use std::io::Read;

use tar::{EntryType, PaxExtensions};

use crate::error::{Error, Result};

use super::limits::MAX_EXTENDED_HEADER_BYTES;
use super::path::shown;

/// An entry of a tar file.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) path: Vec<u8>,
    pub(super) kind: MemberKind,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// Seconds since 1970.
    pub(super) modified: u64,
    pub(super) size: u64,
    /// Where its content begins in the archive.
    pub(super) offset: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MemberKind {
    File,
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    /// A device or a FIFO.
    Special,
}

/// Calls `visit` with each entry of a tar file and its content.
///
/// Extended headers are read here and not by the library, which would read one of any size into memory. Sparse files are
/// refused: a few bytes can claim terabytes.
pub(crate) fn for_each_member(
    stream: impl Read,
    mut visit: impl FnMut(Member, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let damaged =
        |error: std::io::Error| Error::invalid(format!("cannot read the archive: {error}")).with_source(error);
    let mut archive = tar::Archive::new(stream);
    let mut extended = Extended::default();
    for entry in archive.entries().map_err(damaged)?.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        let header = entry.header();
        let path = header.path_bytes().into_owned();
        match header.entry_type() {
            EntryType::GNULongName => extended.path = Some(long_name(&mut entry)?),
            EntryType::GNULongLink => extended.link = Some(long_name(&mut entry)?),
            EntryType::XHeader => extended.read_pax(&read_extended(&mut entry)?)?,
            // Global headers hold comments, for example a commit; names and sizes in them are not allowed.
            EntryType::XGlobalHeader => {
                let mut global = Extended::default();
                global.read_pax(&read_extended(&mut entry)?)?;
                if global.path.is_some() || global.link.is_some() || global.size.is_some() {
                    return Err(Error::invalid("a global header of the archive sets a path, a link or a size"));
                }
            }
            kind => {
                let extended = std::mem::take(&mut extended);
                let path = extended.path.unwrap_or(path);
                let in_entry = |why: &str| Error::invalid(format!("entry {:?} of the archive {why}", shown(&path)));
                let size = entry.size();
                if extended.size.is_some_and(|extended| extended != size) {
                    return Err(in_entry("has two sizes"));
                }
                let link = match extended.link {
                    Some(link) => link,
                    None => header.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default(),
                };
                let kind = match kind {
                    EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => MemberKind::Directory,
                    EntryType::Regular | EntryType::Continuous => MemberKind::File,
                    EntryType::Directory => MemberKind::Directory,
                    EntryType::Symlink => MemberKind::Symlink(link),
                    EntryType::Link => MemberKind::HardLink(link),
                    EntryType::Char | EntryType::Block | EntryType::Fifo => MemberKind::Special,
                    EntryType::GNUSparse => {
                        return Err(in_entry("is a sparse file: make the archive without `--sparse`"));
                    }
                    other => return Err(in_entry(&format!("has the unknown type {:?}", other.as_byte() as char))),
                };
                let member = Member {
                    kind,
                    mode: header.mode().map_err(damaged)?,
                    uid: extended.uid.map_or_else(|| header.uid(), Ok).map_err(damaged)?,
                    gid: extended.gid.map_or_else(|| header.gid(), Ok).map_err(damaged)?,
                    modified: header.mtime().unwrap_or(0),
                    size,
                    offset: entry.raw_file_position(),
                    path,
                };
                visit(member, &mut entry)?;
            }
        }
    }
    Ok(())
}

/// What extended headers state about the entry that follows them.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
}

impl Extended {
    fn read_pax(&mut self, records: &[u8]) -> Result<()> {
        let number = |value: &[u8]| {
            std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok()).ok_or_else(|| {
                Error::invalid(format!("an extended header of the archive has the number {:?}", shown(value)))
            })
        };
        for record in PaxExtensions::new(records) {
            let record = record
                .map_err(|error| Error::invalid("an extended header of the archive is malformed").with_source(error))?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number(value)?),
                b"uid" => self.uid = Some(number(value)?),
                b"gid" => self.gid = Some(number(value)?),
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(Error::invalid("the archive has a sparse file: make it without `--sparse`"));
                }
                // Times with fractions, user names, comments and extended attributes are not kept.
                _ => {}
            }
        }
        Ok(())
    }
}

fn read_extended(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>> {
    if entry.size() > MAX_EXTENDED_HEADER_BYTES {
        return Err(Error::invalid("an extended header of the archive is larger than 1 MiB"));
    }
    let mut records = Vec::new();
    entry.read_to_end(&mut records).map_err(|error| {
        Error::invalid(format!("cannot read an extended header of the archive: {error}")).with_source(error)
    })?;
    Ok(records)
}

fn long_name(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>> {
    let mut name = read_extended(entry)?;
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    Ok(name)
}
