//! The callback contract: the envelope that is pushed to a worker, and what the worker reports back.
//!
//! Written in camelCase, read in camelCase or snake_case. A field that comes in both spellings is a duplicate and an
//! error that names it. Times are RFC 3339 texts here; whoever gives them a meaning parses them.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Json;
use crate::object::object;
pub use crate::pull::LogLine;

/// A closed set of words: any other word is refused, and so is any other shape of JSON.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum $name {
            $(
                $(#[$doc])*
                #[cfg_attr(feature = "openapi", schema(rename = $word))]
                $variant,
            )+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// As it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            pub fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Word;
                impl Visitor<'_> for Word {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("one of", $(" ", $word),+))
                    }
                    fn visit_str<E: Error>(self, word: &str) -> Result<$name, E> {
                        $name::parse(word).ok_or_else(|| E::unknown_variant(word, &[$($word),+]))
                    }
                }
                deserializer.deserialize_str(Word)
            }
        }
    };
}

words! {
    /// How an attempt ended.
    Outcome {
        Succeeded = "SUCCEEDED",
        Failed = "FAILED",
        Cancelled = "CANCELLED",
    }
}

words! {
    /// What kind of error it was; says whether it is retried unless the report says so itself.
    Category {
        /// An error of the code that ran.
        UserCode = "USER_CODE",
        /// The input does not pass validation.
        DataQuality = "DATA_QUALITY",
        /// Services, memory, disk.
        Infrastructure = "INFRASTRUCTURE",
        /// Missing or wrong settings.
        Configuration = "CONFIGURATION",
        /// It took longer than it may.
        Timeout = "TIMEOUT",
        /// It was cancelled.
        Cancelled = "CANCELLED",
    }
}

impl Category {
    /// Whether it is retried when the report does not say.
    pub const fn retryable_by_default(self) -> bool {
        match self {
            Self::UserCode | Self::Infrastructure | Self::Timeout => true,
            Self::DataQuality | Self::Configuration | Self::Cancelled => false,
        }
    }
}

words! {
    /// What became of a completion.
    Disposition {
        /// It was applied.
        Recorded = "recorded",
        /// It was known already; nothing happened.
        Duplicate = "duplicate",
        /// It came after its lease and was applied.
        Late = "late",
    }
}

words! {
    /// The word in `error`. Workers branch on it alone.
    ErrorCode {
        MalformedRequest = "malformed_request",
        UnsupportedMediaType = "unsupported_media_type",
        PayloadTooLarge = "payload_too_large",
        InvalidArgument = "invalid_argument",
        InvalidToken = "invalid_token",
        TaskNotFound = "task_not_found",
        TaskAlreadyTerminal = "task_already_terminal",
        AttemptMismatch = "attempt_mismatch",
        AttemptIdMismatch = "attempt_id_mismatch",
        AttemptAlreadyStarted = "attempt_already_started",
        AttemptAlreadyCompleted = "attempt_already_completed",
        TaskExpired = "task_expired",
        RateLimited = "rate_limited",
        Internal = "internal",
        StoreUnavailable = "store_unavailable",
    }
}

/// What a control plane posts to a worker: one attempt of one task, and how to report about it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskEnvelope {
    #[serde(alias = "task_id")]
    pub task_id: String,
    /// A task that was submitted alone has a run of its own.
    #[serde(alias = "run_id")]
    pub run_id: String,
    /// Names the code to run.
    #[serde(alias = "asset_id")]
    pub asset_id: String,
    /// The task's key within its run.
    #[serde(alias = "task_key")]
    pub task_key: String,
    #[serde(alias = "tenant_id")]
    pub tenant_id: String,
    #[serde(alias = "workspace_id")]
    pub workspace_id: String,
    /// From 1.
    pub attempt: u32,
    #[serde(alias = "attempt_id")]
    pub attempt_id: String,
    /// The same for every delivery of one attempt: the worker's dedupe key.
    #[serde(alias = "dispatch_id")]
    pub dispatch_id: String,
    /// Grows with every grant of the task; guards writes in other systems.
    pub fence: u64,
    /// Names the part of the data that the task is about, as it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "partition_key")]
    pub partition_key: Option<String>,
    /// Names where the code runs, as it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "execution_location_id")]
    pub execution_location_id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub resources: Resources,
    /// `{}` when none was submitted.
    #[serde(default = "Json::empty_object", deserialize_with = "payload")]
    pub payload: Json,
    /// When the task became ready.
    #[serde(alias = "enqueued_at")]
    pub enqueued_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Where to report. A worker compares it with its list and never sends a token elsewhere.
    #[serde(alias = "callback_base_url")]
    pub callback_base_url: String,
    /// Proves possession of the attempt. Secret.
    #[serde(alias = "task_token")]
    pub task_token: String,
    #[serde(alias = "token_expires_at")]
    pub token_expires_at: String,
    /// Until then the grant holds without a callback.
    #[serde(alias = "lease_expires_at")]
    pub lease_expires_at: String,
    #[serde(alias = "heartbeat_interval_ms")]
    pub heartbeat_interval_ms: u32,
    #[serde(alias = "heartbeat_timeout_ms")]
    pub heartbeat_timeout_ms: u32,
    #[serde(alias = "cancel_grace_period_ms")]
    pub cancel_grace_period_ms: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The queue it came from.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "worker_queue")]
    pub worker_queue: Option<String>,
    /// `heartbeatTimeoutMs` in whole seconds, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "heartbeat_timeout_sec")]
    pub heartbeat_timeout_sec: Option<u32>,
    /// What the attempt before this one had saved: its last checkpoint, or the partial progress of its report.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "previous_progress")]
    pub previous_progress: Option<Json>,
}

/// What an attempt may use. Integers only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = EnvelopeResources))]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    #[serde(alias = "memory_bytes")]
    pub memory_bytes: u64,
    #[serde(alias = "cpu_millicores")]
    pub cpu_millicores: u64,
    /// The bound of one attempt.
    #[serde(alias = "timeout_ms")]
    pub timeout_ms: u64,
}

impl Default for Resources {
    fn default() -> Self {
        Self { memory_bytes: 536_870_912, cpu_millicores: 1000, timeout_ms: 3_600_000 }
    }
}

/// `null` means absent.
fn or_default<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What is compared with an id and is not one, in whatever form it came: a number is not one either.
fn shown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Scalar {
        Text(String),
        Number(serde_json::Number),
        Flag(bool),
    }
    let sent = Option::<Scalar>::deserialize(deserializer)
        .map_err(|_| D::Error::invalid_type(Unexpected::Other("list or object"), &"a string"))?;
    Ok(sent.map(|sent| match sent {
        Scalar::Text(text) => text,
        Scalar::Number(number) => number.to_string(),
        Scalar::Flag(flag) => flag.to_string(),
    }))
}

/// Some workers send a fraction. One beyond 0 or 100 stays there.
fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let value: Option<f64> = Option::deserialize(deserializer)?;
    Ok(value.map(|value| if value > 100.0 { value.ceil() } else { value.floor() } as i64))
}

/// What was measured counts in whole units.
fn measured<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Measured(u64);
    impl<'de> Deserialize<'de> for Measured {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_f64(Number)
        }
    }
    struct Number;
    impl Visitor<'_> for Number {
        type Value = Measured;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number that is not negative")
        }
        fn visit_u64<E: Error>(self, value: u64) -> Result<Measured, E> {
            Ok(Measured(value))
        }
        fn visit_i64<E: Error>(self, value: i64) -> Result<Measured, E> {
            u64::try_from(value).map(Measured).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
        }
        fn visit_f64<E: Error>(self, value: f64) -> Result<Measured, E> {
            if value < 0.0 {
                return Err(E::invalid_value(Unexpected::Float(value), &self));
            }
            Ok(Measured(value.round() as u64))
        }
    }
    Ok(Option::<Measured>::deserialize(deserializer)?.map(|Measured(value)| value))
}

/// `null` means absent, and an absent payload is `{}`.
fn payload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(Json::empty_object))
}

/// `POST /v1/tasks/{id}/started`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackStartedRequest))]
#[serde(rename_all = "camelCase")]
pub struct StartedRequest {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "attempt_id", deserialize_with = "shown")]
    pub attempt_id: Option<String>,
    /// Unique per worker process. `started` binds it to the attempt.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
    )]
    #[serde(alias = "worker_id")]
    pub worker_id: String,
    /// An observation of the worker's clock; nothing is decided by it.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "started_at")]
    pub started_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackStartedResponse))]
#[serde(rename_all = "camelCase")]
pub struct StartedResponse {
    pub acknowledged: bool,
    #[serde(alias = "server_time")]
    pub server_time: String,
}

/// `POST /v1/tasks/{id}/heartbeat`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackHeartbeatRequest))]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatRequest {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "attempt_id", deserialize_with = "shown")]
    pub attempt_id: Option<String>,
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
    )]
    #[serde(alias = "worker_id")]
    pub worker_id: String,
    /// An observation of the worker's clock; nothing is decided by it.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "heartbeat_at")]
    pub heartbeat_at: Option<String>,
    /// 0..=100. Shown without its fraction.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>, minimum = 0, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "progress_pct", deserialize_with = "percent")]
    pub progress_pct: Option<i64>,
    /// Cut to 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Handed to the next attempt if this one does not finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Json>,
    /// Hold the answer until the attempt is to stop, for this long at most.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60_000))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "wait_ms")]
    pub wait_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// An absent field means: no change.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackHeartbeatResponse))]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatResponse {
    pub acknowledged: bool,
    #[serde(alias = "should_cancel")]
    pub should_cancel: bool,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "cancel_reason")]
    pub cancel_reason: Option<String>,
    #[serde(alias = "server_time")]
    pub server_time: String,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "lease_expires_at")]
    pub lease_expires_at: Option<String>,
    /// A token that lives longer. Secret.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "task_token")]
    pub task_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "token_expires_at")]
    pub token_expires_at: Option<String>,
}

/// `POST /v1/tasks/{id}/logs`: what the attempt prints and logs. Never a reason for it to fail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackLogsRequest))]
#[serde(rename_all = "camelCase")]
pub struct LogsRequest {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "attempt_id", deserialize_with = "shown")]
    pub attempt_id: Option<String>,
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
    )]
    #[serde(alias = "worker_id")]
    pub worker_id: String,
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub lines: Vec<LogLine>,
    /// Lines before these that the worker dropped because there were too many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackLogsResponse))]
#[serde(rename_all = "camelCase")]
pub struct LogsResponse {
    /// Whether the lines are kept.
    pub acknowledged: bool,
    /// Why they are not. `stale_attempt`: the attempt is over, or another worker's. `dropped`: it has as much as it may have, or
    /// there is too much at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `POST /v1/tasks/{id}/completed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackCompletedRequest))]
#[serde(rename_all = "camelCase")]
pub struct CompletedRequest {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "attempt_id", deserialize_with = "shown")]
    pub attempt_id: Option<String>,
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
    )]
    #[serde(alias = "worker_id")]
    pub worker_id: String,
    pub outcome: Outcome,
    /// An observation of the worker's clock; nothing is decided by it.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "completed_at")]
    pub completed_at: Option<String>,
    /// Up to 1 MiB. Also read as `result`.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "result")]
    pub output: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub error: Option<TaskError>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub metrics: Option<Metrics>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "cancelled_during_phase")]
    pub cancelled_during_phase: Option<String>,
    /// Up to 1 MiB. Handed to the next attempt, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "partial_progress")]
    pub partial_progress: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// What went wrong, in the worker's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskError {
    pub category: Category,
    /// Cut to 4 KiB.
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
    /// Cut to 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "stack_trace")]
    pub stack_trace: Option<String>,
    /// Takes precedence over the category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// The worker has to stop and gives the task back. It is pushed again at once, and the attempt does not count, up to ten
    /// times for a task.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "handed_back")]
    pub handed_back: Option<bool>,
}

/// What the attempt used, in whole units: fractions are rounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = AttemptMetrics))]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>, minimum = 0))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "cpu_time_ms", deserialize_with = "measured")]
    pub cpu_time_ms: Option<u64>,
    /// Peak resident set.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>, minimum = 0))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        alias = "peak_memory_bytes",
        deserialize_with = "measured"
    )]
    pub peak_memory_bytes: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>, minimum = 0))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "io_read_bytes", deserialize_with = "measured")]
    pub io_read_bytes: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>, minimum = 0))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "io_write_bytes", deserialize_with = "measured")]
    pub io_write_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallbackCompletedResponse))]
#[serde(rename_all = "camelCase")]
pub struct CompletedResponse {
    pub acknowledged: bool,
    /// The recorded outcome of the attempt. The task itself may be tried again.
    #[serde(alias = "final_state")]
    pub final_state: Outcome,
    #[serde(alias = "server_time")]
    pub server_time: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disposition: Option<Disposition>,
}

/// Every error below these paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallbackError {
    /// One of [`ErrorCode`]; a reader takes others too.
    pub error: String,
    pub message: String,
    /// The state of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "cancel_reason")]
    pub cancel_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "expected_attempt")]
    pub expected_attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "received_attempt")]
    pub received_attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "expected_attempt_id")]
    pub expected_attempt_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "received_attempt_id")]
    pub received_attempt_id: Option<String>,
    /// Which field is at fault, on 422.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "retry_after_ms")]
    pub retry_after_ms: Option<u64>,
    /// Whether the same request may succeed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "request_id")]
    pub request_id: Option<String>,
}

impl CallbackError {
    /// The word, if it is a known one.
    pub fn code(&self) -> Option<ErrorCode> {
        ErrorCode::parse(&self.error)
    }
}

/// Printing one of these in a log must not reveal its token.
impl fmt::Debug for TaskEnvelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskEnvelope")
            .field("task_id", &self.task_id)
            .field("attempt", &self.attempt)
            .field("dispatch_id", &self.dispatch_id)
            .field("fence", &self.fence)
            .field("asset_id", &self.asset_id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HeartbeatResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeartbeatResponse")
            .field("should_cancel", &self.should_cancel)
            .field("cancel_reason", &self.cancel_reason)
            .field("lease_expires_at", &self.lease_expires_at)
            .field("renewed", &self.task_token.is_some())
            .finish_non_exhaustive()
    }
}
