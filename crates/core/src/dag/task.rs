//! What a task of a job is given: the payload of its body, fixed when it is made.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::data::{Position, Scope};
use super::deployment::JobOutput;
use super::id::{DagVersionId, DatasetId, InvalidationId, JobId, VersionId};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskInput {
    pub job: JobId,
    /// The version of the DAG for which the task was made.
    pub dag_version: i64,
    pub trigger: Trigger,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputAt>,
    /// What it writes to, whatever is deployed later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<JobOutput>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalidation: Option<Invalidated>,
    /// The version whose outputs it rebuilds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<DagVersionId>,
}

/// Why a task was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Trigger {
    Event {
        input_index: usize,
        event_id: Arc<str>,
    },
    Cron {
        scheduled_at: Timestamp,
    },
    Webhook {
        delivery_id: Arc<str>,
        /// As it was sent.
        body: Arc<str>,
    },
    Manual {
        request_id: Arc<str>,
        /// JSON, as it was sent.
        input: Option<Arc<str>>,
    },
    AlwaysOn,
    Invalidation,
    Rebuild,
}

/// An input as the task reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputAt {
    pub input_index: usize,
    pub dataset: DatasetId,
    pub version: VersionId,
    /// What is to be read; `None` for an input that did not cause the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// How often data at this position had been invalidated.
    #[serde(default)]
    pub generation: i64,
}

/// The changed data for which the task was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invalidated {
    pub id: InvalidationId,
    #[serde(flatten)]
    pub scope: Scope,
    pub reason: Arc<str>,
}
