//! A local folder, looked at without following links: whoever may write to it must not lead this process elsewhere.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tenure_core::Timestamp;
use walkdir::WalkDir;

use crate::error::ObjectError;
use crate::store::Entry;

/// A folder that is gone, such as one on a file system that is not mounted, holds no outputs that could be judged.
pub fn exists(root: &Path) -> Result<(), ObjectError> {
    if root.is_dir() { Ok(()) } else { Err(ObjectError::unavailable("the folder of the object store does not exist")) }
}

/// Files below `root/below`, one more than `limit` at most.
pub fn list(root: &Path, below: &str, limit: usize) -> Result<Vec<Entry>, ObjectError> {
    exists(root)?;
    let folder = root.join(below);
    if !is_inside(root, below)? {
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    for found in WalkDir::new(&folder).min_depth(1).follow_links(false) {
        let found = match found {
            Ok(found) => found,
            // Removed meanwhile.
            Err(error) if error.io_error().is_some_and(|error| error.kind() == ErrorKind::NotFound) => continue,
            Err(error) => return Err(ObjectError::unavailable(error)),
        };
        if found.file_type().is_dir() {
            continue;
        }
        if !found.file_type().is_file() {
            return Err(ObjectError::OddObject);
        }
        let name = found.path().strip_prefix(&folder).ok().and_then(Path::to_str).ok_or(ObjectError::OddObject)?;
        let meta = found.metadata().map_err(ObjectError::unavailable)?;
        entries.push(Entry { name: name.to_owned(), bytes: meta.len(), modified_at: modified_at(&meta) });
        if entries.len() > limit {
            break;
        }
    }
    Ok(entries)
}

/// Refuses a path that leads through a link. What does not exist is none.
pub fn check_links(root: &Path, key: &str) -> Result<(), ObjectError> {
    let mut path = root.to_owned();
    for segment in key.split('/').filter(|segment| !segment.is_empty()) {
        path.push(segment);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() => return Err(ObjectError::OddObject),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
            Err(error) => return Err(ObjectError::unavailable(error)),
        }
    }
    Ok(())
}

/// Whether the folder exists and is reached without links.
fn is_inside(root: &Path, below: &str) -> Result<bool, ObjectError> {
    check_links(root, below)?;
    Ok(root.join(below).is_dir())
}

/// The folders in a folder, with their names.
pub fn folders(path: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    // The type is that of the entry itself, so a link is no folder.
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// When a folder, or anything below it, was last changed.
pub fn newest(path: &Path) -> Option<Timestamp> {
    let found = WalkDir::new(path).follow_links(false).into_iter().filter_map(Result::ok);
    found.filter_map(|found| found.metadata().ok()).map(|meta| modified_at(&meta)).max()
}

/// Removes `root/below`, first what says that it is finished, and the folders above that are empty then.
pub fn remove(root: &Path, below: &str, markers: &[&str]) -> Result<(), ObjectError> {
    check_links(root, below)?;
    let folder = root.join(below.trim_end_matches('/'));
    let gone = |result: std::io::Result<()>| match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(ObjectError::unavailable(error)),
        _ => Ok(()),
    };
    for marker in markers {
        gone(fs::remove_file(folder.join(marker)))?;
    }
    // Links in it are removed, not followed.
    gone(fs::remove_dir_all(&folder))?;
    for above in folder.ancestors().skip(1).take(2).filter(|above| *above != root) {
        if fs::remove_dir(above).is_err() {
            break;
        }
    }
    Ok(())
}

fn modified_at(meta: &fs::Metadata) -> Timestamp {
    let since = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
