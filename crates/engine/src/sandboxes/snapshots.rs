//! Snapshots: the writable files of a sandbox as an archive, kept by the control plane in pieces.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tenure_core::command::Reach;
use tenure_core::sandbox::{Sandbox, placement, template};
use tenure_store::{SNAPSHOT_PIECE, SandboxStore, SnapshotRow};

use super::workers::{Archive, ArchiveBytes, Target};
use super::{Caller, ErrorClass, SandboxError, Sandboxes};
use crate::random::random_bits;

const SNAPSHOT_WITHIN: Duration = Duration::from_secs(600);
const MAX_NAME_BYTES: usize = 256;
const MAX_LIST: usize = 10_000;

impl Sandboxes {
    /// Takes a snapshot of a running sandbox.
    pub async fn create_snapshot(&self, id: &str, name: &str, caller: &Caller) -> Result<SnapshotRow, SandboxError> {
        if name.len() > MAX_NAME_BYTES {
            return Err(SandboxError::bad_request("invalid", format!("name: at most {MAX_NAME_BYTES} bytes")));
        }
        let row = self.row(id, &caller.reach).await?;
        let taken = self.take_snapshot(&row, name, caller).await;
        self.audit(
            caller,
            "snapshot",
            &row,
            taken.as_ref().map(drop),
            taken.as_ref().ok().map(|row| row.id.to_string()),
        )
        .await;
        taken
    }

    async fn take_snapshot(&self, row: &Sandbox, name: &str, caller: &Caller) -> Result<SnapshotRow, SandboxError> {
        let _permit = self.inner.archives.acquire().await.map_err(|_| SandboxError::stopping())?;
        self.check_snapshots(&row.id, &caller.reach).await?;
        let snapshot: Arc<str> = format!("snap-{:08x}", random_bits() as u32).into();
        let room = self.snapshot_room(&row.tenant).await?;
        let archive = self.with_fresh_lease(row, caller, |route| {
            let snapshot = Arc::clone(&snapshot);
            async move {
                let terms = route.terms(SNAPSHOT_WITHIN);
                self.workers().snapshot(&route.target, &terms, &route.runtime(), &snapshot).await
            }
        });
        let archive = archive.await?;
        if archive.size_bytes > room {
            return Err(too_large(archive.size_bytes, room));
        }
        let target = self.route(&row.id, &caller.reach).await?.target;
        let stored = tokio::time::timeout(SNAPSHOT_WITHIN, self.fetch(&snapshot, &target, room)).await;
        let stored = stored
            .map_err(|_| SandboxError::new(ErrorClass::Timeout, "timeout", "the archive did not arrive in time"))??;
        if stored != archive {
            let message = "the archive that arrived is not the one that the worker made: try again";
            return Err(SandboxError::new(ErrorClass::Internal, "checksum_mismatch", message));
        }
        let snapshot = SnapshotRow {
            id: snapshot,
            tenant: Arc::clone(&row.tenant),
            owner: row.owner.clone(),
            name: name.to_owned(),
            sandbox: Arc::clone(&row.id),
            image: row.spec.image.clone(),
            provider: row.spec.provider.clone(),
            size_bytes: stored.size_bytes,
            sha256: stored.sha256,
            created_at: self.now().await?,
        };
        // Others may have stored theirs meanwhile.
        let room = self.snapshot_room(&row.tenant).await?;
        if snapshot.size_bytes > room {
            return Err(too_large(snapshot.size_bytes, room));
        }
        Ok(self.rows().record_snapshot(&snapshot).await?)
    }

    async fn check_snapshots(&self, id: &str, reach: &Reach) -> Result<(), SandboxError> {
        let route = self.route(id, reach).await?;
        if route.target.can(template::SNAPSHOTS) {
            return Ok(());
        }
        let message = format!("worker '{}' takes no snapshots", route.target.worker);
        Err(SandboxError::bad_request("snapshots_unsupported", message))
    }

    async fn snapshot_room(&self, tenant: &str) -> Result<u64, SandboxError> {
        let used = self.rows().snapshot_bytes(tenant).await?;
        Ok(self.settings().max_snapshot_bytes.saturating_sub(used))
    }

    /// A call that needs a lease with enough time.
    async fn with_fresh_lease<T, F, R>(&self, row: &Sandbox, caller: &Caller, call: F) -> Result<T, SandboxError>
    where
        F: Fn(super::Route) -> R + Send + Sync,
        R: Future<Output = Result<T, super::CallError>> + Send,
        T: Send,
    {
        let (worker, _) = self.owner_of(row).await?;
        if let Some(worker) = worker {
            self.lease_for(row, &worker).await?;
        }
        self.call(&row.id, &caller.reach, call).await
    }

    /// Reads an archive from a worker and stores it piece by piece.
    async fn fetch(&self, snapshot: &str, target: &Target, room: u64) -> Result<Archive, SandboxError> {
        let terms = self.terms(None, SNAPSHOT_WITHIN);
        let mut content = self.workers().get_snapshot(target, &terms, snapshot).await?;
        let (mut hasher, mut size_bytes, mut index) = (Sha256::new(), 0_u64, 0_u32);
        let mut piece = Vec::with_capacity(SNAPSHOT_PIECE);
        while let Some(part) = content.next().await {
            let part = part.map_err(|error| {
                SandboxError::unavailable("worker_unreachable", format!("the archive was cut short: {error}"))
            })?;
            hasher.update(&part);
            size_bytes += part.len() as u64;
            if size_bytes > room {
                return Err(too_large(size_bytes, room));
            }
            let mut rest = &part[..];
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(rest.len().min(SNAPSHOT_PIECE - piece.len()));
                piece.extend_from_slice(head);
                rest = tail;
                if piece.len() == SNAPSHOT_PIECE {
                    let full = std::mem::replace(&mut piece, Vec::with_capacity(SNAPSHOT_PIECE));
                    self.rows().put_snapshot_piece(snapshot, index, full).await?;
                    index += 1;
                }
            }
        }
        if !piece.is_empty() {
            self.rows().put_snapshot_piece(snapshot, index, piece).await?;
        }
        Ok(Archive { size_bytes, sha256: hex(&hasher.finalize()) })
    }

    /// Sends a stored archive to a worker, checked on the way.
    pub(super) async fn send_snapshot(&self, id: &str, target: &Target, reach: &Reach) -> Result<(), SandboxError> {
        let _permit = self.inner.archives.acquire().await.map_err(|_| SandboxError::stopping())?;
        let snapshot = self.snapshot(id, reach).await?;
        let content = pieces(Arc::clone(&self.inner.rows), &snapshot);
        let terms = self.terms(None, SNAPSHOT_WITHIN);
        let stored =
            Self::within(&terms, self.workers().put_snapshot(target, &terms, id, snapshot.size_bytes, content)).await?;
        if stored.sha256 != snapshot.sha256 {
            let message = format!("snapshot {id} did not arrive at worker '{}' as it was stored", target.worker);
            return Err(SandboxError::new(ErrorClass::Internal, "checksum_mismatch", message));
        }
        Ok(())
    }

    /// Swaps the files of a running sandbox for those of a snapshot. Its processes end.
    pub async fn restore(&self, id: &str, snapshot: &str, caller: &Caller) -> Result<Sandbox, SandboxError> {
        let row = self.row(id, &caller.reach).await?;
        let restored = self.restore_row(&row, snapshot, caller).await;
        self.audit(caller, "restore", &row, restored.as_ref().copied(), Some(snapshot.to_owned())).await;
        restored?;
        self.row(id, &caller.reach).await
    }

    async fn restore_row(&self, row: &Sandbox, snapshot: &str, caller: &Caller) -> Result<(), SandboxError> {
        let stored = self.snapshot(snapshot, &caller.reach).await?;
        if stored.image != row.spec.image || !placement::same_provider(&stored.provider, &row.spec.provider) {
            let message =
                format!("snapshot {snapshot} needs image '{}' and provider '{}'", stored.image, stored.provider);
            return Err(SandboxError::bad_request("snapshot_mismatch", message));
        }
        if self.has_execs(&row.id) {
            let message = format!("a command runs in sandbox {}: restore it when the command has ended", row.id);
            return Err(SandboxError::conflict("exec_running", message));
        }
        self.check_snapshots(&row.id, &caller.reach).await?;
        let target = self.route(&row.id, &caller.reach).await?.target;
        self.send_snapshot(snapshot, &target, &caller.reach).await?;
        let restoring = self.with_fresh_lease(row, caller, |route| async move {
            let terms = route.terms(SNAPSHOT_WITHIN);
            self.workers().restore(&route.target, &terms, &route.runtime(), snapshot).await
        });
        restoring.await
    }

    pub async fn snapshot(&self, id: &str, reach: &Reach) -> Result<SnapshotRow, SandboxError> {
        self.rows().snapshot(id, reach).await?.ok_or_else(|| SandboxError::not_found("snapshot", id))
    }

    /// Newest first; of one sandbox, or of all that the reach covers.
    pub async fn snapshots(&self, reach: &Reach, sandbox: Option<&str>) -> Result<Vec<SnapshotRow>, SandboxError> {
        Ok(self.rows().snapshots(reach, sandbox, MAX_LIST).await?)
    }

    pub async fn delete_snapshot(&self, id: &str, reach: &Reach) -> Result<(), SandboxError> {
        if self.rows().delete_snapshot(id, reach).await? {
            Ok(())
        } else {
            Err(SandboxError::not_found("snapshot", id))
        }
    }
}

/// The archive of a snapshot, one piece in memory at a time.
fn pieces(rows: Arc<dyn SandboxStore>, snapshot: &SnapshotRow) -> ArchiveBytes {
    let count = u32::try_from(snapshot.size_bytes.div_ceil(SNAPSHOT_PIECE as u64)).unwrap_or(u32::MAX);
    let id = Arc::clone(&snapshot.id);
    let read = move |index| {
        let (rows, id) = (Arc::clone(&rows), Arc::clone(&id));
        async move {
            match rows.snapshot_piece(&id, index).await {
                Ok(Some(piece)) => Ok(Bytes::from(piece)),
                Ok(None) => Err(io::Error::other("a piece of the snapshot is missing")),
                Err(error) => Err(io::Error::other(error.to_string())),
            }
        }
    };
    Box::pin(futures_util::stream::iter(0..count).then(read))
}

fn too_large(size_bytes: u64, room: u64) -> SandboxError {
    let message = format!("the snapshot of {size_bytes} bytes does not fit: the tenant has room for {room} more");
    SandboxError::new(ErrorClass::ResourceLimit, "max_snapshot_bytes", message)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
