//! Every limit, by name. Sizes in bytes, times in milliseconds.

use crate::time::DurationMs;

/// A payload, and likewise a result.
pub const PAYLOAD_BYTES: usize = 1 << 20;
/// `error.stack`; cut, not refused.
pub const STACK_BYTES: usize = 64 << 10;
/// `error.message` and the message of a heartbeat; cut, not refused.
pub const MESSAGE_BYTES: usize = 4 << 10;
/// `error.code`.
pub const ERROR_CODE_BYTES: usize = 256;
/// What an attempt may hand to the next one.
pub const CHECKPOINT_BYTES: usize = 64 << 10;
/// `reason` of a cancel.
pub const CANCEL_REASON_BYTES: usize = 256;
/// Names of queues and operators.
pub const NAME_BYTES: usize = 128;
/// Tenant and workspace names.
pub const SCOPE_BYTES: usize = 64;
/// How often a task may be given back by workers that stop without spending an attempt.
pub const HANDED_BACK_MAX: u32 = 10;
pub const ASSET_ID_BYTES: usize = 256;
/// Partition key and execution location of an envelope.
pub const ENVELOPE_KEY_BYTES: usize = 1024;
/// Headers that carry the secret of a push, and the bytes of each name.
pub const SECRET_HEADERS: usize = 8;
pub const WORKER_ID_BYTES: usize = 256;
pub const INCARNATION_BYTES: usize = 64;
pub const CLAIM_ID_BYTES: usize = 128;
pub const IDEMPOTENCY_KEY_BYTES: usize = 256;
pub const TRACEPARENT_BYTES: usize = 256;
/// Tags of a task.
pub const TAGS: usize = 32;
pub const TAG_BYTES: usize = 256;
/// Body of a single submit, claim, complete or fail: a payload or result and what surrounds it.
pub const BODY_BYTES: usize = 2 << 20;
/// Body of a batch submit and of an exchange.
pub const BATCH_BODY_BYTES: usize = 32 << 20;
/// Entries of a batch submit.
pub const BATCH_TASKS: usize = 10_000;
/// Tasks of a run.
pub const RUN_TASKS: usize = 10_000;
/// Dependencies between the tasks of a run, all counted.
pub const RUN_EDGES: usize = 200_000;
/// `run_key`.
pub const RUN_KEY_BYTES: usize = 256;
/// `key` of a task in its run.
pub const TASK_KEY_BYTES: usize = 128;
/// `max_jobs` of a claim.
pub const CLAIM_JOBS: usize = 100;
/// Items of a part of an exchange.
pub const EXCHANGE_ITEMS: usize = 1_000;
/// Streams of a claim.
pub const CLAIM_STREAMS: usize = 64;
pub const LIST_LIMIT_DEFAULT: usize = 100;
pub const LIST_LIMIT_MAX: usize = 1_000;
/// A page of tasks, dead letters or attempts has fewer entries than asked for if they are larger than this together. It has
/// one entry at least.
pub const PAGE_BYTES: usize = 4 << 20;
/// How many of the newest tasks, or runs, are searched for the beginning of an id: there is no index over ids.
pub const ID_PREFIX_ROWS: usize = 100_000;
/// Ids that a redrive filter may name.
pub const REDRIVE_TASK_IDS: usize = 1_000;

pub const PRIORITY_MAX: u8 = 9;
pub const PRIORITY_DEFAULT: u8 = 5;
/// Of tasks of jobs that may wait for others, and of those that rebuild the outputs of a version that is not active yet.
pub const PRIORITY_BACKFILL: u8 = 8;
pub const PRIORITY_REBUILD: u8 = 2;

pub const MAX_ATTEMPTS_DEFAULT: u32 = 3;
pub const MAX_ATTEMPTS_MAX: u32 = 1_000;

pub const LEASE_TTL_MS_DEFAULT: DurationMs = 60_000;
pub const LEASE_TTL_MS_MIN: DurationMs = 1_000;
pub const LEASE_TTL_MS_MAX: DurationMs = 3_600_000;
/// In a strict queue, the time between the end of a lease and the moment at which everything the attempt started is
/// taken for dead. A supervisor kills at its own deadline, which is no later than the lease; the rest allows for clocks
/// that run at different rates and for a machine that is busy.
pub const STRICT_KILL_MS: DurationMs = 10_000;
/// The default heartbeat interval is a third of the lease.
pub const HEARTBEATS_PER_LEASE: DurationMs = 3;

pub const TIMEOUT_MS_DEFAULT: DurationMs = 3_600_000;
/// 30 days.
pub const TIMEOUT_MS_MAX: DurationMs = 30 * 24 * 3_600_000;
/// A year.
pub const DELAY_MS_MAX: DurationMs = 366 * 24 * 3_600_000;
pub const CANCEL_GRACE_MS_DEFAULT: DurationMs = 30_000;
pub const CANCEL_GRACE_MS_MAX: DurationMs = 3_600_000;

pub const BACKOFF_INITIAL_MS_DEFAULT: DurationMs = 5_000;
pub const BACKOFF_FACTOR_DEFAULT: f64 = 2.0;
pub const BACKOFF_FACTOR_MAX: f64 = 100.0;
pub const BACKOFF_MAX_MS_DEFAULT: DurationMs = 300_000;
/// A week.
pub const BACKOFF_MS_MAX: DurationMs = 7 * 24 * 3_600_000;

/// Attempts of a push queue that may be open at once.
pub const PUSH_CONCURRENCY_DEFAULT: u32 = 32;
pub const PUSH_CONCURRENCY_MAX: u32 = 10_000;
pub const PUSH_ACK_MS_DEFAULT: DurationMs = 10_000;
pub const PUSH_ACK_MS_MIN: DurationMs = 100;
pub const PUSH_ACK_MS_MAX: DurationMs = 60_000;
pub const PUSH_START_MS_DEFAULT: DurationMs = 60_000;
pub const PUSH_START_MS_MIN: DurationMs = 1_000;
pub const PUSH_DISPATCH_MS_MIN: DurationMs = 1_000;
pub const PUSH_DISPATCH_MS_DEFAULT: DurationMs = 300_000;
pub const PUSH_DISPATCH_MS_MAX: DurationMs = 3_600_000;
/// The address of a worker.
pub const PUSH_URL_BYTES: usize = 2_048;
/// How long after its time-out a push is repeated by another control plane: its sender has gone.
pub const PUSH_SLACK_MS: DurationMs = 5_000;
/// Back-off between pushes of one attempt.
pub const PUSH_BACKOFF_MS: DurationMs = 1_000;
pub const PUSH_BACKOFF_MS_MAX: DurationMs = 30_000;
/// Default lease of a callback worker.
pub const CALLBACK_LEASE_MS_DEFAULT: DurationMs = 90_000;
/// Why a pushed task has no room, in bytes.
pub const NO_ROOM_BYTES: usize = 512;
/// The command and the variables of a task in a sandbox, together.
pub const SANDBOX_COMMAND_BYTES: usize = 64 << 10;
/// How long a task token lives.
pub const TOKEN_TTL_MS_DEFAULT: DurationMs = 3_600_000;
pub const TOKEN_TTL_MS_MAX: DurationMs = 7_200_000;
/// Payloads that one run can fill with outputs at a time, all together.
pub const FILLED_BYTES: usize = 64 << 20;
/// Bytes of outputs that are searched for that.
pub const SCANNED_BYTES: usize = 256 << 20;
/// Outputs that one task can name, all together, and that are read from the store at a time.
pub const NAMED_BYTES: usize = 64 << 20;
/// Outputs that one payload names.
pub const REFERENCES: usize = 1_000;
/// Steps of a path into an output.
pub const PATH_STEPS: usize = 64;
/// Outputs that a rerun can carry over, all together.
pub const CARRIED_BYTES: usize = 128 << 20;
/// `partialProgress` of a callback worker.
pub const PARTIAL_PROGRESS_BYTES: usize = 1 << 20;

pub const CLAIM_WAIT_MS_DEFAULT: i64 = 5_000;
pub const CLAIM_WAIT_MS_MAX: i64 = 60_000;

/// A silence of all control planes longer than this is an outage.
pub const OUTAGE_GAP_MS: DurationMs = 5_000;
/// A queue that no worker asked for in this time has no worker.
pub const WORKER_SEEN_MS: DurationMs = 60_000;
/// A finished task stays at least so long even if there are too many, unless its time is shorter: its report may be sent
/// again.
pub const FINISHED_MS_MIN: DurationMs = 10 * 60_000;
/// An idempotency key is kept at least this long: 24 h.
pub const IDEMPOTENCY_MS_MIN: DurationMs = 24 * 3_600_000;

/// The text of a cron expression or a rate.
pub const SCHEDULE_TEXT_BYTES: usize = 256;
pub const SCHEDULE_INTERVAL_MS_MIN: DurationMs = 1_000;
/// 366 days.
pub const SCHEDULE_INTERVAL_MS_MAX: DurationMs = 366 * 24 * 3_600_000;
/// Slots that a schedule catches up on at once.
pub const SCHEDULE_CATCH_UP: usize = 1_000;
/// How often a schedule looks whether the work that its next slot waits for has ended.
pub const SCHEDULE_RECHECK_MS: DurationMs = 2_000;
/// Firings that a schedule remembers.
pub const SCHEDULE_HISTORY: usize = 20;
/// A day.
pub const SCHEDULE_JITTER_MS_MAX: DurationMs = 24 * 3_600_000;
/// The JSON of a task or run template.
pub const SCHEDULE_TEMPLATE_BYTES: usize = 1 << 20;
pub const SCHEDULES_PER_TENANT: usize = 10_000;
/// A slot that is later than this has been missed.
pub const SCHEDULE_LATE_MS: DurationMs = 60_000;

/// Cuts at a character boundary.
pub fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
