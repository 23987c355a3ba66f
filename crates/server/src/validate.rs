//! Checks what callers send and turns it into commands. Every refusal names its field.

pub mod runtime;
pub mod schedule;

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_contract::callback::Resources;
use tenure_contract::user::{
    QueueChange as WireChange, QueueSettings as WireQueue, RetryPolicy as WireRetry, TaskSubmission,
};
use tenure_core::command::queues::QueueChange;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::limits;
use tenure_core::queue::{FairnessKey, JOB_QUEUES, QueueSettings, Rate};
use tenure_core::retry::{Jitter, RetryPolicy};
use tenure_core::task::{EnvelopeSpec, Idempotency, SandboxRun, Spec};
use tenure_core::text::is_unseen;
use tenure_core::{IdPrefix, RunId, TaskId, Timestamp, fingerprint};

use crate::access::caller::Caller;
use crate::error::{BadRequest, Fault};

const OWNER_CHARS: usize = 128;

/// Where a field stands: alone, or in an entry of a batch.
#[derive(Debug, Clone, Copy)]
pub struct At(pub Option<usize>);

impl At {
    pub fn field(self, name: &str) -> String {
        match self.0 {
            None => name.to_owned(),
            Some(index) => format!("tasks[{index}].{name}"),
        }
    }

    fn fault(self, name: &str, message: &str) -> Fault {
        Fault::invalid(self.field(name), message)
    }
}

/// Names of queues, operators and tags: no white space, nothing that cannot be seen.
pub fn name(text: &str, field: impl Into<String>) -> Result<Arc<str>, Fault> {
    text_of(text, field, limits::NAME_BYTES)
}

/// The name of a queue that somebody submits to or sets. Those of jobs belong to their DAGs.
pub fn queue_name(text: &str, field: impl Into<String>) -> Result<Arc<str>, Fault> {
    let field = field.into();
    if text.starts_with(JOB_QUEUES) {
        let message = "names that begin with dag: are those of jobs: deploy a DAG, or choose another name";
        return Err(Fault::invalid(field, message));
    }
    name(text, field)
}

pub fn text_of(text: &str, field: impl Into<String>, max: usize) -> Result<Arc<str>, Fault> {
    let plain = text.chars().all(|c| !is_unseen(c) && !c.is_whitespace());
    if text.is_empty() || text.len() > max || !plain {
        let message = format!("must have 1 to {max} bytes, without white space, control or invisible characters");
        return Err(Fault::invalid(field, &message));
    }
    Ok(text.into())
}

/// Text for people: white space is fine, control characters are not.
pub fn words(text: &str, field: impl Into<String>, max: usize) -> Result<Arc<str>, Fault> {
    if text.is_empty() || text.len() > max || text.chars().any(char::is_control) {
        let message = format!("must have 1 to {max} bytes, without control characters");
        return Err(Fault::invalid(field, &message));
    }
    Ok(text.into())
}

/// Tenant and workspace: `[a-z0-9_-]{1,64}`.
pub fn scope(text: &str, field: impl Into<String>) -> Result<Arc<str>, Fault> {
    let plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    if text.is_empty() || text.len() > limits::SCOPE_BYTES || !plain {
        return Err(Fault::invalid(field, "must match [a-z0-9_-]{1,64}"));
    }
    Ok(text.into())
}

pub fn within(value: i64, min: i64, max: i64, field: impl Into<String>) -> Result<i64, Fault> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(Fault::invalid(field, &format!("must be from {min} to {max}, not {value}")))
    }
}

pub fn time(text: &str, field: impl Into<String>) -> Result<Timestamp, Fault> {
    Timestamp::parse(text).map_err(|error| Fault::invalid(field, &error.to_string()))
}

/// Who owns something: as `X-User-ID` has it.
pub fn owner(text: &str, field: impl Into<String>) -> Result<Arc<str>, Fault> {
    let plain = |c: char| !c.is_whitespace() && !is_unseen(c) && c != '/' && c != '\\';
    if text.is_empty() || text.chars().count() > OWNER_CHARS || !text.chars().all(plain) {
        let message = "must have 1 to 128 characters, without white space, control or invisible characters, / and \\";
        return Err(Fault::invalid(field, message));
    }
    Ok(text.into())
}

/// A submission as a task to be, under an id that was minted for it.
pub fn submission(task: TaskSubmission, id: TaskId, caller: &Caller, at: At) -> Result<NewTask, Fault> {
    let key = match &task.idempotency_key {
        None => None,
        Some(key) => Some(words(key, at.field("idempotency_key"), limits::IDEMPOTENCY_KEY_BYTES)?),
    };
    let sandbox = task.runtime.as_ref().map(|runtime| runtime::sandbox(runtime, at)).transpose()?;
    let envelope = envelope(&task, sandbox, at)?;
    let (lease_ttl_ms, heartbeat_ms) = liveness(&task, at)?;
    let payload = task.payload.map_or_else(|| Arc::from("{}"), |payload| payload.text());
    if payload.len() > limits::PAYLOAD_BYTES {
        return Err(BadRequest::PayloadTooLarge { field: at.field("payload") }.into());
    }
    let priority = task.priority.unwrap_or(i64::from(limits::PRIORITY_DEFAULT));
    let priority = within(priority, 0, i64::from(limits::PRIORITY_MAX), at.field("priority"))?;
    let mut new = NewTask {
        id,
        queue: queue_name(&task.queue, at.field("queue"))?,
        operator: name(&task.operator, at.field("operator"))?,
        tenant: caller.tenant_for(task.tenant.as_deref(), at.field("tenant"))?,
        owner: caller.subject.clone(),
        workspace: scope(task.workspace.as_deref().unwrap_or("default"), at.field("workspace"))?,
        priority: u8::try_from(priority).unwrap_or(limits::PRIORITY_DEFAULT),
        payload,
        start: start(task.delay_ms, task.run_at.as_deref(), at)?,
        spec: Spec {
            max_attempts: task
                .max_attempts
                .map(|n| within(n, 1, i64::from(limits::MAX_ATTEMPTS_MAX), at.field("max_attempts")))
                .transpose()?
                .and_then(|n| u32::try_from(n).ok()),
            lease_ttl_ms,
            heartbeat_ms,
            timeout_ms: timeout(task.timeout_seconds, task.timeout_ms, at)?,
            cancel_grace_ms: task
                .cancel_grace_period_ms
                .map(|ms| within(ms, 0, limits::CANCEL_GRACE_MS_MAX, at.field("cancel_grace_period_ms")))
                .transpose()?,
            deadline: task.deadline.as_deref().map(|text| time(text, at.field("deadline"))).transpose()?,
            retry: task.retry.map(|policy| retry(&policy, at)).transpose()?,
            sandbox: task.runtime.is_some(),
            rebuild: false,
        },
        tags: tags(task.tags.unwrap_or_default(), at)?,
        idempotency: None,
        traceparent: task
            .traceparent
            .map(|text| text_of(&text, at.field("traceparent"), limits::TRACEPARENT_BYTES))
            .transpose()?,
        submitted_by: caller.credential(),
        envelope,
    };
    new.idempotency = key.map(|key| Idempotency { key, fingerprint: fingerprint::of_task(&new) });
    Ok(new)
}

/// What only callback workers are told.
fn envelope(task: &TaskSubmission, sandbox: Option<SandboxRun>, at: At) -> Result<Option<Arc<EnvelopeSpec>>, Fault> {
    let amount = |value: Option<i64>, name: &str| {
        let value = value.map(|n| within(n, 1, (1 << 53) - 1, at.field(name))).transpose()?;
        Ok::<_, Fault>(value.map(i64::unsigned_abs))
    };
    let resources = task.resources.as_ref();
    let asset = task.asset_id.as_deref().map(|text| text_of(text, at.field("asset_id"), limits::ASSET_ID_BYTES));
    let ttl = task.token_ttl_seconds.map(|s| {
        within(s, 1, limits::TOKEN_TTL_MS_MAX / 1000, at.field("token_ttl_seconds")).map(|seconds| seconds * 1000)
    });
    let key = |text: Option<&str>, name: &str| {
        text.map(|text| words(text, at.field(name), limits::ENVELOPE_KEY_BYTES)).transpose()
    };
    let envelope = EnvelopeSpec {
        asset_id: asset.transpose()?,
        partition_key: key(task.partition_key.as_deref(), "partition_key")?,
        execution_location_id: key(task.execution_location_id.as_deref(), "execution_location_id")?,
        memory_bytes: amount(resources.and_then(|r| r.memory_bytes), "resources.memory_bytes")?,
        cpu_millicores: amount(resources.and_then(|r| r.cpu_millicores), "resources.cpu_millicores")?,
        token_ttl_ms: ttl.transpose()?,
        sandbox,
    };
    let envelope = without_defaults(envelope, &task.operator);
    Ok((envelope != EnvelopeSpec::default()).then(|| Arc::new(envelope)))
}

/// Length of the lease and the interval of heartbeats, each given in seconds or in milliseconds.
fn liveness(task: &TaskSubmission, at: At) -> Result<(Option<i64>, Option<i64>), Fault> {
    let (interval, timeout) = (task.heartbeat_interval_ms, task.heartbeat_timeout_ms);
    if interval.is_none() && timeout.is_none() {
        let ttl = task.lease_ttl_seconds.map(|s| lease_ttl(s, at.field("lease_ttl_seconds"))).transpose()?;
        return Ok((ttl, heartbeat(task.heartbeat_interval_seconds, task.lease_ttl_seconds, at)?));
    }
    if task.lease_ttl_seconds.is_some() || task.heartbeat_interval_seconds.is_some() {
        let message = "use lease_ttl_seconds and heartbeat_interval_seconds, or heartbeat_timeout_ms and \
                       heartbeat_interval_ms, not both";
        return Err(at.fault("heartbeat_timeout_ms", message));
    }
    let (min, max) = (limits::LEASE_TTL_MS_MIN, limits::LEASE_TTL_MS_MAX);
    let timeout =
        within(timeout.unwrap_or(limits::CALLBACK_LEASE_MS_DEFAULT), min, max, at.field("heartbeat_timeout_ms"))?;
    let interval = interval.unwrap_or(limits::CALLBACK_LEASE_MS_DEFAULT / limits::HEARTBEATS_PER_LEASE);
    let interval = within(interval, 1, max / 2, at.field("heartbeat_interval_ms"))?;
    if timeout < 2 * interval {
        let message = format!("must be at least twice heartbeat_interval_ms: {timeout} is less than 2 * {interval}");
        return Err(at.fault("heartbeat_timeout_ms", &message));
    }
    Ok((Some(timeout), Some(interval)))
}

fn start(delay_ms: Option<i64>, run_at: Option<&str>, at: At) -> Result<Start, Fault> {
    match (delay_ms, run_at) {
        (Some(_), Some(_)) => Err(at.fault("run_at", "use delay_ms or run_at, not both")),
        (Some(ms), None) => Ok(Start::After(within(ms, 0, limits::DELAY_MS_MAX, at.field("delay_ms"))?)),
        (None, Some(text)) => Ok(Start::At(time(text, at.field("run_at"))?)),
        (None, None) => Ok(Start::Now),
    }
}

fn lease_ttl(seconds: i64, field: String) -> Result<i64, Fault> {
    Ok(within(seconds, limits::LEASE_TTL_MS_MIN / 1000, limits::LEASE_TTL_MS_MAX / 1000, field)? * 1000)
}

fn heartbeat(seconds: Option<i64>, ttl_seconds: Option<i64>, at: At) -> Result<Option<i64>, Fault> {
    let Some(seconds) = seconds else { return Ok(None) };
    let ttl = ttl_seconds.unwrap_or(limits::LEASE_TTL_MS_DEFAULT / 1000);
    if seconds < 1 || seconds >= ttl.max(2) {
        return Err(at.fault("heartbeat_interval_seconds", "must be at least 1 and below lease_ttl_seconds"));
    }
    Ok(Some(seconds * 1000))
}

fn timeout(seconds: Option<i64>, ms: Option<i64>, at: At) -> Result<Option<i64>, Fault> {
    match (seconds, ms) {
        (Some(_), Some(_)) => Err(at.fault("timeout_ms", "use timeout_seconds or timeout_ms, not both")),
        (Some(s), None) => Ok(Some(within(s, 1, limits::TIMEOUT_MS_MAX / 1000, at.field("timeout_seconds"))? * 1000)),
        (None, Some(ms)) => Ok(Some(within(ms, 1, limits::TIMEOUT_MS_MAX, at.field("timeout_ms"))?)),
        (None, None) => Ok(None),
    }
}

fn retry(policy: &WireRetry, at: At) -> Result<RetryPolicy, Fault> {
    let defaults = RetryPolicy::default();
    let backoff = |ms: Option<i64>, name: &str, default| match ms {
        None => Ok(default),
        Some(ms) => within(ms, 0, limits::BACKOFF_MS_MAX, at.field(name)),
    };
    let factor = policy.factor.unwrap_or(defaults.factor);
    if !(1.0..=limits::BACKOFF_FACTOR_MAX).contains(&factor) {
        return Err(at.fault("retry.factor", "must be from 1 to 100"));
    }
    let jitter = match policy.jitter.as_deref() {
        None | Some("full") => Jitter::Full,
        Some("none") => Jitter::None,
        Some(_) => return Err(at.fault("retry.jitter", "must be full or none")),
    };
    Ok(RetryPolicy {
        initial_backoff_ms: backoff(
            policy.initial_backoff_ms,
            "retry.initial_backoff_ms",
            defaults.initial_backoff_ms,
        )?,
        factor,
        max_backoff_ms: backoff(policy.max_backoff_ms, "retry.max_backoff_ms", defaults.max_backoff_ms)?,
        jitter,
    })
}

fn tags(tags: BTreeMap<String, String>, at: At) -> Result<BTreeMap<String, String>, Fault> {
    pairs(tags, &at.field("tags"))
}

/// Tags of a task, labels of a run.
pub fn pairs(tags: BTreeMap<String, String>, field: &str) -> Result<BTreeMap<String, String>, Fault> {
    if tags.len() > limits::TAGS {
        return Err(Fault::invalid(field, &format!("at most {} of them", limits::TAGS)));
    }
    for (key, value) in &tags {
        let fits = |text: &str| text.len() <= limits::TAG_BYTES && !text.chars().any(is_unseen);
        if key.is_empty() || key.contains(':') || !fits(key) || !fits(value) {
            let message = "names must not contain ':', values may have at most 256 bytes, without control or invisible characters";
            return Err(Fault::invalid(field, message));
        }
    }
    Ok(tags)
}

/// Whatever is the default anyway is left out, so that it makes no difference to the fingerprint of a submission.
fn without_defaults(envelope: EnvelopeSpec, operator: &str) -> EnvelopeSpec {
    let usual = Resources::default();
    EnvelopeSpec {
        asset_id: envelope.asset_id.filter(|asset| **asset != *operator),
        memory_bytes: envelope.memory_bytes.filter(|bytes| *bytes != usual.memory_bytes),
        cpu_millicores: envelope.cpu_millicores.filter(|cpu| *cpu != usual.cpu_millicores),
        ..envelope
    }
}

/// All but where its tasks are pushed, which takes the configuration to judge.
pub fn queue_settings(wire: &WireQueue) -> Result<QueueSettings, Fault> {
    let rate = match &wire.rate {
        None => None,
        Some(rate) => {
            let burst = rate.burst.unwrap_or(rate.per_second.max(1.0));
            let sane = |value: f64, min: f64| value.is_finite() && value >= min && value <= 1e6;
            if !sane(rate.per_second, 1e-3) {
                return Err(Fault::invalid("rate.per_second", "must be from 0.001 to 1000000"));
            }
            if !sane(burst, 1.0) {
                return Err(Fault::invalid("rate.burst", "must be from 1 to 1000000"));
            }
            Some(Rate { per_second: rate.per_second, burst })
        }
    };
    let fairness_key = match wire.fairness_key.as_deref() {
        None => None,
        Some(text) => Some(
            FairnessKey::parse(text)
                .ok_or_else(|| Fault::invalid("fairness_key", "must be tenant, workspace or tag:<name>"))?,
        ),
    };
    let max_running = wire.max_running.map(|n| within(n, 0, i64::from(i32::MAX), "max_running")).transpose()?;
    Ok(QueueSettings {
        max_running: max_running.and_then(|n| u32::try_from(n).ok()),
        rate,
        fairness_key,
        lease_ttl_ms: wire.lease_ttl_seconds.map(|s| lease_ttl(s, "lease_ttl_seconds".to_owned())).transpose()?,
        heartbeat_ms: heartbeat(wire.heartbeat_interval_seconds, wire.lease_ttl_seconds, At(None))?,
        no_dead_letter: wire.dead_letter == Some(false),
        strict: wire.strict == Some(true),
        push: None,
        dispatch: None,
    })
}

/// What of it is named, checked together with what stays. Transport and push take the configuration to judge.
pub fn queue_change(wire: &WireChange, current: &QueueSettings) -> Result<QueueChange, Fault> {
    let seconds = |named: Option<Option<i64>>, now: Option<i64>| named.unwrap_or(now.map(|ms| ms / 1000));
    let checked = queue_settings(&WireQueue {
        max_running: wire.max_running.flatten(),
        rate: wire.rate.clone().flatten(),
        fairness_key: wire.fairness_key.clone().flatten(),
        lease_ttl_seconds: seconds(wire.lease_ttl_seconds, current.lease_ttl_ms),
        heartbeat_interval_seconds: seconds(wire.heartbeat_interval_seconds, current.heartbeat_ms),
        ..WireQueue::default()
    })?;
    Ok(QueueChange {
        max_running: wire.max_running.map(|_| checked.max_running),
        rate: wire.rate.as_ref().map(|_| checked.rate),
        fairness_key: wire.fairness_key.as_ref().map(|_| checked.fairness_key.clone()),
        lease_ttl_ms: wire.lease_ttl_seconds.map(|_| checked.lease_ttl_ms),
        heartbeat_ms: wire.heartbeat_interval_seconds.map(|_| checked.heartbeat_ms),
        no_dead_letter: wire.dead_letter.map(|dead_letter| dead_letter == Some(false)),
        strict: wire.strict.map(|strict| strict == Some(true)),
        ..QueueChange::default()
    })
}

/// `limit` of a list.
pub fn page_limit(limit: Option<i64>) -> Result<usize, Fault> {
    let limit = limit.unwrap_or(limits::LIST_LIMIT_DEFAULT as i64);
    let limit = within(limit, 1, limits::LIST_LIMIT_MAX as i64, "limit")?;
    Ok(usize::try_from(limit).unwrap_or(limits::LIST_LIMIT_DEFAULT))
}

/// A run id in a path.
pub fn run_id(text: &str, field: &str) -> Result<RunId, Fault> {
    RunId::parse(text).map_err(|error| Fault::invalid(field, &error.to_string()))
}

/// The beginning of an id, after `kind` or without it.
pub fn id_prefix(text: &str, kind: &str) -> Result<IdPrefix, Fault> {
    IdPrefix::parse(text, kind).map_err(|_| {
        let message = format!("must be the first {} or more digits of an id", IdPrefix::DIGITS_MIN);
        Fault::invalid("id_prefix", &message)
    })
}

/// A task id in a path or a body.
pub fn task_id(text: &str, field: &str) -> Result<TaskId, Fault> {
    TaskId::parse(text).map_err(|error| Fault::invalid(field, &error.to_string()))
}
