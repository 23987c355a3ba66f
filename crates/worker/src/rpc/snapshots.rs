//! Snapshots on their way between a sandbox and the control plane.
//!
//! The control plane keeps them. What is here is for a spawn or a download that follows soon: it is removed an hour after
//! its last use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::body::Body;
use axum::extract::{Path as PathParam, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use tenure_contract::worker_rpc::{Code, SNAPSHOT_SHA256_HEADER, SnapshotResult};
use tenure_sandbox::Stream;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::io::{ReaderStream, StreamReader};

use super::body;
use super::refusal::Refusal;
use super::state::Rpc;

const MAX_ID_BYTES: usize = 128;
const KEPT: Duration = Duration::from_secs(3600);
const PART_BYTES: usize = 256 << 10;

/// The folder of snapshots.
#[derive(Debug)]
pub(super) struct Snapshots {
    folder: PathBuf,
    max_bytes: u64,
}

/// A snapshot that was stored.
#[derive(Debug)]
pub(super) struct Stored {
    pub size_bytes: u64,
    pub sha256: String,
}

/// A snapshot that is being read.
pub(super) struct Archive {
    pub size_bytes: u64,
    pub sha256: String,
    pub content: Stream,
}

/// Letters, digits, `-`, `_` and `.`, and not hidden: the id becomes the name of a file.
pub(super) fn check_id(id: &str) -> Result<&str, Refusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.starts_with('.') || !id.bytes().all(plain) {
        return Err(Refusal::invalid("the snapshot id is not made of letters, digits, '-', '_' and '.'"));
    }
    Ok(id)
}

impl Snapshots {
    /// Removes what an interrupted write left.
    pub(super) fn open(data_dir: &Path, max_bytes: u64) -> io::Result<Self> {
        let folder = data_dir.join("snapshots");
        fs::create_dir_all(&folder)?;
        let snapshots = Self { folder, max_bytes };
        for entry in fs::read_dir(&snapshots.folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
                fs::remove_file(path)?;
            }
        }
        snapshots.remove_old()?;
        Ok(snapshots)
    }

    /// Writes an archive beside its place and renames it when it is complete.
    pub(super) async fn store(&self, id: &str, mut content: Stream) -> Result<Stored, Refusal> {
        let used = self.remove_old().map_err(|error| failed("kept", &error))?;
        let room = self.max_bytes.saturating_sub(used);
        let partial = Partial::new(self.folder.join(format!(".{id}.{}", crate::node::request_id())));
        let mut file = File::create(&partial.path).await.map_err(|error| failed("written", &error))?;
        let (mut hasher, mut size_bytes, mut part) = (Sha256::new(), 0, Vec::with_capacity(PART_BYTES));
        loop {
            part.clear();
            let count = content.read_buf(&mut part).await.map_err(|error| failed("read", &error))?;
            if count == 0 {
                break;
            }
            size_bytes += count as u64;
            if size_bytes > room {
                let message = "this worker has no room for the snapshot: try again in an hour, or another worker";
                return Err(Refusal::call(Code::ProviderUnavailable, message));
            }
            hasher.update(&part);
            file.write_all(&part).await.map_err(|error| failed("written", &error))?;
        }
        file.flush().await.map_err(|error| failed("written", &error))?;
        let sha256 = hex(&hasher.finalize());
        // The checksum is part of the name, so that the two cannot differ.
        self.remove(id).map_err(|error| failed("replaced", &error))?;
        let place = self.folder.join(format!("{id}@{sha256}"));
        fs::rename(&partial.path, place).map_err(|error| failed("written", &error))?;
        Ok(Stored { size_bytes, sha256 })
    }

    pub(super) async fn open_archive(&self, id: &str) -> Result<Archive, Refusal> {
        let found = self.find(id).map_err(|error| failed("found", &error))?;
        let Some((path, sha256)) = found else {
            return Err(Refusal::call(Code::NotFound, format!("this worker does not have the snapshot {id}")));
        };
        let file = File::open(&path).await.map_err(|error| failed("opened", &error))?;
        let size_bytes = file.metadata().await.map_err(|error| failed("opened", &error))?.len();
        // It is in use: the hour begins again.
        let touched = file.try_clone().await.map_err(|error| failed("opened", &error))?.into_std().await;
        drop(touched.set_modified(SystemTime::now()));
        Ok(Archive { size_bytes, sha256, content: Box::pin(file) })
    }

    fn find(&self, id: &str) -> io::Result<Option<(PathBuf, String)>> {
        let prefix = format!("{id}@");
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if let Some(sha256) = entry.file_name().to_string_lossy().strip_prefix(&prefix) {
                return Ok(Some((entry.path(), sha256.to_owned())));
            }
        }
        Ok(None)
    }

    fn remove(&self, id: &str) -> io::Result<()> {
        while let Some((path, _)) = self.find(id)? {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Removes what was not used for a while, and returns how many bytes the rest takes.
    fn remove_old(&self) -> io::Result<u64> {
        let mut used = 0;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Ok(metadata) = entry.metadata() else { continue };
            let age = metadata.modified()?.elapsed().unwrap_or_default();
            if age > KEPT {
                fs::remove_file(entry.path())?;
            } else {
                used += metadata.len();
            }
        }
        Ok(used)
    }
}

/// A file that is removed unless it was renamed.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

fn failed(what: &str, error: &io::Error) -> Refusal {
    Refusal::call(Code::Internal, format!("the snapshot could not be {what}: {error}")).executed()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Rpc {
    async fn snapshot_get(&self, headers: &HeaderMap, id: &str) -> Result<Response, Refusal> {
        self.route_caller(headers, "worker:files")?;
        let archive = self.snapshots.open_archive(check_id(id)?).await?;
        let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(archive.content, PART_BYTES)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(archive.size_bytes));
        if let Ok(sha256) = HeaderValue::from_str(&archive.sha256) {
            headers.insert(SNAPSHOT_SHA256_HEADER, sha256);
        }
        Ok(response)
    }

    async fn snapshot_put(&self, headers: &HeaderMap, id: &str, body: Body) -> Result<SnapshotResult, Refusal> {
        self.route_caller(headers, "worker:files")?;
        let content = StreamReader::new(Box::pin(body::pieces(body, self.settings.times.body)));
        let stored = self.snapshots.store(check_id(id)?, Box::pin(content)).await?;
        Ok(SnapshotResult { snapshot_id: id.to_owned(), size_bytes: stored.size_bytes, sha256: stored.sha256 })
    }
}

pub(super) async fn get(State(rpc): State<Arc<Rpc>>, PathParam(id): PathParam<String>, headers: HeaderMap) -> Response {
    match rpc.snapshot_get(&headers, &id).await {
        Ok(response) => response,
        Err(refusal) => rpc.route_refusal(&headers, &refusal),
    }
}

pub(super) async fn put(State(rpc): State<Arc<Rpc>>, PathParam(id): PathParam<String>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match rpc.snapshot_put(&parts.headers, &id, body).await {
        Ok(result) => Json(result).into_response(),
        Err(refusal) => rpc.route_refusal(&parts.headers, &refusal),
    }
}
