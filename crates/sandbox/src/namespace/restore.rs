//! Snapshots of the writable layer, and sandboxes made from them.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::calls::blocking;
use super::provider::Inner;
use super::sandbox::Sandbox;
use super::snapshot;
use super::spawn::IDS_PER_SANDBOX;
use crate::error::{Error, ErrorKind, Result};
use crate::images::Image;
use crate::provider::{RuntimeId, Stream};

/// What an archive may have beside the bytes of its files: headers, and what does not compress.
const ARCHIVE_ALLOWANCE: u64 = 256 << 20;

/// How long commands may take to stop.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

impl Inner {
    /// Archives the writable layer of a sandbox into a file that has no name. Its commands are stopped meanwhile.
    pub fn pack(&self, sandbox: &Sandbox) -> Result<File> {
        let record = &sandbox.record;
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::StorageFull => ErrorKind::ResourceLimit,
                _ => ErrorKind::Internal,
            };
            Error::new(kind, format!("cannot archive the sandbox {}: {error}", record.runtime_id)).with_source(error)
        };
        let was_frozen = record.groups.is_frozen().map_err(failed)?;
        if self.capabilities.freeze && !was_frozen {
            record.groups.set_frozen(true).map_err(failed)?;
            record.groups.wait_frozen(FREEZE_TIMEOUT).map_err(failed)?;
        }
        let packed = self
            .nameless_file()
            .and_then(|file| snapshot::pack(&sandbox.writable, self.first_id_of(sandbox), record.disk_bytes, file));
        if self.capabilities.freeze && !was_frozen {
            record.groups.set_frozen(false).map_err(failed)?;
        }
        let mut file = packed.map_err(failed)?;
        io::Seek::rewind(&mut file).map_err(failed)?;
        Ok(file)
    }

    /// Makes a new sandbox from an archive and puts it in the place of the old one, which ends when the new one is ready.
    pub async fn restore(self: &Arc<Self>, id: &RuntimeId, archive: Stream) -> Result<()> {
        let old = self.get(id)?;
        let max_bytes = old.record.disk_bytes.saturating_add(ARCHIVE_ALLOWANCE);
        let archive = self.receive(archive, max_bytes).await?;
        let _changes = old.changes.write().await;
        let inner = Arc::clone(self);
        let disk_bytes = old.record.disk_bytes;
        let plain = blocking(move || {
            let plain = inner.nameless_file().map_err(|error| no_room(&error))?;
            snapshot::verified(archive, disk_bytes, plain)
        })
        .await?;
        let image = match &old.record.image_path {
            Some(path) => Image::Rootfs { path: path.clone(), digest: old.record.image_resolved.clone() },
            None => Image::Host,
        };
        let new = self.replace(&old, image, plain).await?;
        if let Some(deadlines) = old.remaining_deadlines() {
            new.client().set_deadlines(deadlines).await?;
        }
        self.sandboxes().insert(id.clone(), Arc::clone(&new));
        let (inner, old) = (Arc::clone(self), Arc::clone(&old));
        blocking(move || inner.end_instance(&old)).await
    }

    /// Copies a stream into a file that has no name.
    async fn receive(&self, archive: Stream, max_bytes: u64) -> Result<File> {
        let file = self.nameless_file().map_err(|error| no_room(&error))?;
        let mut file = tokio::fs::File::from_std(file);
        let copied = tokio::io::copy(&mut archive.take(max_bytes + 1), &mut file)
            .await
            .map_err(|error| Error::invalid(format!("the archive cannot be read: {error}")).with_source(error))?;
        if copied > max_bytes {
            return Err(Error::invalid("the archive is larger than the disk of the sandbox"));
        }
        file.flush().await.map_err(|error| no_room(&error))?;
        let mut file = file.into_std().await;
        io::Seek::rewind(&mut file).map_err(|error| no_room(&error))?;
        Ok(file)
    }

    fn nameless_file(&self) -> io::Result<File> {
        let path = self.settings.state_dir.join(format!("archive-{}", uuid::Uuid::new_v4().simple()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(path)?;
        Ok(file)
    }

    /// What id 0 of a sandbox is on this machine.
    fn first_id_of(&self, sandbox: &Sandbox) -> u32 {
        if rustix::process::geteuid().is_root() {
            self.settings.first_id + sandbox.record.slot * IDS_PER_SANDBOX
        } else {
            rustix::process::geteuid().as_raw().wrapping_sub(sandbox.record.user)
        }
    }
}

fn no_room(error: &io::Error) -> Error {
    Error::internal(format!("cannot keep an archive in the state directory: {error}"))
}

/// Deadlines that were set, and when.
pub(super) type SetDeadlines = (Instant, crate::spec::Deadlines);
