use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_sandbox::{RuntimeId, Spec};

use crate::node::clock::Moment;

/// What a worker was asked to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// As the caller wrote it: `mock` stays `mock`.
    pub provider: String,
    /// Without the environment, which may hold secrets; the sandbox has it.
    pub spec: Spec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Zero: until it is destroyed.
    pub ttl: Duration,
    pub accepted_at: Timestamp,
}

/// The answer to a call, kept so that a repetition gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub request_id: String,
    /// Of the request's body, in hex.
    pub body_sha256: String,
    pub status: u16,
    pub body: String,
    pub answered_at: Timestamp,
}

/// What the log has. A later record about a sandbox adds to the earlier ones.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Record {
    /// The first of a file: whose it is. Moments count from this start of the machine.
    Opened {
        worker_id: String,
        machine_start: String,
    },
    /// Whether the control plane said that it knows lease renewal.
    Plane {
        lease_renewal: bool,
    },
    /// A lease was seen.
    Fence {
        sandbox_id: String,
        generation: i64,
        token_expires_at: Timestamp,
        held_until: Moment,
    },
    /// The provider is about to be asked for a sandbox.
    Intent {
        sandbox_id: String,
        order: Box<Order>,
        expires: Option<Moment>,
    },
    Runtime {
        sandbox_id: String,
        runtime_id: RuntimeId,
        #[serde(default)]
        metadata: BTreeMap<String, String>,
        created_at: Timestamp,
    },
    /// Its time to live changed.
    Expiry {
        sandbox_id: String,
        expires: Option<Moment>,
        expires_at: Option<Timestamp>,
    },
    /// The spawn failed and left nothing.
    Failed {
        sandbox_id: String,
    },
    /// It was destroyed, or was told to be before it existed.
    Gone {
        sandbox_id: String,
        runtime_id: Option<RuntimeId>,
        generation: i64,
        at: Timestamp,
    },
    Forgotten {
        sandbox_id: String,
    },
    Answer(Answer),
}
