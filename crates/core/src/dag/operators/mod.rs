//! Built-in operators: what a task of `runtime: dispatcher` does.
//!
//! An operator decides from the input of its task, the settings of its job and the state that the job keeps. The same
//! task decided again writes the same positions, so that a repeated run adds nothing.

mod aggregate;
mod query;
mod spans;
mod split;

use std::sync::Arc;

use serde_json::{Map, Value};

use super::data::{Partition, Position};
use super::definition::{ExecutionStrategy, JobDefinition, Runtime, Source};
use super::range::{Cursor, PartitionKey, Ranges, Span};
use super::task::{InputAt, TaskInput, Trigger};
use crate::attempt::{Category, Failure};

pub use aggregate::Aggregator;
pub use query::{Circumstances, Extent, Plan, Query};
pub use split::Splitter;

/// Ranges that one task may make.
pub const RANGES: u64 = 100_000;
/// Spans that an aggregator remembers.
pub const SPANS: usize = 10_000;

const SIZE_RULE: &str = "an integer from 1 to 2^63-1";

/// An operator with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// Tells the readers of its outputs that it has run.
    Tick,
    /// Does nothing.
    Noop,
    /// Joins ranges of its inputs to larger ones.
    RangeAggregator(Aggregator),
    /// Splits ranges into smaller ones.
    RangeSplitter(Splitter),
}

/// What is wrong with a job that a built-in operator is to run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct JobFault {
    /// The key of the job, such as `config.size`.
    pub field: &'static str,
    pub message: String,
}

impl JobFault {
    fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

/// What a task is decided from.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    pub input: &'a TaskInput,
    /// The number of the task, which grows with every task.
    pub number: i64,
    /// How the DAG writes ranges.
    pub ranges: Ranges,
    /// What the job has kept, as JSON.
    pub state: Option<&'a str>,
}

/// What a task does: each of its outputs is written at these positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    pub positions: Vec<Position>,
    pub state: Option<Arc<str>>,
}

/// Why a task cannot be done. Another attempt would find the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub category: Category,
    pub message: String,
}

impl Fault {
    fn configuration(message: impl Into<String>) -> Self {
        Self { category: Category::Configuration, message: message.into() }
    }

    fn data(message: impl Into<String>) -> Self {
        Self { category: Category::DataQuality, message: message.into() }
    }

    pub fn failure(&self) -> Failure {
        let code = match self.category {
            Category::DataQuality => "DATA_QUALITY",
            _ => "CONFIGURATION",
        };
        Failure::new(code, &self.message, None, Some(false)).of_category(Some(self.category))
    }
}

impl From<JobFault> for Fault {
    fn from(fault: JobFault) -> Self {
        Self::configuration(fault.to_string())
    }
}

/// The operator whose tasks a query process runs.
pub const QUERY: &str = "query";

/// Whether the built-in operator of a job can run it.
pub fn check(job: &JobDefinition) -> Result<(), JobFault> {
    if &*job.operator == QUERY { Query::of(job).map(drop) } else { Builtin::of(job).map(drop) }
}

/// Whether one task of a job runs at a time, because each depends on those before.
pub fn runs_alone(job: &JobDefinition) -> bool {
    if job.runtime != Runtime::Dispatcher {
        return false;
    }
    if &*job.operator == QUERY {
        return Query::of(job).is_ok_and(|query| query.runs_alone());
    }
    Builtin::of(job).is_ok_and(|builtin| builtin.runs_alone())
}

impl Builtin {
    /// The operator of a job, if the job fits it.
    pub fn of(job: &JobDefinition) -> Result<Self, JobFault> {
        if job.source() == Some(&Source::AlwaysOn) {
            let message =
                format!("'{}' ends at once: give the job a source of kind cron, webhook or manual", job.operator);
            return Err(JobFault::new("source.kind", message));
        }
        match &*job.operator {
            "tick" => Ok(Self::Tick),
            "noop" => Ok(Self::Noop),
            "range_aggregator" => {
                ranged(job)?;
                let config = config(job)?;
                let start = number(&config, "start")
                    .map_err(|()| JobFault::new("config.start", "an integer from 0 to 2^63-1"))?;
                let size = size(&config, "range_size")?;
                Ok(Self::RangeAggregator(Aggregator { size, start: start.unwrap_or(0) }))
            }
            "range_splitter" => {
                ranged(job)?;
                if job.execution() != Some(ExecutionStrategy::PerPartition) {
                    let message = "'range_splitter' splits partitions: use PerPartition";
                    return Err(JobFault::new("execution_strategy", message));
                }
                Ok(Self::RangeSplitter(Splitter { size: size(&config(job)?, "chunk_size")? }))
            }
            QUERY => Err(JobFault::new("operator", "'query' is run by a query process")),
            other => Err(JobFault::new("operator", format!("no built-in operator named '{other}'"))),
        }
    }

    /// Whether its state depends on every task before: then one task of the job runs at a time.
    pub const fn runs_alone(&self) -> bool {
        matches!(self, Self::RangeAggregator(_))
    }

    pub fn run(&self, turn: &Turn<'_>) -> Result<Done, Fault> {
        match self {
            Self::Noop => Ok(Done::default()),
            Self::Tick => Ok(Done { positions: vec![Position::Cursor(fired(turn))], state: None }),
            Self::RangeAggregator(aggregator) => aggregator.run(turn),
            Self::RangeSplitter(splitter) => splitter.run(turn),
        }
    }
}

/// The cursor of a firing: the slot of a schedule in milliseconds, otherwise the number of the task.
fn fired(turn: &Turn<'_>) -> i64 {
    match turn.input.trigger {
        Trigger::Cron { scheduled_at } => scheduled_at.as_millis(),
        _ => turn.number,
    }
}

/// What operators on ranges have in common.
fn ranged(job: &JobDefinition) -> Result<(), JobFault> {
    if job.source().is_some() {
        let message = format!("'{}' reads ranges: make the job reactive and give it inputs", job.operator);
        return Err(JobFault::new("activation", message));
    }
    if job.outputs != 1 {
        return Err(JobFault::new("outputs", format!("'{}' has one output", job.operator)));
    }
    Ok(())
}

fn config(job: &JobDefinition) -> Result<Map<String, Value>, JobFault> {
    serde_json::from_str(&job.config).map_err(|_| JobFault::new("config", "'config' is a map"))
}

fn number(config: &Map<String, Value>, key: &str) -> Result<Option<u64>, ()> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().and_then(Cursor::new).map(|number| Some(number.get())).ok_or(()),
    }
}

/// `size`, which has another name in older DAGs.
fn size(config: &Map<String, Value>, other: &'static str) -> Result<u64, JobFault> {
    let wrong = |()| JobFault::new("config.size", format!("'size' is {SIZE_RULE}"));
    let (size, also) = (number(config, "size").map_err(wrong)?, number(config, other).map_err(wrong)?);
    if let (Some(one), Some(two)) = (size, also)
        && one != two
    {
        return Err(JobFault::new("config.size", format!("'size' and '{other}' are the same setting and differ")));
    }
    size.or(also).filter(|size| *size > 0).ok_or_else(|| {
        JobFault::new("config.size", format!("'{}' is missing: the values of a range, {SIZE_RULE}", "size"))
    })
}

/// The input that caused the task, and where.
fn cause(input: &TaskInput) -> Option<(&InputAt, &Position)> {
    input.inputs.iter().find_map(|at| Some((at, at.position.as_ref()?)))
}

/// The values of a partition.
fn span(partition: &Partition, ranges: Ranges) -> Result<Span, Fault> {
    let key = PartitionKey::parse(&partition.key).ok();
    key.and_then(|key| key.span(ranges)).ok_or_else(|| {
        let message = format!("partition '{}' is not a range, such as 1000-1999", partition.key);
        Fault::data(message)
    })
}

fn position(span: Span, ranges: Ranges) -> Option<Position> {
    let key = PartitionKey::of(span, ranges)?;
    let ends = key.numbers().map(|(start, end)| (start.signed(), end.signed()));
    Some(Position::Partition(Partition { key: key.into(), ends }))
}

/// Refuses to make more ranges than one task may.
fn bounded(ranges: u64) -> Result<(), Fault> {
    if ranges > RANGES {
        let message =
            format!("this would make {ranges} ranges, and a task makes at most {RANGES}: make config.size larger");
        return Err(Fault::configuration(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
