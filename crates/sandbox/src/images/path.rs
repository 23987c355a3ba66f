use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::error::{Error, Result};

use super::limits::{MAX_DEPTH, MAX_PATH_BYTES};

/// The names in a path of an archive, from the root of the image down. Empty for the root itself.
pub(super) fn names(path: &[u8]) -> Result<Vec<&OsStr>> {
    let refuse = |why: &str| Err(Error::invalid(format!("the path {:?} {why}", shown(path))));
    if path.len() > MAX_PATH_BYTES {
        return refuse("is longer than 4095 bytes");
    }
    if path.contains(&0) {
        return refuse("contains a NUL byte");
    }
    if path.starts_with(b"/") {
        return refuse("is absolute: paths in an image are relative to its root");
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return refuse("contains `..`"),
            name if name.len() > 255 => return refuse("has a name longer than 255 bytes"),
            name => names.push(OsStr::from_bytes(name)),
        }
    }
    if names.len() > MAX_DEPTH {
        return refuse("is deeper than 128 directories");
    }
    Ok(names)
}

/// The path that `names` form, relative to the root.
pub(super) fn joined(names: &[&OsStr]) -> Vec<u8> {
    if names.is_empty() {
        return b".".to_vec();
    }
    let mut path = Vec::new();
    for name in names {
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
    }
    path
}

/// A path for a message: readable, and not longer than a line.
pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_into_plain_names() {
        assert_eq!(names(b"./usr//bin/").expect("a path"), ["usr", "bin"]);
        assert!(names(b"./").expect("the root").is_empty());
        for hostile in [&b"/etc"[..], b"a/../b", b"..", b"a\0b", &[b'a'; 256], &[b'/'; 5000]] {
            assert!(names(hostile).is_err(), "{}", shown(hostile));
        }
        assert!(names(&b"a/".repeat(128)).is_ok());
        assert!(names(&b"a/".repeat(129)).is_err());
    }
}
