//! What there is to copy.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tenure_client::Sandbox;
use tenure_contract::sandboxes::FileInfo;

use crate::exit::{Stop, warn};

/// Links can make a tree endless.
const DEPTH_MAX: usize = 64;
const ENTRIES_MAX: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Below the source; empty for the source itself.
    pub name: String,
    pub size: u64,
    pub mode: u32,
    /// Only of folders that have nothing in them.
    pub is_dir: bool,
}

#[derive(Debug)]
pub struct Tree {
    /// The last part of the source's path.
    pub name: String,
    pub entries: Vec<Entry>,
}

fn needs_recursive() -> anyhow::Error {
    Stop::usage("it is a folder").hint("use -r to copy folders with everything in them").into()
}

fn too_much() -> anyhow::Error {
    Stop::usage(format!("it has more than {ENTRIES_MAX} files, or folders deeper than {DEPTH_MAX}"))
        .hint("copy an archive instead: tar -c DIR | tenure sandbox exec -i SANDBOX -- tar -x")
        .into()
}

pub fn local(path: &Path, recursive: bool) -> anyhow::Result<Tree> {
    let metadata = std::fs::metadata(path)?;
    // `.` and `..` have a name, too.
    let absolute = std::fs::canonicalize(path)?;
    let named = path.file_name().or_else(|| absolute.file_name());
    let name = named.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !metadata.is_dir() {
        anyhow::ensure!(metadata.is_file(), "it is neither a file nor a folder");
        let (size, mode) = (metadata.len(), metadata.permissions().mode());
        return Ok(Tree { name, entries: vec![Entry { name: String::new(), size, mode, is_dir: false }] });
    }
    if !recursive {
        return Err(needs_recursive());
    }
    let mut entries = Vec::new();
    local_folder(path, "", 0, &mut entries)?;
    Ok(Tree { name, entries })
}

fn local_folder(path: &Path, prefix: &str, depth: usize, entries: &mut Vec<Entry>) -> anyhow::Result<()> {
    let mut children: Vec<_> = std::fs::read_dir(path)?.collect::<Result<_, _>>()?;
    children.sort_by_key(std::fs::DirEntry::file_name);
    if children.is_empty() {
        entries.push(Entry { name: prefix.to_owned(), size: 0, mode: 0, is_dir: true });
    }
    for child in children {
        if entries.len() >= ENTRIES_MAX || depth >= DEPTH_MAX {
            return Err(too_much());
        }
        let Ok(name) = child.file_name().into_string() else {
            warn(&format!("{} was left out: its name is not UTF-8", child.path().display()));
            continue;
        };
        let name = joined(prefix, &name);
        match std::fs::metadata(child.path()) {
            Ok(metadata) if metadata.is_dir() => local_folder(&child.path(), &name, depth + 1, entries)?,
            Ok(metadata) if metadata.is_file() => {
                let (size, mode) = (metadata.len(), metadata.permissions().mode());
                entries.push(Entry { name, size, mode, is_dir: false });
            }
            Ok(_) => warn(&format!("{} was left out: it is neither a file nor a folder", child.path().display())),
            Err(error) => warn(&format!("{} was left out: {error}", child.path().display())),
        }
    }
    Ok(())
}

pub async fn remote(sandbox: &Sandbox, path: &str, recursive: bool) -> anyhow::Result<Tree> {
    let file = sandbox.stat_file(path).await?;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    anyhow::ensure!(name.is_empty() || is_plain(&name), "its name is not usable here");
    if !file.is_dir {
        return Ok(Tree { name, entries: vec![entry(String::new(), &file)] });
    }
    if !recursive {
        return Err(needs_recursive());
    }
    let mut entries = Vec::new();
    let mut folders = vec![(String::new(), 0)];
    while let Some((prefix, depth)) = folders.pop() {
        let folder =
            if prefix.is_empty() { path.to_owned() } else { format!("{}/{prefix}", path.trim_end_matches('/')) };
        let children = sandbox.list_files(&folder).await?;
        if children.is_empty() {
            entries.push(Entry { name: prefix.clone(), size: 0, mode: 0, is_dir: true });
        }
        for child in children {
            if entries.len() + folders.len() >= ENTRIES_MAX || depth >= DEPTH_MAX {
                return Err(too_much());
            }
            // Code in the sandbox chose the name: it must not lead out of the target.
            let name = child.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            anyhow::ensure!(is_plain(name), "{folder} has a file whose name is not usable here");
            let name = joined(&prefix, name);
            if child.is_dir {
                folders.push((name, depth + 1));
            } else {
                entries.push(entry(name, &child));
            }
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Tree { name, entries })
}

fn entry(name: String, file: &FileInfo) -> Entry {
    let mode = u32::from_str_radix(&file.mode, 8).unwrap_or(0o644);
    Entry { name, size: u64::try_from(file.size).unwrap_or_default(), mode, is_dir: false }
}

/// Whether a name is that of one file in one folder.
fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_with_everything_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("a/empty")).unwrap();
        std::fs::write(root.join("a/file"), "abc").unwrap();
        std::fs::write(root.join("top"), "").unwrap();
        std::os::unix::fs::symlink(&root, root.join("a/loop")).unwrap();
        assert!(local(&root, true).is_err(), "an endless tree");
        std::fs::remove_file(root.join("a/loop")).unwrap();
        let tree = local(&root, true).unwrap();
        let found: Vec<_> = tree.entries.iter().map(|one| (one.name.as_str(), one.size, one.is_dir)).collect();
        assert_eq!(found, [("a/empty", 0, true), ("a/file", 3, false), ("top", 0, false)]);
        assert_eq!(tree.name, "root");
        assert!(local(&root, false).is_err());
        assert_eq!(local(&root.join("a/file"), false).unwrap().entries[0].size, 3);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a/b", "a\0"] {
            assert!(!is_plain(name), "{name:?}");
        }
        assert!(is_plain("..a") && is_plain("a b"));
    }
}
