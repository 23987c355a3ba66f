//! Downloading a bundle.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tenure_bundle::limits::BUNDLE_BYTES;
use tenure_bundle::{Archive, BundleError, FileReader, Language};
use tenure_client::TaskError;
use tenure_client::dispatch::Task;
use tokio::io::AsyncWriteExt;

use super::Site;

/// Where bundles are that have no address of their own.
const OWN_PATH: &str = "/v1/task/bundle";
const CAPABILITY_HEADER: &str = "x-trace-task-capability";
/// The longest wait for the next piece of a bundle.
const SILENCE: Duration = Duration::from_secs(30);

/// What a claim says of the bundle of its task.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    pub sha256: String,
    pub runtime: Language,
    #[serde(default)]
    pub env: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    pub object_store: ObjectStore,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ObjectStore {
    pub bucket: Option<String>,
    /// Absent: the control plane serves it.
    pub endpoint_url: Option<String>,
}

impl Told {
    pub(super) fn of(task: &Task) -> Result<Self, TaskError> {
        let bundle = task.raw().bundle.as_ref().ok_or_else(|| {
            TaskError::configuration("the task has no bundle: a job of runtime sandbox names one with `udf.bundle_id`")
        })?;
        bundle.decode().map_err(|error| TaskError::infrastructure(format!("the bundle of the claim: {error}")))
    }
}

impl Site {
    /// The bundle, whose bytes are those that were uploaded.
    pub(super) async fn fetch(&self, task: &Task, told: &Told) -> Result<Archive<FileReader>, TaskError> {
        let file = tempfile::tempfile().map_err(|error| trouble(&format!("no temporary file: {error}")))?;
        let mut file = tokio::fs::File::from_std(file);
        let digest = self.download(task, &mut file).await?;
        if digest != told.sha256 {
            let message = "the bundle does not have the SHA-256 that it was uploaded with: it is not run";
            return Err(TaskError::permanent("DATA_QUALITY", message));
        }
        let file = file.into_std().await;
        let opened = tokio::task::spawn_blocking(move || Archive::open_file(file)).await;
        opened.map_err(|error| trouble(&error.to_string()))?.map_err(bad)
    }

    /// Returns the digest of what was written.
    async fn download(&self, task: &Task, file: &mut tokio::fs::File) -> Result<String, TaskError> {
        let url = &task.raw().bundle_url;
        let own = url.ends_with(OWN_PATH);
        let request = if own {
            let base = self.server.as_str().trim_end_matches('/');
            self.http.get(format!("{base}{OWN_PATH}")).header(CAPABILITY_HEADER, task.capability_token())
        } else {
            // Whoever has the address may read it: no token goes there.
            self.http.get(url)
        };
        let sent = tokio::time::timeout(SILENCE, request.send()).await.map_err(|_| trouble("no answer in time"))?;
        let mut answer = sent.map_err(|error| trouble(&error.without_url().to_string()))?;
        if !answer.status().is_success() {
            return Err(trouble(&format!("the answer was {}", answer.status())));
        }
        let (mut hash, mut bytes) = (Sha256::new(), 0);
        loop {
            let piece = tokio::time::timeout(SILENCE, answer.chunk()).await.map_err(|_| trouble("it stood still"))?;
            let Some(piece) = piece.map_err(|error| trouble(&error.without_url().to_string()))? else { break };
            bytes += piece.len() as u64;
            if bytes > BUNDLE_BYTES {
                return Err(TaskError::permanent("DATA_QUALITY", "the bundle has more bytes than a bundle can have"));
            }
            hash.update(&piece);
            file.write_all(&piece).await.map_err(|error| trouble(&error.to_string()))?;
        }
        file.flush().await.map_err(|error| trouble(&error.to_string()))?;
        Ok(tenure_bundle::hex(hash.finalize()))
    }
}

/// The task may have more luck the next time.
fn trouble(why: &str) -> TaskError {
    TaskError::infrastructure(format!("the bundle could not be downloaded: {why}"))
}

pub(super) fn bad(error: BundleError) -> TaskError {
    match error {
        BundleError::Io(error) => TaskError::infrastructure(format!("the bundle could not be read: {error}")),
        error => TaskError::permanent("DATA_QUALITY", format!("the bundle is not valid: {error}")),
    }
}

/// What the code printed, as one JSON object.
pub(super) fn said(stdout: &[u8]) -> Result<serde_json::Map<String, Value>, TaskError> {
    let wrong = |why: &str| {
        let message = format!("standard output must be one JSON object, and {why}: print everything else to stderr");
        TaskError::permanent("USER_CODE", message)
    };
    match serde_json::from_slice(stdout) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(wrong("is another value")),
        Err(_) if stdout.trim_ascii().is_empty() => Err(wrong("is empty")),
        Err(_) => Err(wrong("cannot be read as one")),
    }
}
