//! Uploads in several parts.
//!
//! An upload is a directory of its own with the key that it is for and a file for each part. It belongs to the attempt
//! that began it. When it is complete its parts become one file, which is then placed like any other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{AtFlags, Dir, FileType};
use tenure_core::objects::RESERVED;

use crate::error::{Result, S3Error};
use crate::folder::{Folder, Meta, Temporary, UPLOADS, is_absent, meta, open_file};
use crate::keys::{Holder, random_u128};
use crate::limits;
use crate::sign::hex;

/// The file with the key that an upload is for, and the one that says that it is complete.
const KEY: &str = "key";
const DONE: &str = "done";

/// An upload of an attempt, which exists or does not.
#[derive(Debug, Clone)]
pub struct Upload {
    /// The directory of all uploads of the attempt.
    owner: String,
    id: String,
    key: String,
}

/// A part that the client names when it completes an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub number: u32,
    pub etag: String,
}

impl Upload {
    /// `id` is as a request has it.
    pub fn named(holder: &Holder, key: &str, id: &str) -> Result<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        if id.len() != 32 || !id.bytes().all(is_hex) {
            return Err(S3Error::no_such_upload());
        }
        Ok(Self { owner: owner(holder), id: id.to_owned(), key: key.to_owned() })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    fn path(&self) -> String {
        format!("{RESERVED}/{UPLOADS}/{}/{}", self.owner, self.id)
    }

    /// Begins an upload.
    pub fn begin(folder: &Folder, holder: &Holder, key: &str) -> Result<Self> {
        let upload = Self { owner: owner(holder), id: format!("{:032x}", random_u128()?), key: key.to_owned() };
        let all = folder.make_directory(&format!("{RESERVED}/{UPLOADS}/{}", upload.owner))?;
        // The directory itself and the one above it are listed, too.
        if Dir::read_from(&all)?.count() > limits::UPLOADS + 2 {
            return Err(S3Error::slow_down("The attempt has too many uploads: complete or abort some."));
        }
        let mut temporary = folder.temporary()?;
        temporary.file.write_all(key.as_bytes())?;
        folder.place(temporary, &format!("{}/{KEY}", upload.path()), true)?;
        Ok(upload)
    }

    /// The directory of an upload that is for this key.
    fn open(&self, folder: &Folder) -> Result<OwnedFd> {
        let found = folder.directory(&self.path());
        let found = found.map_err(|error| if is_absent(error) { S3Error::no_such_upload() } else { error.into() })?;
        if text(&found, KEY)?.as_deref() == Some(&self.key) { Ok(found) } else { Err(S3Error::no_such_upload()) }
    }

    /// Refuses parts of an upload that is not open.
    pub fn check_open(&self, folder: &Folder) -> Result<()> {
        let found = self.open(folder)?;
        if text(&found, DONE)?.is_some() { Err(S3Error::no_such_upload()) } else { Ok(()) }
    }

    /// Adds a part, or replaces it.
    pub fn add(&self, folder: &Folder, number: u32, part: Temporary) -> Result<Meta> {
        self.check_open(folder)?;
        folder.place(part, &format!("{}/{}", self.path(), part_name(number)), false)
    }

    /// Makes one object of the parts. The same request again has the same answer for a while.
    pub fn complete(&self, folder: &Folder, parts: &[Part], only_new: bool) -> Result<String> {
        let found = self.open(folder)?;
        if let Some(etag) = text(&found, DONE)? {
            return Ok(etag);
        }
        if parts.is_empty() || parts.len() > limits::PARTS as usize {
            return Err(S3Error::malformed_xml("An upload has 1 to 10,000 parts."));
        }
        if !parts.windows(2).all(|two| two[0].number < two[1].number) {
            return Err(S3Error::invalid_part_order("The parts are not in ascending order."));
        }
        let mut whole = folder.temporary()?;
        for part in parts {
            let mut file = open_part(&found, part)?;
            io::copy(&mut file, &mut whole.file)?;
        }
        let meta = folder.place(whole, &self.key, only_new)?;
        let mut done = folder.temporary()?;
        done.file.write_all(meta.etag.as_bytes())?;
        folder.place(done, &format!("{}/{DONE}", self.path()), false)?;
        remove_files(&found, |name| name.starts_with('p'))?;
        Ok(meta.etag)
    }

    pub fn abort(&self, folder: &Folder) -> Result<()> {
        let found = self.open(folder)?;
        remove_files(&found, |_| true)?;
        folder.unmark_directory(&self.path())
    }

    /// The parts that are there, by number, after this one.
    pub fn parts(&self, folder: &Folder, after: u32, limit: usize) -> Result<(Vec<(u32, Meta)>, bool)> {
        self.check_open(folder)?;
        let found = self.open(folder)?;
        let mut numbers = Vec::new();
        for entry in Dir::read_from(&found)? {
            let entry = entry?;
            let number = entry.file_name().to_str().ok().and_then(|name| name.strip_prefix('p')?.parse::<u32>().ok());
            numbers.extend(number.filter(|number| *number > after));
        }
        numbers.sort_unstable();
        let is_truncated = numbers.len() > limit;
        numbers.truncate(limit);
        let with_meta = numbers.into_iter().map(|number| Ok((number, meta(&found, &part_name(number))?)));
        Ok((with_meta.collect::<Result<_>>()?, is_truncated))
    }
}

fn open_part(upload: &OwnedFd, part: &Part) -> Result<File> {
    let wrong = || S3Error::invalid_part(format!("Part {} is missing, or has another ETag.", part.number));
    let found = open_file(upload, &part_name(part.number));
    let (file, meta) = found.map_err(|error| if is_absent(error) { wrong() } else { error.into() })?;
    if meta.etag.trim_matches('"') == part.etag.trim().trim_matches('"') { Ok(file) } else { Err(wrong()) }
}

fn part_name(number: u32) -> String {
    format!("p{number:05}")
}

/// Attempts see their own uploads only.
fn owner(holder: &Holder) -> String {
    let Holder { org, task, attempt } = holder;
    hex(&digest(&SHA256, format!("{org}\n{task}\n{attempt}").as_bytes()).as_ref()[..16])
}

fn text(folder: &OwnedFd, name: &str) -> Result<Option<String>> {
    match open_file(folder, name) {
        Ok((file, _)) => {
            let mut text = String::new();
            file.take(8 << 10).read_to_string(&mut text)?;
            Ok(Some(text))
        }
        Err(error) if is_absent(error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn remove_files(folder: &OwnedFd, is_meant: impl Fn(&str) -> bool) -> Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let is_file = entry.file_type() != FileType::Directory;
        if is_file && entry.file_name().to_str().is_ok_and(&is_meant) {
            match rustix::fs::unlinkat(folder, entry.file_name(), AtFlags::empty()) {
                Err(error) if !is_absent(error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes uploads to which nothing was added since, and directories of attempts that have none. Returns how many.
pub fn sweep(folder: &Folder, before: SystemTime) -> Result<usize> {
    let all_path = format!("{RESERVED}/{UPLOADS}");
    let Ok(all) = folder.directory(&all_path) else { return Ok(0) };
    let mut removed = 0;
    for owner in names(&all)? {
        let owner_path = format!("{all_path}/{owner}");
        let Ok(uploads) = folder.directory(&owner_path) else { continue };
        for id in names(&uploads)? {
            let Ok(upload) = folder.directory(&format!("{owner_path}/{id}")) else { continue };
            // A part that is added or removed changes the directory.
            let modified = rustix::fs::fstat(&upload)?.st_mtime;
            if modified < seconds(before) {
                remove_files(&upload, |_| true)?;
                folder.unmark_directory(&format!("{owner_path}/{id}"))?;
                removed += 1;
            }
        }
        if rustix::fs::fstat(&uploads)?.st_mtime < seconds(before) {
            // It stays if something is in it.
            folder.unmark_directory(&owner_path)?;
        }
    }
    Ok(removed)
}

fn seconds(at: SystemTime) -> i64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

fn names(folder: &OwnedFd) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        names.extend(entry.file_name().to_str().ok().filter(|name| !name.starts_with('.')).map(str::to_owned));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn holder(task: &str) -> Holder {
        Holder { org: "o".into(), task: task.into(), attempt: 1 }
    }

    fn part(folder: &Folder, upload: &Upload, number: u32, content: &str) -> Part {
        let mut temporary = folder.temporary().unwrap();
        temporary.file.write_all(content.as_bytes()).unwrap();
        Part { number, etag: upload.add(folder, number, temporary).unwrap().etag }
    }

    fn content(folder: &Folder, key: &str) -> String {
        io::read_to_string(folder.read(key).unwrap().0).unwrap()
    }

    #[test]
    fn parts_become_one_object_and_leave_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let upload = Upload::begin(&folder, &holder("t"), "s/x").unwrap();
        let second = part(&folder, &upload, 2, "world");
        let replaced = part(&folder, &upload, 1, "nothing");
        let first = part(&folder, &upload, 1, "hello ");
        assert!(folder.read("s/x").is_err(), "nothing is seen before it is complete");
        let code = |parts: &[Part]| upload.complete(&folder, parts, false).unwrap_err().code;
        assert_eq!(code(&[second.clone(), first.clone()]), "InvalidPartOrder");
        assert_eq!(code(&[replaced, second.clone()]), "InvalidPart");
        assert_eq!(code(&[first.clone(), Part { number: 3, etag: "x".into() }]), "InvalidPart");
        assert_eq!(code(&[]), "MalformedXML");
        let (listed, _) = upload.parts(&folder, 0, 10).unwrap();
        assert_eq!(listed.iter().map(|(number, meta)| (*number, meta.bytes)).collect::<Vec<_>>(), [(1, 6), (2, 5)]);
        let parts = [first, second];
        let etag = upload.complete(&folder, &parts, false).unwrap();
        assert_eq!(content(&folder, "s/x"), "hello world");
        assert_eq!(upload.complete(&folder, &parts, false).unwrap(), etag, "a repeat has the same answer");
        assert_eq!(upload.add(&folder, 3, folder.temporary().unwrap()).unwrap_err().code, "NoSuchUpload");
        let files = std::fs::read_dir(root.path().join(upload.path())).unwrap().count();
        assert_eq!(files, 2, "the key and the end of the upload");
    }

    #[test]
    fn an_upload_belongs_to_its_attempt_and_its_key() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let upload = Upload::begin(&folder, &holder("t"), "s/x").unwrap();
        for (task, key, id) in [("u", "s/x", upload.id()), ("t", "s/y", upload.id()), ("t", "s/x", "../../../etc")] {
            let other = Upload::named(&holder(task), key, id).and_then(|other| other.check_open(&folder));
            assert_eq!(other.unwrap_err().code, "NoSuchUpload", "{task} {key} {id}");
        }
        assert!(Upload::named(&holder("t"), "s/x", upload.id()).unwrap().check_open(&folder).is_ok());
        upload.abort(&folder).unwrap();
        assert_eq!(upload.abort(&folder).unwrap_err().code, "NoSuchUpload");
    }

    #[test]
    fn uploads_that_nobody_goes_on_with_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let upload = Upload::begin(&folder, &holder("t"), "s/x").unwrap();
        part(&folder, &upload, 1, "x");
        assert_eq!(sweep(&folder, SystemTime::now() - Duration::from_secs(60)).unwrap(), 0);
        assert!(upload.check_open(&folder).is_ok());
        assert_eq!(sweep(&folder, SystemTime::now() + Duration::from_secs(60)).unwrap(), 1);
        assert_eq!(upload.check_open(&folder).unwrap_err().code, "NoSuchUpload");
    }
}
