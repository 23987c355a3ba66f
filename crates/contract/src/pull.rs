//! The pull contract: claim, heartbeat, complete, fail; and the exchange that does all four in one request.

use serde::{Deserialize, Serialize};

use crate::Json;

/// `POST /internal/worker/claim`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimRequest {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    pub worker_id: String,
    /// Queue names, tried strictly in this order. May be absent when `job_id` names one job.
    #[cfg_attr(feature = "openapi", schema(max_items = 64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Vec<String>>,
    /// 0..=60000, default 5000.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<i64>,
    /// 1..=100. When present the answer also has `jobs`.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<i64>,
    /// The same request sent again under the same id, while the leases live, gets the same jobs.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<String>,
    /// The worker promises that everything an attempt started is dead when its lease expires. Queues with `strict` are
    /// granted to such workers only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kills_on_expiry: bool,
    /// Claims that very job.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// A time-ordered id of this worker process. A newer one under the same `worker_id` voids what the older one held.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 64, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// What the worker process says about itself, for those who look after it. Nothing is decided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerAbout>,
}

/// What a worker process says about itself. Needed once, and again when it changes; values that are too long are cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerAbout {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Name and version of its program or SDK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Tasks that it runs at once.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Operators that it has. More than 256 are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators: Option<Vec<String>>,
    /// The time of its clock when it sent this.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<String>,
}

/// A granted job.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    pub job_id: String,
    pub attempt_id: String,
    /// Proves possession. Secret.
    pub lease_token: String,
    pub stream: String,
    pub message_id: String,
    pub payload: Json,
    pub lease_ttl_seconds: u64,
    pub heartbeat_interval_seconds: u64,
    pub attempt: u32,
    /// Grows with every grant of the job; guards writes in other systems.
    pub fence: u64,
    pub operator: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// What the attempt before this one had saved: its last checkpoint, or the partial progress of its report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_progress: Option<Json>,
}

/// Answer to a claim: `{"claimed":false}`, or the fields of the first job at the top level.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimResponse {
    pub claimed: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// All jobs, when the request said `max_jobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<Job>>,
    /// Why the named job was not granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack: Option<bool>,
    /// The worker is drained: it gets no new work until that is taken back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
}

/// `POST /internal/worker/heartbeat`.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatRequest {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    pub worker_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub lease_token: String,
    /// 0..=100.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_pct: Option<i64>,
    /// Cut to 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Handed to the next attempt if this one does not finish. Up to 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Json>,
}

impl From<HeartbeatRequest> for HeartbeatItem {
    fn from(request: HeartbeatRequest) -> Self {
        Self {
            job_id: request.job_id,
            lease_token: request.lease_token,
            progress_pct: request.progress_pct,
            message: request.message,
            checkpoint: request.checkpoint,
        }
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatItem {
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub lease_token: String,
    /// 0..=100.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_pct: Option<i64>,
    /// Cut to 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Handed to the next attempt if this one does not finish. Up to 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Json>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatResponse {
    pub ok: bool,
    pub lease_expires_at: String,
    pub should_cancel: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
}

/// `POST /internal/worker/complete`.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CompleteRequest {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    pub worker_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub attempt_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub lease_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// What the attempt used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<JobMetrics>,
}

/// What an attempt used, as its worker measured it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobMetrics {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}

impl From<CompleteRequest> for CompleteItem {
    fn from(request: CompleteRequest) -> Self {
        Self {
            job_id: request.job_id,
            attempt_id: request.attempt_id,
            lease_token: request.lease_token,
            stream: request.stream,
            message_id: request.message_id,
            result: request.result,
            metrics: request.metrics,
        }
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CompleteItem {
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub attempt_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub lease_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// What the attempt used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<JobMetrics>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CompleteResponse {
    pub ok: bool,
    pub ack: bool,
}

/// `POST /internal/worker/fail`.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailRequest {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    pub worker_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub attempt_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub lease_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    pub error: JobError,
    /// What the attempt used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<JobMetrics>,
}

impl From<FailRequest> for FailItem {
    fn from(request: FailRequest) -> Self {
        Self {
            job_id: request.job_id,
            attempt_id: request.attempt_id,
            lease_token: request.lease_token,
            stream: request.stream,
            message_id: request.message_id,
            error: request.error,
            metrics: request.metrics,
        }
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailItem {
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub attempt_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub lease_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    pub error: JobError,
    /// What the attempt used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<JobMetrics>,
}

/// What went wrong, in the worker's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobError {
    pub code: String,
    pub message: String,
    /// Cut to 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// Takes precedence over the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// The worker has to stop and gives the job back. It is ready again at once, and the attempt does not count, up to ten
    /// times for a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_back: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailResponse {
    pub ok: bool,
    pub ack: bool,
    pub requeued: bool,
    pub dlq: bool,
}

/// `POST /internal/worker/exchange`: one request per turn of a worker's loop.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExchangeRequest {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    pub worker_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<Vec<CompleteItem>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<Vec<FailItem>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Vec<HeartbeatItem>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ExchangeClaim>,
    /// Wait for jobs of this worker that are to stop. Not together with a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<Watch>,
    /// Answer the reports at once, then the claim, as NDJSON: one line for each part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<bool>,
    /// As in a claim.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 64, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// As in a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerAbout>,
}

/// A wait for jobs that are to stop. A hint: a heartbeat for such a job says why, or that the lease is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ExchangeWatch))]
pub struct Watch {
    /// Default 5000.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<i64>,
    /// That of the last answer.
    #[cfg_attr(feature = "openapi", schema(max_length = 128))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ExchangeWatched))]
pub struct WatchAnswer {
    /// Jobs that are to stop, or were stopped.
    #[serde(default)]
    pub stop: Vec<String>,
    /// For the next watch.
    #[serde(default)]
    pub cursor: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExchangeClaim {
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 64, required = true))]
    #[serde(default)]
    pub streams: Vec<String>,
    /// 1..=1000.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<String>,
    /// The worker promises that everything an attempt started is dead when its lease expires. Queues with `strict` are
    /// granted to such workers only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kills_on_expiry: bool,
}

/// One item's answer in an exchange: the body of the single endpoint, and `http_status` when refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ItemAnswer {
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeued: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dlq: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub should_cancel: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
}

/// Answer to an exchange: the same parts in the same order. With `split` each part is a line of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExchangeResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<Vec<ItemAnswer>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<Vec<ItemAnswer>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Vec<ItemAnswer>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<Job>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchAnswer>,
    /// The claim part could not be served; the reports stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_error: Option<ItemAnswer>,
    /// With the answer to the claim: the worker is drained, and gets no new work until that is taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
}

/// `POST /internal/worker/logs`: what attempts print and log. Never a reason for an attempt to fail.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogsRequest {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    pub worker_id: String,
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub logs: Vec<JobLogs>,
}

/// Lines of one attempt.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobLogs {
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub lease_token: String,
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub lines: Vec<LogLine>,
    /// Lines before these that the worker dropped because there were too many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// When it was written, by the clock of the worker; without it, when it arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// `stdout`, `stderr` or `log`, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// Cut to 8 KiB.
    pub text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogsResponse {
    /// In the order of the request.
    pub logs: Vec<LogsAnswer>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogsAnswer {
    pub ok: bool,
    /// `stale_lease`: the attempt is not held under this token. `dropped`: it has as much as it may have, or there is too much
    /// at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Printing one of these in a log must not reveal its lease token.
macro_rules! hide_token {
    ($($name:ident { $($field:ident),+ })+) => {
        $(impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))+.finish_non_exhaustive()
            }
        })+
    };
}

hide_token! {
    JobLogs { job_id, dropped }
    Job { job_id, attempt_id, attempt, fence, operator, stream }
    HeartbeatRequest { worker_id, job_id, progress_pct }
    HeartbeatItem { job_id, progress_pct }
    CompleteRequest { worker_id, job_id, attempt_id }
    CompleteItem { job_id, attempt_id }
    FailRequest { worker_id, job_id, attempt_id, error }
    FailItem { job_id, attempt_id, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_token_is_never_printed() {
        let item = CompleteItem { lease_token: "lt_SECRET".to_owned(), ..CompleteItem::default() };
        assert!(!format!("{item:?}").contains("SECRET"));
        let exchange = ExchangeRequest { complete: Some(vec![item]), ..ExchangeRequest::default() };
        assert!(!format!("{exchange:?}").contains("SECRET"));
    }
}
