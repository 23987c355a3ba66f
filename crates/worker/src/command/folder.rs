use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tenure_client::{TaskContext, TaskError};

/// The private work folder of a task, with its payload. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) async fn create(parent: &Path, task: &TaskContext) -> Result<Self, TaskError> {
        let (parent, payload) = (parent.to_owned(), task.raw_payload().text());
        let create = move || -> io::Result<Self> {
            let private = Permissions::from_mode(0o700);
            let folder = Self(tempfile::Builder::new().prefix("task-").permissions(private).tempdir_in(parent)?);
            File::create_new(folder.payload_file())?.write_all(payload.as_bytes())?;
            Ok(folder)
        };
        let created = tokio::task::spawn_blocking(create).await;
        created
            .map_err(io::Error::from)
            .flatten()
            .map_err(|error| TaskError::infrastructure(format!("the work folder could not be created: {error}")))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The payload from its beginning, to be standard input. A file cannot fill up as a pipe can.
    pub(crate) fn payload(&self) -> Result<File, TaskError> {
        let open = File::open(self.payload_file());
        open.map_err(|error| TaskError::infrastructure(format!("the payload file is gone: {error}")))
    }

    pub(crate) fn payload_file(&self) -> PathBuf {
        self.path().join("payload.json")
    }

    pub(crate) fn result_file(&self) -> PathBuf {
        self.path().join("result.json")
    }

    /// Removes the folder without holding up other tasks, however much is in it.
    pub(crate) async fn remove(self) {
        let path = self.path().to_owned();
        let removed = tokio::task::spawn_blocking(move || self.0.close()).await;
        if let Err(error) = removed.map_err(io::Error::from).flatten() {
            tracing::warn!(file.path = %path.display(), %error, "cannot remove a work folder");
        }
    }
}

/// Reads a regular file of up to `limit` bytes; `None` if there is none, `Err` with its size if it is larger.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, u64> {
    // The process could have left a pipe or a device here, and opening one may block for ever.
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() <= limit => Ok(fs::read(path).ok()),
        Ok(meta) if meta.is_file() => Err(meta.len()),
        _ => Ok(None),
    }
}
