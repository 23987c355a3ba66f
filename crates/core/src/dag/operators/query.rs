use std::fmt;
use std::sync::Arc;

use super::{Fault, JobFault, cause, config};
use crate::dag::data::Position;
use crate::dag::definition::{ExecutionStrategy, JobDefinition, UpdateStrategy};
use crate::dag::id::{DatasetId, VersionId};
use crate::dag::range::{PartitionKey, Ranges, Span};
use crate::dag::task::TaskInput;

/// The only partition of an output that is written as a whole.
pub const WHOLE: &str = "all";
/// The name of the only input, beside its alias.
const ONLY: &str = "dataset";

/// The operator `query`: its output is the result of a SELECT over its inputs. A query process runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub sql: Arc<str>,
    execution: ExecutionStrategy,
    update: UpdateStrategy,
}

/// How much of an input a task reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Everything there is now.
    Whole,
    Partition(Arc<str>),
    /// Rows of a table with a greater `_seq` than `after`, up to `upto`.
    Rows {
        after: i64,
        upto: i64,
    },
}

/// What a task reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Of each input of the task, in order.
    pub extents: Vec<Extent>,
    /// The partition that it writes.
    pub key: Arc<str>,
    /// It replaces all that the job has written before: its readers must be told, although the place is known.
    pub is_whole: bool,
}

/// What a plan depends on beside the task.
pub struct Circumstances<'a> {
    pub ranges: Ranges,
    /// How far the job has read a generation.
    pub read: &'a dyn Fn(VersionId) -> i64,
    /// Whether the rows of a dataset are in a table.
    pub is_table: &'a dyn Fn(DatasetId) -> bool,
}

impl fmt::Debug for Circumstances<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Circumstances").field("ranges", &self.ranges).finish_non_exhaustive()
    }
}

impl Query {
    /// The query of a job, if the job fits it.
    pub fn of(job: &JobDefinition) -> Result<Self, JobFault> {
        let Some(execution) = job.execution() else {
            return Err(JobFault::new(
                "activation",
                "'query' reads datasets: make the job reactive and give it inputs",
            ));
        };
        if job.outputs != 1 {
            return Err(JobFault::new("outputs", "'query' has one output"));
        }
        let config = config(job)?;
        let sql = match config.get("query") {
            None => return Err(JobFault::new("config.query", "'query' is missing: the SELECT that the job runs")),
            Some(value) => value.as_str().map(str::trim).filter(|sql| !sql.is_empty()),
        };
        let sql =
            sql.ok_or_else(|| JobFault::new("config.query", "'query' is a text: the SELECT that the job runs"))?;
        let word: String = sql.chars().take_while(char::is_ascii_alphabetic).collect();
        if !word.is_empty() && !["select", "with"].contains(&word.to_ascii_lowercase().as_str()) {
            return Err(JobFault::new("config.query", format!("'{word}' cannot be run: write a SELECT")));
        }
        let aliases: Vec<&str> = job.inputs().iter().map(|input| &*input.alias).collect();
        let lower = sql.to_lowercase();
        let reads_an_input = aliases.iter().any(|alias| lower.contains(&alias.to_lowercase()))
            || (aliases.len() == 1 && lower.contains(ONLY));
        if !reads_an_input {
            let message = format!("the query reads none of the inputs: {}", aliases.join(", "));
            return Err(JobFault::new("config.query", message));
        }
        Ok(Self { sql: sql.into(), execution, update: job.update_strategy })
    }

    /// Whether what a task reads depends on every task before: then one task of the job runs at a time.
    pub fn runs_alone(&self) -> bool {
        self.execution == ExecutionStrategy::PerUpdate
    }

    /// What a task reads and writes; `None` if nothing is left to do.
    pub fn plan(&self, input: &TaskInput, now: &Circumstances<'_>) -> Result<Option<Plan>, Fault> {
        let whole = |input: &TaskInput| vec![Extent::Whole; input.inputs.len()];
        if self.execution == ExecutionStrategy::PerUpdate && self.update == UpdateStrategy::Replace {
            return Ok(Some(Plan { extents: whole(input), key: WHOLE.into(), is_whole: true }));
        }
        let Some((at, position)) = cause(input) else { return Ok(None) };
        let (extent, key) = match position {
            Position::Partition(partition) => {
                (Extent::Partition(Arc::clone(&partition.key)), Arc::clone(&partition.key))
            }
            Position::Cursor(upto) => {
                if !(now.is_table)(at.dataset) {
                    let message = "the input tells of cursors and has no rows in a table: use PerPartition, or replace";
                    return Err(Fault::configuration(message));
                }
                let after = (now.read)(at.version);
                if after >= *upto {
                    return Ok(None);
                }
                let Some(key) = rows_key(after, *upto, now.ranges) else { return Ok(None) };
                (Extent::Rows { after, upto: *upto }, key)
            }
        };
        let mut extents = whole(input);
        if let Some(index) = input.inputs.iter().position(|input| input.position.is_some()) {
            extents[index] = extent;
        }
        Ok(Some(Plan { extents, key, is_whole: false }))
    }
}

/// The rows after one cursor and up to another, as a range.
fn rows_key(after: i64, upto: i64, ranges: Ranges) -> Option<Arc<str>> {
    let (start, end) = (u64::try_from(after).ok()?.checked_add(1)?, u64::try_from(upto).ok()?.checked_add(1)?);
    Some(PartitionKey::of(Span::new(start, end)?, ranges)?.as_str().into())
}
