//! What a task says about datasets, and what of it is written when the task's report counts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::buffer::NewPublish;
use super::id::{DatasetId, InvalidationId, JobId, VersionId};

/// Where in a dataset something is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Up to and including this row.
    Cursor(i64),
    Partition(Partition),
}

/// A part of a dataset that is written as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Partition {
    pub key: Arc<str>,
    /// For a key that is a range: its numbers as the key has them. Whether the end is inside is up to the DAG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<(i64, i64)>,
}

impl Position {
    /// Names the position within a version, in the store and in the keys of tasks.
    pub fn text(&self) -> String {
        match self {
            Self::Cursor(cursor) => format!("cursor:{cursor}"),
            Self::Partition(partition) => format!("partition:{}", partition.key),
        }
    }

    pub fn partition(&self) -> Option<&Partition> {
        match self {
            Self::Cursor(_) => None,
            Self::Partition(partition) => Some(partition),
        }
    }
}

/// Somebody wrote to a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    pub dataset: DatasetId,
    pub version: VersionId,
    pub position: Position,
}

/// An output that a task has made. The partition, if it is one, points to it from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputCommit {
    pub dataset: DatasetId,
    pub version: VersionId,
    pub position: Position,
    pub location: Arc<str>,
    pub row_count: Option<i64>,
    pub bytes: Option<i64>,
    pub schema_hash: Option<Arc<str>>,
    /// The files that queries see, if they are fixed: a manifest as JSON.
    pub manifest: Option<Arc<str>>,
    /// The name that the worker gave the artifact. The same name with other contents is refused.
    pub artifact: Option<VersionId>,
}

/// The name of an artifact: unique in its dataset.
pub type ArtifactName = (DatasetId, VersionId);

/// What a name stands for, once and for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    pub name: ArtifactName,
    /// The generation that it was published in.
    pub version: VersionId,
    pub digest: [u8; 32],
}

impl OutputCommit {
    /// The artifact that it names, if it names one. Its contents are where it is, which part of the dataset it holds, and
    /// the hash that came with it. Sizes say nothing more.
    pub fn named_artifact(&self) -> Option<Artifact> {
        let name = (self.dataset, self.artifact?);
        let mut digest = Sha256::new();
        for part in [&self.position.text(), &*self.location, self.schema_hash.as_deref().unwrap_or_default()] {
            digest.update(part.len().to_be_bytes());
            digest.update(part);
        }
        Some(Artifact { name, version: self.version, digest: digest.finalize().into() })
    }
}

/// How far a job has read one of its inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// Up to and including this row. Never moves back.
    UpTo { version: VersionId, cursor: i64 },
    /// This partition, as of this generation.
    Partition { version: VersionId, key: Arc<str>, generation: i64 },
}

/// Changed data. Everything that was derived from it must be computed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInvalidation {
    pub id: InvalidationId,
    pub dataset: DatasetId,
    pub version: VersionId,
    pub scope: Scope,
    pub reason: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "scope", rename_all = "snake_case")]
pub enum Scope {
    Partition {
        partition_key: Arc<str>,
    },
    /// Rows by their values: JSON of columns and bounds.
    RowRange {
        row_filter: Arc<str>,
    },
}

/// Everything that a report of a task writes about datasets, in the transaction of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataReport {
    pub org: Arc<str>,
    pub job: JobId,
    /// What is wrong with the contents. It is answered only to the holder of the attempt, and nothing is written.
    pub refusal: Option<DataRefusal>,
    pub events: Vec<NewEvent>,
    pub outputs: Vec<OutputCommit>,
    pub reads: Vec<Read>,
    pub invalidations: Vec<NewInvalidation>,
    /// The invalidation that the task was made for.
    pub invalidation: Option<InvalidationId>,
    /// Rows for buffered datasets.
    pub publishes: Vec<NewPublish>,
    /// What the job keeps for its next task, as JSON.
    pub operator_state: Option<Arc<str>>,
    /// Counts only while the attempt has its lease: the state was made from that which the task before left.
    pub live_only: bool,
}

impl DataReport {
    /// Says nothing yet.
    pub const fn of(org: Arc<str>, job: JobId) -> Self {
        Self {
            org,
            job,
            refusal: None,
            events: Vec::new(),
            outputs: Vec::new(),
            reads: Vec::new(),
            invalidations: Vec::new(),
            invalidation: None,
            publishes: Vec::new(),
            operator_state: None,
            live_only: false,
        }
    }

    /// The partition that the outputs were made from, as of this generation. Once the job has read a later generation of
    /// it, these outputs are older than what is there, and do not take its place.
    pub fn made_from(&self) -> Option<(VersionId, &Arc<str>, i64)> {
        self.reads.iter().find_map(|read| match read {
            Read::Partition { version, key, generation } => Some((*version, key, *generation)),
            Read::UpTo { .. } => None,
        })
    }
}

/// Why the contents of a report are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRefusal {
    /// The code of the contract, such as `dataset_not_granted`.
    pub code: &'static str,
    pub message: String,
}
