use super::{Done, Fault, Turn, bounded, cause, position, span};
use crate::dag::data::Position;
use crate::dag::range::Span;

/// Splits the range of a partition into ranges of `size`, from its first value on. The last one may be smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Splitter {
    pub size: u64,
}

impl Splitter {
    pub(super) fn run(self, turn: &Turn<'_>) -> Result<Done, Fault> {
        let Some((_, at)) = cause(turn.input) else { return Ok(Done::default()) };
        let Position::Partition(partition) = at else {
            return Err(Fault::data("a cursor is not a range: 'range_splitter' splits partitions"));
        };
        let whole = span(partition, turn.ranges)?;
        bounded(whole.len().div_ceil(self.size))?;
        let mut positions = Vec::new();
        let mut start = whole.start();
        while start < whole.end() {
            let end = start.saturating_add(self.size).min(whole.end());
            positions.extend(Span::new(start, end).and_then(|part| position(part, turn.ranges)));
            start = end;
        }
        Ok(Done { positions, state: None })
    }
}
