//! What was asked and what was answered, by whom and when: JSON lines, one file per process.
//!
//! A line is written before a request is sent and another one after its answer came. What has no second line, or an
//! answer that does not say what happened, is *unknown*: it may have taken effect, at any time after it was sent.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Nanoseconds of the machine's monotonic clock, the same one for all processes.
pub fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let (seconds, nanos) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
        seconds * 1_000_000_000 + nanos
    })
}

/// No task waits longer for its next attempt.
pub const MAX_BACKOFF_MS: u64 = 1_000;

/// One task of a submit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Stands in the payload. Tells which submission a task came from, also when the answer was lost.
    pub nonce: String,
    pub key: Option<String>,
    pub max_attempts: u32,
    pub delay_ms: u64,
    /// Before the second attempt. Each further one waits twice as long, at most [`MAX_BACKOFF_MS`].
    #[serde(default)]
    pub backoff_ms: u64,
    /// Whose it is, if its queue has limits: grants from others depend on nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited: Option<Limited>,
    /// When the deadline of the task is, by [`now`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
}

/// Tasks of queues with limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limited {
    /// Comes in crowds to a queue with slots.
    Crowd,
    /// Comes alone to the same queue, while a crowd waits. Grants rotate over the two.
    Loner,
    /// Comes in crowds to a queue with a rate.
    Paced,
}

/// A report of a holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    pub kind: ReportKind,
    /// Everything that makes two reports the same or not: result or error, as JSON text.
    pub content: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    Complete,
    /// Asks for another attempt.
    FailRetryable,
    FailFinal,
    /// Code `CANCELLED`.
    FailCancelled,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Call {
    Submit {
        tasks: Vec<Submission>,
    },
    Claim {
        worker: String,
        incarnation: Option<String>,
        claim_id: Option<String>,
        job: Option<String>,
    },
    Heartbeat {
        task: String,
        attempt_id: String,
    },
    Report {
        task: String,
        attempt_id: String,
        report: Report,
    },
    Cancel {
        task: String,
        immediate: bool,
    },
    Retry {
        task: String,
    },
    Read {
        task: String,
    },
    /// A heartbeat or a completion with the id of the attempt and a token that nobody has.
    Forged {
        task: String,
        attempt_id: String,
    },
    /// A run: the last task depends on all others.
    Run {
        tasks: Vec<Submission>,
    },
    /// Puts these tasks back, if they are dead letters. It is done after the answer.
    Redrive {
        tasks: Vec<String>,
    },
    /// Sees or cancels a task of another tenant.
    Trespass {
        task: String,
    },
    /// Uses a key after its revocation was acknowledged.
    Knock,
}

/// A job as it was granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    pub task: String,
    pub nonce: String,
    pub attempt: u32,
    pub attempt_id: String,
    pub fence: u64,
    pub ttl_ms: u64,
}

/// One task of a submit's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    pub task: String,
    pub created: bool,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "got", rename_all = "snake_case")]
pub enum Answer {
    /// It may or may not have taken effect.
    Unknown {
        why: String,
        /// Of an answer that does not say what happened: 5xx or 429.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
    },
    /// No connection was made, so nothing happened.
    NotSent,
    /// The server said no.
    Refused {
        status: u16,
        error: String,
    },
    Submitted {
        tasks: Vec<Accepted>,
    },
    Granted {
        jobs: Vec<Granted>,
    },
    Renewed {
        should_cancel: bool,
    },
    Reported {
        body: Value,
    },
    Canceled {
        state: String,
    },
    Retried {
        attempt: u32,
        max_attempts: u32,
    },
    Seen {
        state: String,
        attempt: u32,
        fence: u64,
    },
    /// The redrive goes on under this id.
    Redriving {
        redrive: String,
    },
}

/// An answer, as far as the history looks at it.
pub trait Outcome {
    fn unknown(why: &str) -> Self;
    /// It may or may not have taken effect.
    fn is_unknown(&self) -> bool;
}

impl Outcome for Answer {
    fn unknown(why: &str) -> Self {
        Self::Unknown { why: why.to_owned(), status: None }
    }

    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line<C, A> {
    Asked { op: String, at: u64, call: C },
    Answered { op: String, at: u64, answer: A },
}

/// One request and its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Op<C = Call, A = Answer> {
    pub id: String,
    pub asked: u64,
    /// `None`: unknown until the end of time.
    pub answered: Option<u64>,
    pub call: C,
    pub answer: A,
}

/// All requests of a run, in the order in which they were sent.
#[derive(Debug, Clone, PartialEq)]
pub struct History<C = Call, A = Answer> {
    pub ops: Vec<Op<C, A>>,
}

impl<C, A> Default for History<C, A> {
    fn default() -> Self {
        Self { ops: Vec::new() }
    }
}

impl<C: DeserializeOwned, A: DeserializeOwned + Outcome> History<C, A> {
    /// Merges all `*.jsonl` files of a folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut history = Self::default();
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                history.add(&text).with_context(|| path.display().to_string())?;
            }
        }
        history.ops.sort_by_key(|op| op.asked);
        Ok(history)
    }

    /// Adds the lines of one process. A last line that the process did not get to finish is left out.
    fn add(&mut self, text: &str) -> Result<()> {
        let mut open: HashMap<String, usize> = HashMap::new();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let read = serde_json::from_str::<Line<C, A>>(line);
            match read.with_context(|| format!("not a line of a history: {line}"))? {
                Line::Asked { op, at, call } => {
                    open.insert(op.clone(), self.ops.len());
                    self.ops.push(Op { id: op, asked: at, answered: None, call, answer: A::unknown("no answer") });
                }
                Line::Answered { op, at, answer } => {
                    let index = open.remove(&op).with_context(|| format!("an answer without a question: {op}"))?;
                    let asked = &mut self.ops[index];
                    if !answer.is_unknown() {
                        asked.answered = Some(at);
                    }
                    asked.answer = answer;
                }
            }
        }
        Ok(())
    }
}

/// Writes the history of one process.
#[derive(Debug)]
pub struct Recorder<C = Call, A = Answer> {
    file: Mutex<File>,
    process: String,
    count: AtomicU64,
    of: PhantomData<fn(C, A)>,
}

impl<C: Serialize, A: Serialize + Clone> Recorder<C, A> {
    /// `process` names this process in the whole run.
    pub fn create(folder: &Path, process: &str) -> Result<Self> {
        let path = folder.join(format!("{process}.jsonl"));
        let file = File::options().create(true).append(true).open(&path);
        let file = Mutex::new(file.with_context(|| format!("cannot open {}", path.display()))?);
        Ok(Self { file, process: process.to_owned(), count: AtomicU64::new(0), of: PhantomData })
    }

    /// To be called before the request is sent. Gives the name of the operation.
    pub fn ask(&self, call: C) -> String {
        let op = format!("{}-{}", self.process, self.count.fetch_add(1, Ordering::Relaxed));
        self.write(&Line::Asked { op: op.clone(), at: now(), call });
        op
    }

    /// To be called after the answer came, or did not come.
    pub fn answer(&self, op: &str, answer: &A) {
        self.write(&Line::Answered { op: op.to_owned(), at: now(), answer: answer.clone() });
    }

    /// In one write, so that a process that is killed leaves whole lines.
    fn write(&self, line: &Line<C, A>) {
        let mut text = serde_json::to_string(line).unwrap_or_default();
        text.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(text.as_bytes()) {
            // A history with holes would accuse the wrong one.
            panic!("cannot write the history: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_has_no_answer_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::<Call, Answer>::create(folder.path(), "w").unwrap();
        let first = recorder.ask(Call::Read { task: "t".into() });
        recorder.ask(Call::Retry { task: "t".into() });
        let lost = recorder.ask(Call::Cancel { task: "t".into(), immediate: true });
        let seen = Answer::Seen { state: "Ready".into(), attempt: 0, fence: 0 };
        recorder.answer(&first, &seen);
        recorder.answer(&lost, &Answer::unknown("time-out"));
        let path = folder.path().join("w.jsonl");
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"op\":\"w-9\",\"at\":1,\"ca").unwrap();

        let history = History::<Call, Answer>::read(folder.path()).unwrap();
        assert_eq!(history.ops.len(), 3);
        assert_eq!(history.ops[0].answer, seen);
        assert!(history.ops[0].answered.unwrap() >= history.ops[0].asked);
        for open in &history.ops[1..] {
            assert!(matches!(open.answer, Answer::Unknown { .. }) && open.answered.is_none());
        }
    }
}
