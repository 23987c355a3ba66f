//! What handlers log and commands print, on its way to the server. Losing some of it is never a reason to fail.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tenure_contract::pull::{JobLogs, LogLine};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::lease::Lease;
use super::{cut, lock};
use crate::http::Backoff;

/// Lines gather for this long before they are sent.
const GATHER: Duration = Duration::from_millis(300);
/// For the answer to a request with logs.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// How long the end of an attempt waits for its last lines.
pub(crate) const LAST_LINES: Duration = Duration::from_secs(2);
/// As the server cuts them.
const LINE_BYTES: usize = 8 << 10;
/// What is held back of one attempt; more is dropped, the oldest first.
const ATTEMPT_BYTES: usize = 256 << 10;
/// Of one attempt in one request.
const REQUEST_BYTES: usize = 32 << 10;
const REQUEST_LINES: usize = 500;
/// Attempts in one request.
const REQUEST_ITEMS: usize = 20;
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Where a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    Stdout,
    Stderr,
    /// A handler.
    Log,
}

impl LogStream {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Log => "log",
        }
    }
}

/// Where lines go.
pub(crate) trait LogSink: Sync {
    /// Sends lines of attempts, each with the id of its lease.
    fn send(&self, items: Vec<(u64, JobLogs)>) -> impl Future<Output = LogsSent> + Send;
}

/// What became of lines.
#[derive(Debug)]
pub(crate) enum LogsSent {
    /// They arrived, or are not wanted.
    Done,
    /// They are lost. The next ones may get through, after this long if the server says so.
    Lost { retry_after: Option<Duration> },
    /// The server takes none.
    Off,
}

#[derive(Debug, Default)]
pub(crate) struct Logs {
    pending: Mutex<HashMap<u64, Pending>>,
    added: Notify,
    /// Somebody waits for the last lines of an attempt.
    hurry: Notify,
    sent: Notify,
    /// The server does not take any.
    off: CancellationToken,
}

#[derive(Debug)]
struct Pending {
    lease: Arc<Lease>,
    lines: VecDeque<LogLine>,
    bytes: usize,
    dropped: u64,
}

impl Logs {
    /// No logs are taken by a server that has no route for them.
    pub(crate) fn off() -> Self {
        let logs = Self::default();
        logs.off.cancel();
        logs
    }

    pub(crate) fn add(&self, lease: &Arc<Lease>, stream: LogStream, text: impl Into<String>) {
        if self.off.is_cancelled() {
            return;
        }
        let mut text = text.into();
        cut(&mut text, LINE_BYTES);
        let at = Some(Timestamp::now().to_string());
        let line = LogLine { at, stream: Some(stream.as_str().to_owned()), text };
        let mut pending = lock(&self.pending);
        let own = pending.entry(lease.id).or_insert_with(|| Pending {
            lease: Arc::clone(lease),
            lines: VecDeque::new(),
            bytes: 0,
            dropped: 0,
        });
        own.bytes += line.text.len();
        own.lines.push_back(line);
        while own.bytes > ATTEMPT_BYTES
            && let Some(oldest) = own.lines.pop_front()
        {
            own.bytes -= oldest.text.len();
            own.dropped += 1;
        }
        drop(pending);
        self.added.notify_one();
    }

    /// Waits until everything of an attempt was sent, for a short time.
    pub(crate) async fn flush(&self, lease: &Lease) {
        let flushed = async {
            loop {
                let sent = self.sent.notified();
                if self.off.is_cancelled() || !lock(&self.pending).contains_key(&lease.id) {
                    return;
                }
                self.hurry.notify_one();
                sent.await;
            }
        };
        if tokio::time::timeout(LAST_LINES, flushed).await.is_err() {
            lock(&self.pending).remove(&lease.id);
            tracing::warn!(task.id = %lease.job.job_id, "the last log lines of a task did not get through");
        }
    }

    fn take(&self) -> Vec<(u64, JobLogs)> {
        let mut pending = lock(&self.pending);
        let mut items = Vec::new();
        let full = pending.iter_mut().filter(|(_, own)| !own.lines.is_empty() || own.dropped > 0);
        for (id, own) in full.take(REQUEST_ITEMS) {
            let (mut lines, mut bytes) = (Vec::new(), 0);
            while let Some(line) = own.lines.pop_front() {
                bytes += line.text.len();
                own.bytes -= line.text.len();
                lines.push(line);
                if bytes >= REQUEST_BYTES || lines.len() >= REQUEST_LINES {
                    break;
                }
            }
            let job = &own.lease.job;
            let logs = JobLogs {
                job_id: job.job_id.clone(),
                lease_token: job.lease_token.clone(),
                lines,
                dropped: Some(std::mem::take(&mut own.dropped)).filter(|dropped| *dropped > 0),
            };
            items.push((*id, logs));
        }
        items
    }

    /// What was under way has arrived, or is given up.
    fn settle(&self) {
        lock(&self.pending).retain(|_, own| !own.lines.is_empty() || own.dropped > 0);
        self.sent.notify_waiters();
    }

    /// Sends logs until the worker ends.
    pub(crate) async fn send(&self, sink: &impl LogSink) {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            self.added.notified().await;
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = self.hurry.notified() => {}
            }
            loop {
                let items = self.take();
                if items.is_empty() {
                    break;
                }
                match sink.send(items).await {
                    LogsSent::Done => backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT),
                    LogsSent::Off => {
                        self.off.cancel();
                        lock(&self.pending).clear();
                        self.sent.notify_waiters();
                        return;
                    }
                    LogsSent::Lost { retry_after } => {
                        self.settle();
                        tokio::time::sleep(backoff.next(retry_after)).await;
                    }
                }
                self.settle();
            }
        }
    }
}

/// Output of a process, cut into lines.
#[derive(Debug)]
pub struct OutputLog {
    pub(crate) lease: Arc<Lease>,
    pub(crate) logs: Arc<Logs>,
    pub(crate) stream: LogStream,
    pub(crate) line: Vec<u8>,
}

impl OutputLog {
    /// Takes what the process printed. A line is logged when it ends, or is too long.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' || self.line.len() >= LINE_BYTES {
                self.end_line();
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        self.logs.add(&self.lease, self.stream, text.trim_end_matches('\r'));
    }
}

impl Drop for OutputLog {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }
}
