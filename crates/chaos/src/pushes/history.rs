//! What submitters and workers of pushed tasks asked, what they were told, and what was delivered to them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::history::Outcome;
use crate::http::Reply;

pub type Op = crate::history::Op<Call, Answer>;
pub type History = crate::history::History<Call, Answer>;
pub type Recorder = crate::history::Recorder<Call, Answer>;

/// An attempt of a task, as its worker knows it. The nonce names the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub nonce: String,
    pub number: u32,
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Call {
    Submit {
        nonce: String,
    },
    /// A push that a worker got. It is asked by the control plane; the answer is what the worker said.
    Delivery {
        attempt: Attempt,
        queue: String,
        fence: u64,
        dispatch_id: String,
        count: u32,
        /// What is wrong with the envelope.
        wrong: Vec<String>,
    },
    Started {
        attempt: Attempt,
    },
    Heartbeat {
        attempt: Attempt,
    },
    Completed {
        attempt: Attempt,
        succeeded: bool,
        /// Everything that makes two completions the same or not, as JSON text.
        content: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "got", rename_all = "snake_case")]
pub enum Answer {
    /// The status, if an answer came that does not say what happened.
    Unknown {
        why: String,
        status: Option<u16>,
    },
    NotSent,
    Refused {
        status: u16,
        error: String,
    },
    Submitted {
        task: String,
    },
    /// What a worker answered to a push.
    Took {
        status: u16,
    },
    Started,
    Renewed,
    Recorded {
        state: String,
        disposition: String,
        at: String,
    },
}

impl Outcome for Answer {
    fn unknown(why: &str) -> Self {
        Self::Unknown { why: why.to_owned(), status: None }
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
            Reply::Unknown { why, status } => Self::Unknown { why: why.clone(), status: *status },
            Reply::Told { status, body } if *status < 300 => {
                let unreadable = || Self::Unknown { why: format!("cannot be read: {body}"), status: Some(*status) };
                read(body).unwrap_or_else(unreadable)
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
