//! What was asked of sandboxes and what was answered, and what was found on the workers' disks meanwhile.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use serde::Serialize;

use crate::history::now;

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Call {
    /// The nonce is in the metadata of the sandbox. It tells which create a sandbox came from, also when the answer was
    /// lost.
    Create {
        nonce: String,
        key: Option<String>,
        owner: String,
        ttl_ms: u64,
    },
    /// Asks in which runtime the command runs.
    Exec {
        sandbox: String,
    },
    Write {
        sandbox: String,
        path: String,
        value: String,
    },
    Read {
        sandbox: String,
        path: String,
    },
    Extend {
        sandbox: String,
        ttl_ms: u64,
    },
    Destroy {
        sandbox: String,
    },
    Show {
        sandbox: String,
    },
    /// Of one owner, or of all.
    List {
        owner: Option<String>,
    },
}

impl Call {
    pub fn sandbox(&self) -> Option<&str> {
        match self {
            Self::Exec { sandbox }
            | Self::Write { sandbox, .. }
            | Self::Read { sandbox, .. }
            | Self::Extend { sandbox, .. }
            | Self::Destroy { sandbox }
            | Self::Show { sandbox } => Some(sandbox),
            Self::Create { .. } | Self::List { .. } => None,
        }
    }
}

/// A sandbox as the control plane shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    pub sandbox: String,
    pub nonce: Option<String>,
    pub owner: Option<String>,
    pub state: String,
    pub worker: Option<String>,
    pub runtime: Option<String>,
    pub memory_mb: u64,
    pub vcpus: u64,
}

impl Row {
    /// Whether it takes room and counts against caps. One that waits for a place has no worker and does not.
    pub fn counts(&self) -> bool {
        matches!(self.state.as_str(), "creating" | "running" | "idle" | "unhealthy")
    }
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "got", rename_all = "snake_case")]
pub enum Answer {
    /// It may or may not have taken effect.
    Unknown {
        why: String,
    },
    /// No connection was made, so nothing happened.
    NotSent,
    Refused {
        status: u16,
        what: String,
    },
    Created {
        row: Row,
    },
    Ran {
        runtime: String,
    },
    Written,
    Content {
        value: String,
    },
    Extended,
    /// `done` is false where the worker could not be asked.
    Destroyed {
        done: bool,
    },
    Seen {
        row: Row,
    },
    Listed {
        rows: Vec<Row>,
    },
}

/// One request and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Op {
    pub id: usize,
    pub asked: u64,
    /// `None`: unknown until the end of time.
    pub answered: Option<u64>,
    pub call: Call,
    pub answer: Answer,
}

/// A runtime on the disk of a worker. A look at a disk takes time: what was there is certain only between two looks that
/// found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sighting {
    pub worker: usize,
    pub runtime: String,
    pub sandbox: String,
    pub nonce: Option<String>,
    /// The end of the first look that found it.
    pub first: u64,
    /// The start of the last look that found it.
    pub last: u64,
    /// The start of the first look that did not find it any more. `None`: it is there.
    pub gone: Option<u64>,
}

/// A worker that was killed or stopped, and could do nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Down {
    pub worker: usize,
    pub from: u64,
    pub to: u64,
}

/// Requests of all sessions. They run in one process, which is not killed.
#[derive(Debug, Default)]
pub struct Journal {
    ops: Mutex<Vec<Op>>,
}

impl Journal {
    /// To be called before the request is sent.
    pub fn ask(&self, call: Call) -> usize {
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, answer) = (ops.len(), Answer::Unknown { why: "no answer".into() });
        ops.push(Op { id, asked: now(), answered: None, call, answer });
        id
    }

    /// To be called after the answer came, or did not come.
    pub fn answer(&self, id: usize, answer: &Answer) {
        let at = now();
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(op) = ops.get_mut(id) {
            op.answered = (!matches!(answer, Answer::Unknown { .. })).then_some(at);
            op.answer = answer.clone();
        }
    }

    pub fn count(&self) -> usize {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn ops(&self) -> Vec<Op> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes one JSON line for each, for people who look into a violation.
pub fn keep<T: Serialize>(path: &Path, lines: &[T]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for line in lines {
        serde_json::to_writer(&mut file, line)?;
        file.write_all(b"\n")?;
    }
    Ok(file.flush()?)
}
