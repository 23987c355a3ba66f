//! Reads requests of the dispatch contract in the spellings of deployed workers.
//!
//! `null` is absent, an empty body is `{}`, `outcome` stands for `status` and `datasets_published` for `outputs`. What comes
//! out is in the words of the contract, so that nothing behind this file knows of another spelling.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{
    AttemptRef, BufferPublishRequest, ClaimRequest, CompleteRequest, CredentialsRequest, Event, EventsRequest, Failure,
    Invalidation, LogsRequest, Outcome, Output,
};
use crate::Json;
use crate::query::{QueryRequest, TaskQueryRequest};

/// Why a body is not a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// 400 `malformed_request`.
    Malformed(String),
    /// 422 `unsupported_field`: it counts only with `Completed`.
    Unsupported { field: &'static str },
}

impl Unreadable {
    fn malformed(message: impl Into<String>) -> Self {
        Self::Malformed(message.into())
    }
}

type Read<T> = Result<T, Unreadable>;

/// How much a message returns of what was sent.
const QUOTED_CHARS: usize = 80;

/// The fields of a request.
struct Fields(Map<String, Value>);

impl Fields {
    fn of(body: &[u8]) -> Read<Self> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(mut fields)) => {
                fields.retain(|_, value| !value.is_null());
                Ok(Self(fields))
            }
            Ok(_) => Err(Unreadable::malformed("the body is not a JSON object")),
            Err(error) => {
                // The text of the error may quote the body.
                let (line, column) = (error.line(), error.column());
                Err(Unreadable::malformed(format!("the body is not JSON: line {line}, column {column}")))
            }
        }
    }

    fn take<T: DeserializeOwned>(&mut self, name: &str, what: &str) -> Read<Option<T>> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        serde_json::from_value(value).map(Some).map_err(|_| Unreadable::malformed(format!("{name} must be {what}")))
    }

    fn required<T: DeserializeOwned>(&mut self, name: &str, what: &str) -> Read<T> {
        self.take(name, what)?.ok_or_else(|| Unreadable::malformed(format!("{name} is missing: it is {what}")))
    }

    fn attempt(&mut self) -> Read<AttemptRef> {
        Ok(AttemptRef {
            task_id: self.required("task_id", "the id of a task")?,
            attempt: self.required("attempt", "the number of an attempt")?,
            lease_token: self.take("lease_token", "a string")?,
            worker_id: self.take("worker_id", "a string")?,
        })
    }

    /// A list of objects; each may have fields that are not known.
    fn list<T: DeserializeOwned>(&mut self, name: &str) -> Read<Vec<T>> {
        let items: Vec<Value> = self.take(name, "a list")?.unwrap_or_default();
        let read = items.into_iter().enumerate().map(|(index, item)| {
            if !item.is_object() {
                return Err(Unreadable::malformed(format!("{name}[{index}] must be an object")));
            }
            serde_json::from_value(item).map_err(|error| {
                // It names a field or a type, and can quote a value of the caller's own, however long that is.
                let error: String = error.to_string().chars().take(QUOTED_CHARS).collect();
                Unreadable::malformed(format!("{name}[{index}]: {error}"))
            })
        });
        read.collect()
    }
}

pub fn claim(body: &[u8]) -> Read<ClaimRequest> {
    let mut fields = Fields::of(body)?;
    Ok(ClaimRequest {
        task_id: fields.required("task_id", "the id of a task")?,
        worker_id: fields.take("worker_id", "a string")?,
        claim_id: fields.take("claim_id", "a string")?,
    })
}

pub fn heartbeat(body: &[u8]) -> Read<AttemptRef> {
    Fields::of(body)?.attempt()
}

pub fn events(body: &[u8]) -> Read<EventsRequest> {
    let mut fields = Fields::of(body)?;
    Ok(EventsRequest {
        attempt: fields.attempt()?,
        events: fields.list("events")?,
        invalidations: fields.list("invalidations")?,
    })
}

pub fn logs(body: &[u8]) -> Read<LogsRequest> {
    let mut fields = Fields::of(body)?;
    Ok(LogsRequest {
        attempt: fields.attempt()?,
        lines: fields.list("lines")?,
        dropped: fields.take("dropped", "a whole number")?,
    })
}

pub fn query(body: &[u8]) -> Read<TaskQueryRequest> {
    let mut fields = Fields::of(body)?;
    Ok(TaskQueryRequest {
        task_id: fields.take("task_id", "the id of a task")?,
        attempt: fields.take("attempt", "the number of an attempt")?,
        lease_token: fields.take("lease_token", "a string")?,
        query: QueryRequest {
            sql: fields.required("sql", "one SELECT")?,
            dataset_id: fields.take("dataset_id", "a string")?,
            datasets: None,
            limit: fields.take("limit", "a whole number")?,
            format: fields.take("format", "json, csv or parquet")?,
            export: fields.take("export", "true or false")?,
            mode: None,
            timeout_seconds: fields.take("timeout_seconds", "a whole number")?,
        },
    })
}

/// Records are kept as they were sent, to the last digit.
#[derive(serde::Deserialize)]
struct SentPublish<'a> {
    task_id: Option<String>,
    attempt: Option<u32>,
    lease_token: Option<String>,
    worker_id: Option<String>,
    dataset_uuid: Option<String>,
    dedupe_scope: Option<String>,
    schema_hash: Option<String>,
    batch_uri: Option<String>,
    content_type: Option<String>,
    batch_size_bytes: Option<u64>,
    #[serde(borrow)]
    records: Option<&'a RawValue>,
}

pub fn buffer_publish(body: &[u8]) -> Read<BufferPublishRequest> {
    let missing = |name: &str, what: &str| Unreadable::malformed(format!("{name} is missing: it is {what}"));
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(missing("task_id", "the id of a task"));
    }
    // A list would be taken for the fields in their order.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(Unreadable::malformed("the body is not a JSON object"));
    }
    let sent: SentPublish<'_> = serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Unreadable::malformed(format!("the body is not a JSON object of this shape: line {line}, column {column}"))
    })?;
    let (task_id, attempt) = (sent.task_id, sent.attempt);
    Ok(BufferPublishRequest {
        attempt: AttemptRef {
            task_id: task_id.ok_or_else(|| missing("task_id", "the id of a task"))?,
            attempt: attempt.ok_or_else(|| missing("attempt", "the number of an attempt"))?,
            lease_token: sent.lease_token,
            worker_id: sent.worker_id,
        },
        dataset_uuid: sent.dataset_uuid,
        dedupe_scope: sent.dedupe_scope,
        schema_hash: sent.schema_hash,
        batch_uri: sent.batch_uri,
        content_type: sent.content_type,
        batch_size_bytes: sent.batch_size_bytes,
        records: sent.records.map(|records| records.get().to_owned()),
    })
}

pub fn credentials(body: &[u8]) -> Read<CredentialsRequest> {
    let mut fields = Fields::of(body)?;
    let purpose = fields.take("purpose", "a text")?;
    let want = fields.take("want", "an object with the lists read, write and scratch")?;
    Ok(CredentialsRequest { purpose, want })
}

pub fn complete(body: &[u8]) -> Read<CompleteRequest> {
    let mut fields = Fields::of(body)?;
    let attempt = fields.attempt()?;
    let (outcome, fatal) = outcome(&mut fields)?;
    let retryable = fields.take("retryable", "true or false")?.unwrap_or(true) && !fatal;
    let failure = failure(&mut fields)?;
    let mut outputs: Vec<Output> = fields.list("outputs")?;
    let published: Vec<Published> = fields.list("datasets_published")?;
    let published_count = published.len();
    outputs.extend(published.into_iter().map(Output::from));
    let events: Vec<Event> = fields.list("events")?;
    let invalidations: Vec<Invalidation> = fields.list("invalidations")?;
    let operator_state: Option<Value> = fields.take("operator_state", "an object")?;
    if operator_state.as_ref().is_some_and(|state| !state.is_object()) {
        return Err(Unreadable::malformed("operator_state must be an object"));
    }
    if outcome != Outcome::Completed {
        let unsupported = [
            ("outputs", outputs.len() > published_count),
            ("datasets_published", published_count > 0),
            ("events", !events.is_empty()),
            ("invalidations", !invalidations.is_empty()),
            ("operator_state", operator_state.is_some()),
        ];
        if let Some((field, _)) = unsupported.into_iter().find(|(_, is_there)| *is_there) {
            return Err(Unreadable::Unsupported { field });
        }
    }
    let failure = failure.filter(|_| outcome == Outcome::Failed);
    let canonical = serde_json::json!({
        "status": outcome, "retryable": outcome == Outcome::Failed && retryable, "error": failure, "outputs": outputs,
        "events": events, "invalidations": invalidations, "operator_state": operator_state,
    });
    let operator_state = operator_state.map(|state| Json::from_trusted(state.to_string()));
    let canonical = Json::from_trusted(bare(canonical).to_string());
    Ok(CompleteRequest {
        attempt,
        outcome,
        retryable,
        failure,
        outputs,
        events,
        invalidations,
        operator_state,
        canonical,
    })
}

/// Without nulls and empty lists; keys are sorted anyway.
fn bare(value: Value) -> Value {
    let is_there = |value: &Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
    match value {
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, bare(value))).filter(|(_, value)| is_there(value)).collect()
        }
        Value::Array(items) => items.into_iter().map(bare).collect(),
        other => other,
    }
}

/// `status` or `outcome`, and whether it says that no retry helps.
fn outcome(fields: &mut Fields) -> Read<(Outcome, bool)> {
    let status: Option<String> = fields.take("status", "a string")?;
    let word: Option<String> = fields.take("outcome", "a string")?;
    let by_status = status.map(|status| match status.as_str() {
        "Completed" => Ok(Outcome::Completed),
        "Failed" => Ok(Outcome::Failed),
        "Canceled" | "Cancelled" => Ok(Outcome::Canceled),
        _ => Err(Unreadable::malformed("status must be Completed, Failed or Canceled")),
    });
    let by_word = word.map(|word| match word.as_str() {
        "success" => Ok((Outcome::Completed, false)),
        "retryable_error" => Ok((Outcome::Failed, false)),
        "fatal_error" => Ok((Outcome::Failed, true)),
        _ => Err(Unreadable::malformed("outcome must be success, retryable_error or fatal_error")),
    });
    match (by_status.transpose()?, by_word.transpose()?) {
        (Some(status), Some((word, _))) if status != word => {
            Err(Unreadable::malformed("status and outcome disagree: send one of them"))
        }
        (_, Some(said)) => Ok(said),
        (Some(status), None) => Ok((status, false)),
        (None, None) => Err(Unreadable::malformed("status is missing: Completed, Failed or Canceled")),
    }
}

fn failure(fields: &mut Fields) -> Read<Option<Failure>> {
    let message: Option<String> = fields.take("error_message", "a string")?;
    let error: Option<Value> = fields.take("error", "an object")?;
    let failure = match error {
        None => None,
        Some(Value::String(text)) => Some(Failure { message: text, ..Failure::default() }),
        Some(Value::Array(_)) => return Err(Unreadable::malformed("error must be an object, not a list")),
        Some(value) => Some(
            serde_json::from_value::<Failure>(value)
                .map_err(|_| Unreadable::malformed("error must be an object with category, message and stack"))?,
        ),
    };
    Ok(match (failure, message) {
        (Some(failure), Some(message)) if failure.message.is_empty() => Some(Failure { message, ..failure }),
        (Some(failure), _) => Some(failure),
        (None, Some(message)) => Some(Failure { message, ..Failure::default() }),
        (None, None) => None,
    })
}

/// An element of `datasets_published`.
#[derive(serde::Deserialize)]
struct Published {
    dataset_uuid: String,
    #[serde(default)]
    dataset_version: Option<String>,
    #[serde(default)]
    storage_ref: Option<StorageRef>,
    #[serde(default)]
    config_hash: Option<String>,
    #[serde(default)]
    range_start: Option<u64>,
    /// The first value that no longer belongs to it.
    #[serde(default)]
    range_end: Option<u64>,
    #[serde(default)]
    row_count: Option<i64>,
    #[serde(default)]
    bytes: Option<i64>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum StorageRef {
    Location(String),
    Parts {
        #[serde(default)]
        scheme: Option<String>,
        #[serde(default)]
        bucket: Option<String>,
        #[serde(default)]
        prefix: Option<String>,
        #[serde(default)]
        name: Option<String>,
    },
}

impl StorageRef {
    fn location(self) -> Option<String> {
        match self {
            Self::Location(text) => Some(text),
            Self::Parts { scheme, bucket, prefix, name } => match (scheme.as_deref(), bucket, prefix, name) {
                (Some("table"), _, _, Some(name)) => Some(format!("table:{name}")),
                (Some("file"), _, Some(prefix), _) => Some(format!("file://{prefix}")),
                (Some("s3") | None, Some(bucket), Some(prefix), _) => Some(format!("s3://{bucket}/{prefix}")),
                _ => None,
            },
        }
    }
}

impl From<Published> for Output {
    fn from(published: Published) -> Self {
        let Published { dataset_uuid, dataset_version, storage_ref, config_hash, row_count, bytes, .. } = published;
        let span = published.range_start.zip(published.range_end);
        let whole = span.is_none().then(|| "all".to_owned());
        Self {
            dataset_uuid,
            dataset_version,
            names_artifact: true,
            location: storage_ref.and_then(StorageRef::location),
            partition_key: whole,
            span,
            row_count,
            bytes,
            config_hash,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests;
