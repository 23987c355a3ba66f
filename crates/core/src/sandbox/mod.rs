//! Sandboxes: what is known of each, how its state changes, and where a new one goes.
//!
//! A sandbox is a row that names a worker; the worker holds the runtime under a lease on the sandbox's id. A row is never
//! moved to another worker. Rows that wait for room name no worker and reserve nothing.

pub mod placement;
pub mod policy;
pub mod reconcile;
pub mod state;
pub mod template;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::command::Reach;
use crate::id::WorkerId;
use crate::time::Timestamp;

pub use state::{Change, LeaseStep, Refused, State};

/// `sb-` and eight lower-case hexadecimal digits.
pub type SandboxId = Arc<str>;

/// What was asked for, with defaults and template filled in. It is stored with the row, so that a spawn can be resumed by
/// another control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    /// The name that the caller used. A provider without one means any.
    pub provider: String,
    pub image: String,
    pub memory_mb: u64,
    pub vcpus: u32,
    /// 0: the provider's default.
    pub disk_mb: u64,
    pub pids_limit: u32,
    pub env: BTreeMap<String, String>,
    pub allowed_hosts: Vec<String>,
    pub read_only_root: bool,
    /// The snapshot that the sandbox begins with.
    pub snapshot: Option<String>,
    pub template: Option<String>,
    /// Commands that run in order before the sandbox counts as running.
    pub setup: Vec<String>,
    /// Names of secrets and where they go: a variable, or a file by its absolute path. Their values are never stored here.
    pub secrets: Vec<Secret>,
    pub metadata: BTreeMap<String, String>,
    /// Capabilities that a worker must have.
    pub requires: Vec<String>,
    /// Labels that a worker must have, as `key=value` among its capabilities.
    pub labels: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    pub name: String,
    pub inject_at: String,
}

/// A row of `sandboxes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub id: SandboxId,
    pub tenant: Arc<str>,
    pub owner: Option<Arc<str>>,
    pub state: State,
    /// Why the state is what it is, as a word: `worker_stale`, `setup_failed`.
    pub reason: Option<Arc<str>>,
    pub spec: Arc<Spec>,
    /// `None` while it waits for room.
    pub worker: Option<WorkerId>,
    /// The provider's name for the runtime, once it is known.
    pub runtime_id: Option<Arc<str>>,
    /// The id of the spawn, repeated with every try on the same worker.
    pub request_id: Arc<str>,
    /// The template whose warm sandbox this is, until somebody claims it.
    pub pool: Option<Arc<str>>,
    pub created_at: Timestamp,
    /// When the state last changed.
    pub changed_at: Timestamp,
    pub expires_at: Timestamp,
    /// A spawn that is not confirmed by then has failed.
    pub spawn_deadline: Timestamp,
    /// Workers that refused the spawn, in order.
    pub refused_by: Vec<WorkerId>,
}

impl Sandbox {
    pub fn is_covered(&self, reach: &Reach) -> bool {
        reach.covers(&self.tenant, self.owner.as_deref())
    }

    /// Whether it waits for a place.
    pub fn is_queued(&self) -> bool {
        self.state == State::Creating && self.worker.is_none()
    }
}

/// What a worker's inventory says about a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub sandbox_id: SandboxId,
    pub runtime_id: Arc<str>,
    pub provider: String,
    pub state: String,
    pub generation: i64,
    /// When a heartbeat first named it.
    pub since: Timestamp,
    /// How many heartbeats in a row found it an orphan.
    pub orphan_beats: u32,
}

/// What a runtime in an inventory is to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its row names this worker and this runtime.
    Known,
    /// Its row is being created here: the spawn has succeeded.
    Completes,
    /// No row wants it.
    Orphan,
}

/// What becomes of a runtime that `worker` says it holds.
pub fn standing(row: Option<&Sandbox>, worker: &str, runtime_id: &str) -> Standing {
    let Some(row) = row.filter(|row| row.worker.as_deref() == Some(worker)) else { return Standing::Orphan };
    match (row.state, row.runtime_id.as_deref()) {
        (State::Destroyed | State::Expired, _) => Standing::Orphan,
        (State::Creating, None) => Standing::Completes,
        (_, Some(known)) if known == runtime_id => Standing::Known,
        _ => Standing::Orphan,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: State, runtime_id: Option<&str>) -> Sandbox {
        let at = Timestamp::from_millis(1);
        Sandbox {
            id: "sb-00000001".into(),
            tenant: "acme".into(),
            owner: Some("ann".into()),
            state,
            reason: None,
            spec: Arc::default(),
            worker: Some("worker-a".into()),
            runtime_id: runtime_id.map(Into::into),
            request_id: "req-1".into(),
            pool: None,
            created_at: at,
            changed_at: at,
            expires_at: at,
            spawn_deadline: at,
            refused_by: Vec::new(),
        }
    }

    #[test]
    fn a_runtime_is_wanted_by_the_row_that_names_it() {
        let of = |row: Option<&Sandbox>| standing(row, "worker-a", "rt-1");
        assert_eq!(of(None), Standing::Orphan);
        for state in State::ALL {
            let ended = matches!(state, State::Destroyed | State::Expired);
            let (known, other) = (row(state, Some("rt-1")), row(state, Some("rt-2")));
            assert_eq!(of(Some(&known)), if ended { Standing::Orphan } else { Standing::Known }, "{state:?}");
            assert_eq!(of(Some(&other)), Standing::Orphan, "another runtime of {state:?}");
            assert_eq!(standing(Some(&known), "worker-b", "rt-1"), Standing::Orphan, "another worker of {state:?}");
            let unknown = row(state, None);
            let expected = if state == State::Creating { Standing::Completes } else { Standing::Orphan };
            assert_eq!(of(Some(&unknown)), expected, "no runtime of {state:?}");
            assert_eq!(of(Some(&Sandbox { worker: None, ..unknown })), Standing::Orphan);
        }
    }

    #[test]
    fn a_spec_without_a_field_is_read_with_its_default() {
        let spec: Spec = serde_json::from_str(r#"{"image":"alpine","unknown":1}"#).unwrap();
        assert_eq!(spec, Spec { image: "alpine".into(), ..Spec::default() });
    }
}
