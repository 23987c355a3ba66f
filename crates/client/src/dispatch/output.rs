//! What a handler says that it wrote.

use serde_json::{Map, Value};
use tenure_contract::{Json, dispatch};

/// Which data it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Position {
    /// A partition by its key.
    Partition(String),
    /// The partition of a range, whose end is as the DAG writes ranges.
    Range(u64, u64),
    /// How far an output goes that grows.
    Cursor(u64),
}

impl From<&str> for Position {
    fn from(key: &str) -> Self {
        Self::Partition(key.to_owned())
    }
}

impl From<String> for Position {
    fn from(key: String) -> Self {
        Self::Partition(key)
    }
}

impl From<(u64, u64)> for Position {
    fn from((start, end): (u64, u64)) -> Self {
        Self::Range(start, end)
    }
}

/// A position in the words of the contract.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) cursor: Option<Json>,
    pub(crate) partition_key: Option<String>,
    pub(crate) start: Option<Json>,
    pub(crate) end: Option<Json>,
}

impl From<Position> for Said {
    fn from(position: Position) -> Self {
        let number = |number: u64| Some(Json::from_trusted(number.to_string()));
        match position {
            Position::Partition(key) => Self { partition_key: Some(key), ..Self::default() },
            Position::Range(start, end) => Self {
                partition_key: Some(format!("{start}-{end}")),
                start: number(start),
                end: number(end),
                cursor: None,
            },
            Position::Cursor(cursor) => Self { cursor: number(cursor), ..Self::default() },
        }
    }
}

/// What was written to one output of the job. A handler returns one, several or none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an output counts if the handler returns it"]
pub struct Output {
    pub(crate) index: usize,
    position: Position,
    location: Option<String>,
    row_count: Option<i64>,
    bytes: Option<i64>,
    schema_hash: Option<String>,
}

impl Output {
    /// Of the output with this index.
    pub fn new(index: usize, position: impl Into<Position>) -> Self {
        Self { index, position: position.into(), location: None, row_count: None, bytes: None, schema_hash: None }
    }

    /// Where it is. Unless this is said: where [`Task::writer`](super::Task::writer) wrote, else an output without data.
    pub fn at(mut self, location: impl Into<String>) -> Self {
        self.location = Some(location.into());
        self
    }

    pub fn rows(mut self, rows: u64) -> Self {
        self.row_count = Some(i64::try_from(rows).unwrap_or(i64::MAX));
        self
    }

    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
        self
    }

    pub fn schema_hash(mut self, hash: impl Into<String>) -> Self {
        self.schema_hash = Some(hash.into());
        self
    }

    /// For the completion: `slot` is the output it is of, `written` is where the writer finished.
    pub(crate) fn into_wire(self, slot: &dispatch::TaskOutput, written: Option<String>) -> dispatch::Output {
        let Said { cursor, partition_key, start, end } = self.position.into();
        dispatch::Output {
            dataset_uuid: slot.dataset_uuid.clone(),
            dataset_version: Some(slot.dataset_version.clone()),
            location: self.location.or(written).or_else(|| Some("none:".to_owned())),
            cursor,
            partition_key,
            start,
            end,
            row_count: self.row_count,
            bytes: self.bytes,
            schema_hash: self.schema_hash,
            ..dispatch::Output::default()
        }
    }
}

/// What a handler can return: nothing, an [`Output`], or several.
pub trait IntoOutputs {
    fn into_outputs(self) -> Vec<Output>;

    /// The whole completion, if that is what the handler returned.
    fn completion(&self) -> Option<Json> {
        None
    }
}

/// The completion of a task in the words of the contract: for a worker that passes on what other code says.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a completion counts if the handler returns it"]
pub struct Completion(Map<String, Value>);

impl Completion {
    /// Names of the fence, which the worker sets.
    const FENCE: [&str; 4] = ["task_id", "attempt", "lease_token", "worker_id"];

    /// An object with `status` or `outcome` is a completion. Any other is a result: the task is completed without outputs.
    pub fn of(mut said: Map<String, Value>) -> Self {
        let says = |name: &str| said.get(name).is_some_and(|value| !value.is_null());
        if !says("status") && !says("outcome") {
            return Self([("status".to_owned(), Value::from("Completed"))].into_iter().collect());
        }
        said.retain(|name, _| !Self::FENCE.contains(&name.as_str()));
        Self(said)
    }
}

impl IntoOutputs for Completion {
    fn into_outputs(self) -> Vec<Output> {
        Vec::new()
    }

    fn completion(&self) -> Option<Json> {
        Json::of(&self.0).ok()
    }
}

impl IntoOutputs for () {
    fn into_outputs(self) -> Vec<Output> {
        Vec::new()
    }
}

impl IntoOutputs for Output {
    fn into_outputs(self) -> Vec<Output> {
        vec![self]
    }
}

impl IntoOutputs for Vec<Output> {
    fn into_outputs(self) -> Vec<Output> {
        self
    }
}
