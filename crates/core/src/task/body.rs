//! What was submitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{RunId, Seq, TaskId};
use crate::limits;
use crate::mutant;
use crate::queue::{FairnessKey, Push, QueueId, QueueSettings};
use crate::retry::RetryPolicy;
use crate::run::InRun;
use crate::time::{DurationMs, Timestamp};

/// What was submitted. Nothing of it changes afterwards but the payload of a task of a run, which is written a second
/// time when the outputs that it names are filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Body {
    pub id: TaskId,
    pub queue: QueueId,
    pub operator: Arc<str>,
    pub tenant: Arc<str>,
    /// Who submitted it, inside the tenant; `None` if nobody in particular.
    pub owner: Option<Arc<str>>,
    pub workspace: Arc<str>,
    pub priority: u8,
    pub payload: Arc<str>,
    pub spec: Spec,
    pub tags: BTreeMap<String, String>,
    pub idempotency: Option<Idempotency>,
    pub traceparent: Option<Arc<str>>,
    /// The credential that it was submitted with, as audits name it; `None` without authentication and for tasks of jobs.
    pub submitted_by: Option<Arc<str>>,
    /// What only the envelope of a push tells; absent means the defaults.
    pub envelope: Option<Arc<EnvelopeSpec>>,
    pub created_at: Timestamp,
    /// When it was first to run.
    pub run_at: Timestamp,
    /// The run that it was submitted in; `None` if it was submitted alone.
    pub run: Option<InRun>,
}

impl Body {
    pub fn seq(&self) -> Seq {
        self.id.seq()
    }

    /// The run that it was submitted in; a task that was submitted alone is one of its own.
    pub fn run_id(&self) -> RunId {
        self.run.as_ref().map_or_else(|| RunId::of_one(self.id), |run| run.run)
    }

    /// Its name in that run.
    pub fn task_key(&self) -> &Arc<str> {
        self.run.as_ref().map_or(&self.operator, |run| &run.key)
    }

    /// The value that grants of its queue rotate over.
    pub fn fairness_value(&self, key: &FairnessKey) -> Arc<str> {
        match key {
            FairnessKey::Tenant => Arc::clone(&self.tenant),
            FairnessKey::Workspace => Arc::clone(&self.workspace),
            FairnessKey::Tag(name) => self.tags.get(name).map_or_else(|| Arc::from(""), |value| value.as_str().into()),
        }
    }
}

/// The same key and content in one tenant and workspace is the same task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    pub key: Arc<str>,
    /// Digest of what was submitted.
    pub fingerprint: [u8; 32],
}

/// What a task wants the envelope of its pushes to say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EnvelopeSpec {
    /// Names the code to run, if not the operator does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset_id: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_location_id: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ttl_ms: Option<DurationMs>,
    /// The sandbox that every attempt gets, and the command that runs in it. Set if and only if [`Spec::sandbox`] is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRun>,
}

/// The sandbox of a task and what runs in it. `None` and empty leave it to the template and to the defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SandboxRun {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    pub command: SandboxCommand,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How long the command may run, if not as long as the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<DurationMs>,
}

/// What runs in the sandbox of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SandboxCommand {
    /// A line for the shell.
    Line(String),
    /// A program and its arguments.
    Words(Vec<String>),
}

impl Default for SandboxCommand {
    fn default() -> Self {
        Self::Words(Vec::new())
    }
}

/// How a task wants to be run; absent means the queue's setting or the default. Each place carries a copy, so that a
/// decision needs one row.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<DurationMs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<DurationMs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<DurationMs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_grace_ms: Option<DurationMs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Every attempt runs in a sandbox of its own: only a queue that runs sandboxes may grant it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sandbox: bool,
    /// It makes outputs of a DAG version that is not active yet, and may be granted while others of its job are held.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebuild: bool,
}

impl Spec {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub fn max_attempts(&self) -> u32 {
        self.max_attempts.unwrap_or(limits::MAX_ATTEMPTS_DEFAULT)
    }

    pub fn timeout_ms(&self) -> DurationMs {
        self.timeout_ms.unwrap_or(limits::TIMEOUT_MS_DEFAULT)
    }

    pub fn cancel_grace_ms(&self) -> DurationMs {
        self.cancel_grace_ms.unwrap_or(limits::CANCEL_GRACE_MS_DEFAULT)
    }

    pub fn retry(&self) -> RetryPolicy {
        self.retry.unwrap_or_default()
    }

    pub fn lease_ttl_ms(&self, queue: &QueueSettings) -> DurationMs {
        let usual = if queue.push.is_some() { limits::CALLBACK_LEASE_MS_DEFAULT } else { limits::LEASE_TTL_MS_DEFAULT };
        self.lease_ttl_ms.or(queue.lease_ttl_ms).unwrap_or(usual)
    }

    pub fn heartbeat_ms(&self, queue: &QueueSettings) -> DurationMs {
        let ttl = self.lease_ttl_ms(queue);
        // An interval that belongs to a longer lease would let this one run out.
        let own = self.heartbeat_ms.or(if self.lease_ttl_ms.is_some() { None } else { queue.heartbeat_ms });
        // A callback worker is promised two tries.
        let most = if queue.push.is_some() { (ttl / 2).max(1) } else { ttl };
        own.unwrap_or(ttl / limits::HEARTBEATS_PER_LEASE).clamp(1, most)
    }

    /// How long the tokens of one attempt have to live at the least, if it is granted at `now`: through its delivery, its
    /// longest run and the grace of a cancel.
    pub fn token_need_ms(&self, push: &Push, now: Timestamp) -> DurationMs {
        let left = self.deadline.map_or(DurationMs::MAX, |deadline| deadline.since(now).max(0));
        let bound = self.timeout_ms().min(left);
        bound.saturating_add(push.dispatch_timeout_ms).saturating_add(self.cancel_grace_ms())
    }

    pub fn is_past_deadline(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline) && !mutant!("deadline-ignored")
    }
}
