//! Runs: tasks that depend on each other, submitted and watched as one.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Json;
use crate::pull::JobError;
use crate::user::{Page, TaskSubmission};
use crate::words::{RunState, TaskState};

pub type RunPage = Page<Run>;

/// Body of `POST /api/v1/runs`. Fields are also read in camelCase.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"run_key": "daily-2025-01-15", "tasks": [
    {"key": "extract", "queue": "etl", "operator": "extract", "payload": {"day": "2025-01-15"}},
    {"key": "load", "queue": "etl", "operator": "load", "depends_on": ["extract"],
     "payload": {"rows": {"$from": "extract", "path": "/rows"}}}]})))]
#[serde(deny_unknown_fields)]
pub struct RunSubmission {
    /// Unique in its tenant and workspace: the same key with the same content is the same run.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, alias = "runKey", skip_serializing_if = "Option::is_none")]
    pub run_key: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// The default of its tasks.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// 1..=10000, all or nothing.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    #[serde(default)]
    pub tasks: Vec<RunEntry>,
}

/// A task of a run: a task submission with a name and what it waits for. A payload may name outputs of tasks that it
/// waits for: `{"$from":"extract","path":"/rows"}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunEntry {
    /// Unique in the run.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    pub key: String,
    /// Keys of tasks that have to succeed before it.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    #[serde(flatten)]
    pub task: TaskSubmission,
}

impl<'de> Deserialize<'de> for RunEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = BTreeMap::<String, Json>::deserialize(deserializer)?;
        EntryFields::of(fields).and_then(EntryFields::decode).map_err(|fault| match fault {
            EntryFault { field, message } if field.is_empty() => D::Error::custom(message),
            EntryFault { field, message } => D::Error::custom(format!("{field}: {message}")),
        })
    }
}

/// What is wrong with an entry, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryFault {
    pub field: String,
    pub message: String,
}

/// The fields of an entry, in snake_case whatever they came in, before they are understood.
#[derive(Debug)]
pub struct EntryFields {
    pub key: Option<Json>,
    pub depends_on: Option<Json>,
    /// The rest, as the JSON text of a task submission.
    pub task: String,
}

/// Objects inside of an entry whose fields have names of ours. Payloads and tags are the caller's own.
const NESTED: [&str; 2] = ["retry", "resources"];

impl EntryFields {
    pub fn of(fields: BTreeMap<String, Json>) -> Result<Self, EntryFault> {
        let mut fields = snake_keys(fields, "")?;
        for name in NESTED {
            // What is no object is refused by its type, further on.
            if let Some(Ok(inner)) = fields.get(name).map(|nested| nested.decode::<BTreeMap<String, Json>>()) {
                let inner = snake_keys(inner, &format!("{name}."))?;
                fields.insert(name.to_owned(), Json::from_trusted(text(&inner)));
            }
        }
        let (key, depends_on) = (fields.remove("key"), fields.remove("depends_on"));
        Ok(Self { key, depends_on, task: text(&fields) })
    }

    fn decode(self) -> Result<RunEntry, EntryFault> {
        let wrong =
            |field: &str, error: &serde_json::Error| EntryFault { field: field.into(), message: error.to_string() };
        let key =
            self.key.map(|key| key.decode::<Option<String>>()).transpose().map_err(|error| wrong("key", &error))?;
        let depends_on = self.depends_on.map(|keys| keys.decode::<Option<Vec<String>>>()).transpose();
        Ok(RunEntry {
            key: key.flatten().unwrap_or_default(),
            depends_on: depends_on.map_err(|error| wrong("depends_on", &error))?.flatten().unwrap_or_default(),
            task: serde_json::from_str(&self.task).map_err(|error| wrong("", &error))?,
        })
    }
}

/// An object of texts that are JSON is JSON.
fn text(fields: &BTreeMap<String, Json>) -> String {
    serde_json::to_string(fields).unwrap_or_else(|_| "{}".to_owned())
}

/// `maxAttempts` is read as `max_attempts`; both at once is a mistake.
fn snake_keys(fields: BTreeMap<String, Json>, at: &str) -> Result<BTreeMap<String, Json>, EntryFault> {
    let mut renamed = BTreeMap::new();
    for (name, value) in fields {
        let snake = snake(&name);
        if renamed.insert(snake.clone(), value).is_some() {
            let message = format!("given in two spellings: {snake} and {name}");
            return Err(EntryFault { field: format!("{at}{snake}"), message });
        }
    }
    Ok(renamed)
}

/// A field name in the spelling that is written; fields are also read in camelCase.
pub fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// A run. `GET /api/v1/runs/{id}` and the answers to submit and rerun have its tasks; a list has not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    pub run_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_key: Option<String>,
    pub state: RunState,
    /// Answers to submit and rerun only: false if the run was there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
    /// `sha256:` and hex digits: of what was submitted, without its key.
    pub fingerprint: String,
    pub tenant: String,
    pub workspace: String,
    /// Whose run it is, if it is somebody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    pub cancel_requested: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// The run that this one repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    pub created_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    pub counts: RunCounts,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<RunTask>,
}

/// Number of tasks of a run by state. The open ones are broken down where the tasks are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunCounts {
    pub total: u32,
    /// Not ended.
    pub open: u32,
    pub succeeded: u32,
    pub failed: u32,
    pub skipped: u32,
    pub canceled: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
}

/// A task as its run shows it. Payload and result are at `GET /api/v1/tasks/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunTask {
    pub key: String,
    pub task_id: String,
    pub state: TaskState,
    pub attempt: u32,
    pub depends_on: Vec<String>,
    pub operator: String,
    pub queue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// When it is due, if it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_pct: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
}

/// Answer of `POST /api/v1/runs/{id}/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunCanceled {
    pub run_id: String,
    pub state: RunState,
    pub cancel_requested: bool,
    pub cancel_reason: String,
}

/// Body of `POST /api/v1/runs/{id}/rerun`, optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RerunRequest {
    /// `from_failure`, which is also the default.
    #[cfg_attr(feature = "openapi", schema(pattern = "^from_failure$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, alias = "runKey", skip_serializing_if = "Option::is_none")]
    pub run_key: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_is_read_in_both_spellings_and_written_in_one() {
        let camel = json!({"key": "load", "dependsOn": ["extract"], "operator": "load", "queue": "etl", "maxAttempts": 5,
            "retry": {"initialBackoffMs": 1000}, "payload": {"keepMe": 1}, "tags": {"keepMeToo": "x"}});
        let entry: RunEntry = serde_json::from_value(camel).unwrap();
        let snake = json!({"key": "load", "depends_on": ["extract"], "operator": "load", "queue": "etl", "max_attempts": 5,
            "retry": {"initial_backoff_ms": 1000}, "payload": {"keepMe": 1}, "tags": {"keepMeToo": "x"}});
        assert_eq!(serde_json::to_value(&entry).unwrap(), snake);
        assert_eq!(serde_json::from_value::<RunEntry>(snake).unwrap(), entry);
    }

    #[test]
    fn a_field_in_two_spellings_is_refused() {
        for entry in [
            json!({"key": "a", "maxAttempts": 5, "max_attempts": 5}),
            json!({"key": "a", "retry": {"maxBackoffMs": 1, "max_backoff_ms": 1}}),
        ] {
            let error = serde_json::from_value::<RunEntry>(entry).unwrap_err().to_string();
            assert!(error.contains("two spellings"), "{error}");
        }
    }

    #[test]
    fn null_is_absent_and_a_payload_keeps_its_text() {
        let text =
            r#"{"key":"a","queue":"q","operator":"op","depends_on":null,"max_attempts":null,"payload":{"n": 1.50}}"#;
        let entry: RunEntry = serde_json::from_str(text).unwrap();
        assert_eq!((entry.depends_on.len(), entry.task.max_attempts), (0, None));
        assert_eq!(entry.task.payload.unwrap().as_str(), r#"{"n": 1.50}"#);
    }

    #[test]
    fn what_is_wrong_with_an_entry_names_its_field() {
        let error = serde_json::from_str::<RunEntry>(r#"{"key":5}"#).unwrap_err().to_string();
        assert!(error.starts_with("key: "), "{error}");
    }
}
