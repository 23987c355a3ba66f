//! New files: complete or not at all, and never over one that exists.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::NamedTempFile;

use crate::exit::Stop;

/// Files that get their names together, once all of them are written.
#[derive(Debug, Default)]
pub struct NewFiles {
    prepared: Vec<(NamedTempFile, PathBuf)>,
}

impl NewFiles {
    /// Writes a file beside its place. The folder must exist.
    pub fn add(&mut self, path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let write = || -> io::Result<NamedTempFile> {
            // Temporary files are made with mode 0600.
            let mut file = NamedTempFile::new_in(folder_of(path))?;
            writeln!(file, "{}", text.trim_end_matches('\n'))?;
            file.as_file().set_permissions(Permissions::from_mode(mode))?;
            file.as_file().sync_all()?;
            Ok(file)
        };
        let file = write().map_err(|error| Stop::usage(format!("{} could not be written: {error}", path.display())))?;
        self.prepared.push((file, path.to_owned()));
        Ok(())
    }

    /// Gives the files their names. If one cannot have its name, the others are removed again.
    pub fn place(self) -> anyhow::Result<()> {
        let mut placed: Vec<PathBuf> = Vec::new();
        for (file, path) in self.prepared {
            if let Err(error) = place(file, &path) {
                for own in placed {
                    std::fs::remove_file(&own).with_context(|| format!("{} remains", own.display()))?;
                }
                return Err(error);
            }
            placed.push(path);
        }
        Ok(())
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn place(file: NamedTempFile, path: &Path) -> anyhow::Result<()> {
    match file.persist_noclobber(path) {
        Ok(_) => File::open(folder_of(path))
            .and_then(|folder| folder.sync_all())
            .with_context(|| format!("{} may not survive a crash", path.display())),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(path)),
        Err(error) => Err(error.error).with_context(|| format!("{} could not be written", path.display())),
    }
}

fn exists(path: &Path) -> anyhow::Error {
    let stop = Stop::usage(format!("{} exists, and files are never overwritten", path.display()));
    stop.hint("name another file, or move this one away").into()
}
