//! Lists of keys, in the order of S3: by the bytes of the whole key.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType};
use tenure_core::objects::{RESERVED, is_key};

use crate::error::{Result, S3Error};
use crate::folder::{Folder, Meta, is_absent, meta, split};
use crate::limits;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub prefix: String,
    /// Keys below the next slash are one entry.
    pub by_directory: bool,
    /// Only what comes after it.
    pub after: String,
    /// `after` was the last entry of the list before.
    pub continues: bool,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    Object(String, Meta),
    Directory(String),
}

impl Listed {
    pub fn name(&self) -> &str {
        match self {
            Self::Object(name, _) | Self::Directory(name) => name,
        }
    }
}

/// A page of a list.
#[derive(Debug, Default)]
pub struct Listing {
    pub entries: Vec<Listed>,
    /// There is more after the last entry.
    pub is_truncated: bool,
}

impl Folder {
    /// Memory is bounded by the page, not by the directories: those are read again for each page of theirs.
    pub fn list(&self, wanted: &Wanted) -> Result<Listing> {
        let (parent, _) = split(&wanted.prefix);
        if !parent.is_empty() && !is_key(parent) {
            return Ok(Listing::default());
        }
        let folder = match self.directory(parent) {
            Ok(folder) => folder,
            Err(error) if is_absent(error) => return Ok(Listing::default()),
            Err(error) => return Err(error.into()),
        };
        let base = if parent.is_empty() { String::new() } else { format!("{parent}/") };
        let mut walk = Walk { wanted, listing: Listing::default(), looked_at: 0 };
        walk.directory(&folder, &base)?;
        Ok(walk.listing)
    }
}

struct Walk<'a> {
    wanted: &'a Wanted,
    listing: Listing,
    looked_at: usize,
}

impl Walk<'_> {
    /// Lists what is in a directory. Returns whether to go on.
    fn directory(&mut self, folder: &OwnedFd, base: &str) -> Result<bool> {
        let mut after = String::new();
        loop {
            let names = self.names(folder, base, &after)?;
            let is_last = names.len() < PAGE;
            for name in &names {
                if !self.entry(folder, base, name)? {
                    return Ok(false);
                }
            }
            match names.into_iter().next_back() {
                Some(last) if !is_last => after = last,
                _ => return Ok(true),
            }
        }
    }

    /// The next names of a directory, in order. Those of directories end with a slash, as in keys.
    fn names(&mut self, folder: &OwnedFd, base: &str, after: &str) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            self.looked_at += 1;
            if self.looked_at > limits::LISTED_NAMES {
                return Err(S3Error::unavailable("There are too many names: ask for a longer prefix."));
            }
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") || (base.is_empty() && name == RESERVED) {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            let name = match kind {
                FileType::RegularFile => name.to_owned(),
                FileType::Directory => format!("{name}/"),
                _ => continue,
            };
            if name.as_str() <= after || !self.is_wanted(&format!("{base}{name}")) {
                continue;
            }
            names.insert(name);
            if names.len() > PAGE {
                names.pop_last();
            }
        }
        Ok(names)
    }

    /// Whether a key, or some key below a directory, may be part of the list.
    fn is_wanted(&self, full: &str) -> bool {
        let Wanted { prefix, after, .. } = self.wanted;
        if full.ends_with('/') {
            let below = full.starts_with(prefix.as_str()) || prefix.starts_with(full);
            below && (full > after.as_str() || after.starts_with(full))
        } else {
            full.starts_with(prefix.as_str()) && full > after.as_str()
        }
    }

    fn entry(&mut self, folder: &OwnedFd, base: &str, name: &str) -> Result<bool> {
        let full = format!("{base}{name}");
        let Some(directory) = name.strip_suffix('/') else {
            let meta = match meta(folder, name) {
                Ok(meta) => meta,
                // Removed meanwhile.
                Err(error) if is_absent(error) => return Ok(true),
                Err(error) => return Err(error.into()),
            };
            return Ok(self.add(Listed::Object(full, meta)));
        };
        let flags = rustix::fs::OFlags::RDONLY
            | rustix::fs::OFlags::DIRECTORY
            | rustix::fs::OFlags::NOFOLLOW
            | rustix::fs::OFlags::CLOEXEC;
        let below = match rustix::fs::openat(folder, directory, flags, rustix::fs::Mode::empty()) {
            Ok(below) => below,
            Err(error) if is_absent(error) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        if !self.wanted.by_directory || !full.starts_with(&self.wanted.prefix) || full == self.wanted.prefix {
            return self.directory(&below, &full);
        }
        if self.wanted.continues && full.as_str() <= self.wanted.after.as_str() {
            return Ok(true);
        }
        // An empty directory is not listed, nor is one whose keys were all listed before.
        let first = Wanted { by_directory: false, limit: 1, prefix: full.clone(), ..self.wanted.clone() };
        let mut walk = Walk { wanted: &first, listing: Listing::default(), looked_at: self.looked_at };
        walk.directory(&below, &full)?;
        self.looked_at = walk.looked_at;
        Ok(walk.listing.entries.is_empty() || self.add(Listed::Directory(full)))
    }

    /// Returns whether there may be more.
    fn add(&mut self, entry: Listed) -> bool {
        if self.listing.entries.len() >= self.wanted.limit {
            self.listing.is_truncated = true;
            return false;
        }
        self.listing.entries.push(entry);
        true
    }
}

/// Names of a directory that are looked at together.
const PAGE: usize = limits::KEYS + 1;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    fn folder_with(keys: &[&str]) -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        for key in keys {
            let path = root.path().join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let folder = Folder::open(root.path()).unwrap();
        (root, folder)
    }

    fn names(folder: &Folder, wanted: &Wanted) -> Vec<String> {
        folder.list(wanted).unwrap().entries.iter().map(|entry| entry.name().to_owned()).collect()
    }

    fn wanted(prefix: &str, by_directory: bool) -> Wanted {
        Wanted { prefix: prefix.into(), by_directory, limit: 1_000, ..Wanted::default() }
    }

    #[test]
    fn keys_are_listed_in_the_order_of_s3() {
        let keys = ["p/a/x", "p/a-b", "p/a.txt", "p/a0", "p/b/c/d", "p-evil/x", "q"];
        let (root, folder) = folder_with(&keys);
        std::fs::create_dir_all(root.path().join("p/empty/deeper")).unwrap();
        std::fs::create_dir_all(root.path().join(".tenure/tmp")).unwrap();
        std::fs::write(root.path().join(".tenure/s3.key"), "k").unwrap();
        symlink("/etc", root.path().join("p/link")).unwrap();
        assert_eq!(names(&folder, &wanted("p/", false)), ["p/a-b", "p/a.txt", "p/a/x", "p/a0", "p/b/c/d"]);
        assert_eq!(names(&folder, &wanted("p/", true)), ["p/a-b", "p/a.txt", "p/a/", "p/a0", "p/b/"]);
        assert_eq!(names(&folder, &wanted("p/a", true)), ["p/a-b", "p/a.txt", "p/a/", "p/a0"]);
        assert_eq!(names(&folder, &wanted("p/b/c/", true)), ["p/b/c/d"]);
        assert_eq!(names(&folder, &wanted("", true)), ["p-evil/", "p/", "q"]);
        for prefix in ["none/", "p/a/x/", "../", "p/../p/", ".tenure/", "p/link/", "p//"] {
            assert_eq!(names(&folder, &wanted(prefix, false)), [""; 0], "{prefix}");
        }
    }

    #[test]
    fn a_start_in_a_directory_lists_what_comes_after() {
        let (_root, folder) = folder_with(&["p/a/1", "p/a/2", "p/b"]);
        let after = |after: &str, by_directory| Wanted { after: after.into(), ..wanted("p/", by_directory) };
        assert_eq!(names(&folder, &after("p/a/1", false)), ["p/a/2", "p/b"]);
        assert_eq!(names(&folder, &after("p/a/1", true)), ["p/a/", "p/b"]);
        assert_eq!(names(&folder, &after("p/a/2", true)), ["p/b"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Pages of any size are together the sorted list.
        #[test]
        fn pages_are_the_whole(
            keys in proptest::collection::btree_set("[a-c-]{1,2}(/[a-c.]{1,2}x){0,2}", 0..20),
            limit in 1_usize..5,
            by_directory: bool,
        ) {
            // A key that is a directory of another one cannot exist beside it.
            let keys: Vec<&str> = keys
                .iter()
                .map(String::as_str)
                .filter(|key| is_key(key) && !keys.iter().any(|other| other.starts_with(&format!("{key}/"))))
                .collect();
            let (_root, folder) = folder_with(&keys);
            let mut expected: Vec<String> = keys
                .iter()
                .map(|key| match key.split_once('/') {
                    Some((first, _)) if by_directory => format!("{first}/"),
                    _ => (*key).to_owned(),
                })
                .collect();
            expected.sort();
            expected.dedup();
            let (mut found, mut wanted) = (Vec::new(), Wanted { limit, by_directory, ..Wanted::default() });
            loop {
                let page = folder.list(&wanted).unwrap();
                prop_assert!(page.entries.len() <= limit);
                found.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
                if !page.is_truncated {
                    break;
                }
                wanted.after = found.last().unwrap().clone();
                wanted.continues = true;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
