//! Judges what a task says about datasets against what it was given.
//!
//! Everything that this looks at is fixed, so that it can be judged before the transaction of the report. It counts only
//! after the fence.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::data::{DataRefusal, DataReport, NewEvent, NewInvalidation, OutputCommit, Partition, Position, Read, Scope};
use super::deployment::JobOutput;
use super::id::{DatasetId, InvalidationId, VersionId};
use super::range::{Cursor, KeyError, PartitionKey};
use super::task::{InputAt, TaskInput};

/// Events of one report.
pub const EVENTS: usize = 1_000;
/// Outputs of one report.
pub const OUTPUTS: usize = 256;
/// Why data can have changed.
pub const REASONS: [&str; 4] = ["reorg", "correction", "manual", "schema_change"];
/// A condition on rows as JSON.
pub const ROW_FILTER_BYTES: usize = 4 << 10;
/// The reason of an invalidation that follows from one that the task does not know.
const CHANGED: &str = "correction";

/// Where something is, as a worker says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Where {
    pub cursor: Option<Cursor>,
    pub partition_key: Option<Arc<str>>,
    pub start: Option<Cursor>,
    pub end: Option<Cursor>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidEvent {
    pub dataset: DatasetId,
    pub version: VersionId,
    pub at: Where,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidOutput {
    pub dataset: DatasetId,
    pub version: SaidVersion,
    pub at: Where,
    pub location: Arc<str>,
    pub row_count: Option<i64>,
    pub bytes: Option<i64>,
    pub schema_hash: Option<Arc<str>>,
    pub manifest: Option<Arc<str>>,
}

/// What the version of an output means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaidVersion {
    /// The generation that the task was given.
    Generation(VersionId),
    /// A name for what was written, which is not compared with the generation.
    Artifact(Option<VersionId>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidInvalidation {
    pub id: InvalidationId,
    pub dataset: DatasetId,
    pub scope: Scope,
    pub reason: Arc<str>,
}

/// Everything that a report says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    pub outputs: Vec<SaidOutput>,
    pub events: Vec<SaidEvent>,
    pub invalidations: Vec<SaidInvalidation>,
    pub operator_state: Option<Arc<str>>,
}

/// What decides beside the task's own input.
pub struct Rules<'a> {
    pub org: Arc<str>,
    /// The job writes its outputs anew instead of adding to them.
    pub replaces: bool,
    /// The report ends the attempt. Before that nothing counts as read or done.
    pub ends: bool,
    /// Whether there ever was such a generation of a dataset.
    pub knows: &'a dyn Fn(DatasetId, VersionId) -> bool,
    /// An id for an invalidation that follows from another one: of this dataset, with this scope.
    pub cascade: &'a dyn Fn(DatasetId, &Scope) -> InvalidationId,
}

fn refuse(code: &'static str, message: String) -> DataRefusal {
    DataRefusal { code, message }
}

impl fmt::Debug for Rules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("org", &self.org).field("replaces", &self.replaces).finish_non_exhaustive()
    }
}

impl Where {
    /// A partition counts more than a cursor beside it. `None` if it names neither.
    fn position(&self, what: &str) -> Result<Option<Position>, DataRefusal> {
        let Some(text) = &self.partition_key else {
            if self.start.is_some() || self.end.is_some() {
                let message = format!("{what}: start and end need a partition_key, such as \"1000-1999\"");
                return Err(refuse("invalid_event", message));
            }
            return Ok(self.cursor.map(|cursor| Position::Cursor(cursor.signed())));
        };
        let key = PartitionKey::parse(text).map_err(|error| refuse("invalid_event", format!("{what}: {error}")))?;
        key.agrees(self.start, self.end).map_err(|error| match error {
            KeyError::Invalid => refuse("invalid_event", format!("{what}: {error}")),
            KeyError::Mismatch => refuse("partition_mismatch", format!("{what}: {error} {key}")),
        })?;
        let ends = key.numbers().map(|(start, end)| (start.signed(), end.signed()));
        Ok(Some(Position::Partition(Partition { key: key.into(), ends })))
    }
}

fn granted(input: &TaskInput, dataset: DatasetId, what: &str) -> Result<JobOutput, DataRefusal> {
    let output = input.outputs.iter().find(|output| output.dataset == dataset).copied();
    let message = || format!("{what}: dataset {dataset} is not an output of the job");
    output.ok_or_else(|| refuse("dataset_not_granted", message()))
}

/// What the report writes, or why it is refused.
pub fn judge(input: &TaskInput, said: &Said, rules: &Rules<'_>) -> Result<DataReport, DataRefusal> {
    let mut report = DataReport::of(Arc::clone(&rules.org), input.job);
    let mut seen: BTreeSet<(VersionId, Position)> = BTreeSet::new();
    for (index, output) in said.outputs.iter().enumerate() {
        let what = format!("outputs[{index}]");
        let commit = judge_output(input, output, &what)?;
        let (dataset, version, position) = (commit.dataset, commit.version, commit.position.clone());
        if seen.insert((version, position.clone())) {
            report.events.push(NewEvent { dataset, version, position });
        }
        report.outputs.push(commit);
    }
    for (index, event) in said.events.iter().enumerate() {
        let what = format!("events[{index}]");
        granted(input, event.dataset, &what)?;
        if !(rules.knows)(event.dataset, event.version) {
            let message = format!("{what}: dataset {} never had a version {}", event.dataset, event.version);
            return Err(refuse("unknown_dataset_version", message));
        }
        let message = || format!("{what}: name a cursor, or a partition_key");
        let position = event.at.position(&what)?.ok_or_else(|| refuse("invalid_event", message()))?;
        // The event of an output may be sent explicitly as well.
        if seen.insert((event.version, position.clone())) {
            report.events.push(NewEvent { dataset: event.dataset, version: event.version, position });
        }
    }
    for (index, invalidation) in said.invalidations.iter().enumerate() {
        let what = format!("invalidations[{index}]");
        let output = granted(input, invalidation.dataset, &what)?;
        check_scope(&invalidation.scope, &what)?;
        report.invalidations.push(NewInvalidation {
            id: invalidation.id,
            dataset: output.dataset,
            version: output.version,
            scope: invalidation.scope.clone(),
            reason: Arc::clone(&invalidation.reason),
        });
    }
    if rules.ends {
        report.reads = reads(input);
        report.operator_state.clone_from(&said.operator_state);
        report.invalidation = input.invalidation.as_ref().map(|invalidated| invalidated.id);
    }
    if rules.replaces {
        cascade(input, rules, &mut report);
    }
    Ok(report)
}

fn judge_output(input: &TaskInput, output: &SaidOutput, what: &str) -> Result<OutputCommit, DataRefusal> {
    let own = granted(input, output.dataset, what)?;
    let artifact = match output.version {
        SaidVersion::Generation(version) if version != own.version => {
            let message = format!("{what}: the task writes version {} of dataset {}", own.version, own.dataset);
            return Err(refuse("dataset_version_conflict", message));
        }
        SaidVersion::Generation(_) => None,
        SaidVersion::Artifact(name) => name,
    };
    let message = || format!("{what}: name the cursor or the partition that was written");
    let position = output.at.position(what)?.ok_or_else(|| refuse("output_without_position", message()))?;
    Ok(OutputCommit {
        dataset: own.dataset,
        version: own.version,
        position,
        location: Arc::clone(&output.location),
        row_count: output.row_count,
        bytes: output.bytes,
        schema_hash: output.schema_hash.clone(),
        manifest: output.manifest.clone(),
        artifact,
    })
}

/// Whether an invalidation can say this.
pub fn check_scope(scope: &Scope, what: &str) -> Result<(), DataRefusal> {
    match scope {
        Scope::Partition { partition_key } => match PartitionKey::parse(partition_key) {
            Ok(_) => Ok(()),
            Err(error) => Err(refuse("invalid_event", format!("{what}: {error}"))),
        },
        Scope::RowRange { row_filter } => match check_row_filter(row_filter) {
            Ok(()) => Ok(()),
            Err(wrong) => Err(refuse("invalid_event", format!("{what}: row_filter {wrong}"))),
        },
    }
}

/// Columns with their bounds: `{"block_number":{"gte":995,"lte":1005}}`.
fn check_row_filter(text: &str) -> Result<(), String> {
    const BOUNDS: [&str; 4] = ["gte", "lte", "gt", "lt"];
    if text.len() > ROW_FILTER_BYTES {
        return Err(format!("may have at most {ROW_FILTER_BYTES} bytes"));
    }
    let columns = match serde_json::from_str(text) {
        Ok(Value::Object(columns)) if !columns.is_empty() => columns,
        _ => {
            return Err(
                "must be an object of columns, such as {\"block_number\":{\"gte\":995,\"lte\":1005}}".to_owned()
            );
        }
    };
    for (column, bounds) in &columns {
        let bounds = bounds.as_object().filter(|bounds| !bounds.is_empty());
        let bounds = bounds.ok_or_else(|| format!("{column} must be an object with gte, lte, gt or lt"))?;
        for (bound, value) in bounds {
            if !BOUNDS.contains(&bound.as_str()) {
                return Err(format!("{column} has {bound}; gte, lte, gt and lt are known"));
            }
            if !value.is_number() && !value.is_string() {
                return Err(format!("{column}.{bound} must be a number or a text"));
            }
        }
    }
    Ok(())
}

/// How far the job has read its inputs when this task has succeeded.
fn reads(input: &TaskInput) -> Vec<Read> {
    let read = input.inputs.iter().filter_map(|at| match at.position.as_ref()? {
        Position::Cursor(cursor) => Some(Read::UpTo { version: at.version, cursor: *cursor }),
        Position::Partition(partition) => {
            let (version, key, generation) = (at.version, Arc::clone(&partition.key), at.generation);
            Some(Read::Partition { version, key, generation })
        }
    });
    read.collect()
}

/// What was written anew from changed data has changed, too. The generation tells that the data has changed also if the
/// task was not made by the invalidation: the job may have become active after it.
fn cascade(input: &TaskInput, rules: &Rules<'_>, report: &mut DataReport) {
    let invalidated = input.invalidation.as_ref();
    let changed = |at: &InputAt| at.position.is_some() && at.generation > 0;
    let of_partition = input.inputs.iter().any(|at| at.position.as_ref().is_some_and(|at| at.partition().is_some()));
    if invalidated.is_none() && !input.inputs.iter().any(changed) {
        return;
    }
    let reason = invalidated.map_or_else(|| Arc::from(CHANGED), |invalidated| Arc::clone(&invalidated.reason));
    for output in &input.outputs {
        let scopes = match invalidated.map(|invalidated| &invalidated.scope) {
            // Its readers are told of the partitions that it wrote; of rows by their values, once all are there, unless it
            // read a partition: others read the rest.
            Some(rows @ Scope::RowRange { .. }) if !of_partition => {
                rules.ends.then(|| rows.clone()).into_iter().collect()
            }
            _ => written(report, output.version),
        };
        for scope in scopes {
            let (dataset, version, reason) = (output.dataset, output.version, Arc::clone(&reason));
            let id = (rules.cascade)(dataset, &scope);
            report.invalidations.push(NewInvalidation { id, dataset, version, scope, reason });
        }
    }
}

/// The partitions of a generation that a report tells of.
fn written(report: &DataReport, version: VersionId) -> Vec<Scope> {
    let events = report.events.iter().filter(|event| event.version == version);
    let keys: BTreeSet<Arc<str>> =
        events.filter_map(|event| Some(Arc::clone(&event.position.partition()?.key))).collect();
    keys.into_iter().map(|partition_key| Scope::Partition { partition_key }).collect()
}

#[cfg(test)]
mod tests;
