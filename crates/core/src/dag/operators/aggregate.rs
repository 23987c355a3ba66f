use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::spans::Spans;
use super::{Done, Fault, SPANS, Turn, bounded, cause, position, span};
use crate::dag::data::Position;
use crate::dag::id::VersionId;
use crate::dag::range::Span;
use crate::dag::task::TaskInput;

/// Versions of inputs that are remembered beside those that the job reads now.
const VERSIONS: usize = 64;

/// Joins what its inputs contain to ranges of `size` values that lie side by side from `start` on. A range is complete
/// when every input contains all of it, by partitions or up to a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aggregator {
    pub size: u64,
    pub start: u64,
}

/// What the job keeps: for each generation of an input, which values it contains. Pairs are half-open.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    covered: BTreeMap<VersionId, Vec<(u64, u64)>>,
}

impl Aggregator {
    pub(super) fn run(self, turn: &Turn<'_>) -> Result<Done, Fault> {
        let Some((at, place)) = cause(turn.input) else { return Ok(Done::default()) };
        let mut covered = read(turn.state)?;
        let own = covered.entry(at.version).or_default();
        let (new, look) = match place {
            // Everything up to it is there. What was complete before is on record.
            Position::Cursor(cursor) => {
                let end = u64::try_from(*cursor).unwrap_or(0) + 1;
                let new = from(self.start, end);
                (new, from(own.gap_from(self.start), end))
            }
            Position::Partition(partition) => {
                let whole = span(partition, turn.ranges)?;
                let new = from(whole.start().max(self.start), whole.end());
                (new, new)
            }
        };
        own.insert(new);
        if own.len() > SPANS {
            let message = format!("the input has more than {SPANS} gaps: partitions that were skipped must come first");
            return Err(Fault::data(message));
        }
        forget(&mut covered, turn.input);
        let versions: BTreeSet<VersionId> = turn.input.inputs.iter().map(|input| input.version).collect();
        let complete = |range: &Span| {
            versions.iter().all(|version| covered.get(version).is_some_and(|spans| spans.contains(*range)))
        };
        let ranges = self.ranges(look)?;
        let positions = ranges.filter(complete).filter_map(|range| position(range, turn.ranges)).collect();
        Ok(Done { positions, state: Some(write(&covered)) })
    }

    /// The ranges that have values in common with a span.
    fn ranges(self, look: Span) -> Result<impl Iterator<Item = Span>, Fault> {
        let number = |value: u64| (value - self.start) / self.size;
        let numbers = if look.is_empty() { 0..0 } else { number(look.start())..number(look.end() - 1) + 1 };
        bounded(numbers.end - numbers.start)?;
        Ok(numbers.filter_map(move |number| {
            let start = number.checked_mul(self.size)?.checked_add(self.start)?;
            Span::new(start, start.checked_add(self.size)?)
        }))
    }
}

/// Empty if it would end before it starts.
fn from(start: u64, end: u64) -> Span {
    let end = end.min(Span::END);
    Span::new(start.min(end), end).filter(|_| start <= end).unwrap_or_default()
}

fn read(state: Option<&str>) -> Result<BTreeMap<VersionId, Spans>, Fault> {
    let unreadable = || Fault::configuration("the operator state of the job is not that of a 'range_aggregator'");
    let state: State = match state {
        None => State::default(),
        Some(text) => serde_json::from_str(text).map_err(|_| unreadable())?,
    };
    let spans = state.covered.into_iter().map(|(version, pairs)| Some((version, Spans::read(&pairs)?)));
    spans.collect::<Option<_>>().ok_or_else(unreadable)
}

fn write(covered: &BTreeMap<VersionId, Spans>) -> Arc<str> {
    let state = State { covered: covered.iter().map(|(version, spans)| (*version, spans.pairs())).collect() };
    serde_json::to_string(&state).unwrap_or_default().into()
}

/// A dataset of another DAG gets new generations while the job stays as it is. Tasks of an older one may still come.
fn forget(covered: &mut BTreeMap<VersionId, Spans>, input: &TaskInput) {
    if covered.len() > VERSIONS + input.inputs.len() {
        covered.retain(|version, _| input.inputs.iter().any(|input| input.version == *version));
    }
}
