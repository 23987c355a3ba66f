//! What users and workers of a DAG asked, and what they were told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::history::Outcome;
use crate::http::Reply;

pub type Op = crate::history::Op<Call, Answer>;
pub type History = crate::history::History<Call, Answer>;
pub type Recorder = crate::history::Recorder<Call, Answer>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Call {
    /// Fires the source for this number.
    Fire {
        n: u64,
    },
    /// Says that the range of this number has changed. The key makes repeats the same.
    Invalidate {
        n: u64,
        key: String,
    },
    /// Looks at every cursor.
    Look,
    Claim {
        task: String,
        worker: String,
    },
    /// Tells of something that only this attempt can have written.
    Tell {
        task: String,
        attempt: u64,
    },
    /// Always with the same body for one attempt.
    Complete {
        task: String,
        attempt: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "got", rename_all = "snake_case")]
pub enum Answer {
    Unknown { why: String },
    NotSent,
    Refused { status: u16, error: String },
    Fired { task: String },
    Invalidated { generation: u64 },
    Cursors { values: BTreeMap<String, u64> },
    Claimed { attempt: u64, fence: u64 },
    NotClaimed { reason: String },
    Told,
    Completed,
}

impl Outcome for Answer {
    fn unknown(why: &str) -> Self {
        Self::Unknown { why: why.to_owned() }
    }

    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

impl Answer {
    /// `read` says what a 2xx body means, `None` for one that makes no sense.
    pub fn of(reply: &Reply, read: impl FnOnce(&Value) -> Option<Self>) -> Self {
        match reply {
            Reply::NotSent => Self::NotSent,
            Reply::Unknown { why, .. } => Self::unknown(why),
            Reply::Told { status, body } if *status < 300 => {
                read(body).unwrap_or_else(|| Self::unknown(&format!("cannot be read: {body}")))
            }
            Reply::Told { status, body } => {
                Self::Refused { status: *status, error: body["error"].as_str().unwrap_or_default().to_owned() }
            }
        }
    }

    /// Somebody has to ask again to know.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::NotSent)
    }
}

/// The key of the range that belongs to a number.
pub fn range(n: u64) -> String {
    format!("{}-{}", n * 10, n * 10 + 9)
}
