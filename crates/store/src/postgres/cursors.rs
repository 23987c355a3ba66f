//! Where the search for ready rows may begin.
//!
//! Postgres keeps the index entries of deleted rows until they are vacuumed, and with a backlog they all lie at the head
//! of the order, where every claim looks. A cursor behind them saves the walk. It is a hint, in memory, per queue: kept
//! only while there is a backlog, lowered by whatever this control plane puts below it, and forgotten every second, so
//! that what others put there is found. A search that finds too few rows begins again at the start.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::queue::QueueId;
use tenure_core::task::Waiting;
use tenure_core::{Seq, TaskId, Timestamp};

/// How long a cursor is kept.
const KEPT: Duration = Duration::from_secs(1);
/// Insertions remembered for searches that are under way.
const REMEMBERED: usize = 64;

/// A place in the order of grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub priority: u8,
    pub at: Timestamp,
    pub seq: Seq,
}

impl Position {
    pub const START: Self = Self { priority: 0, at: Timestamp::from_millis(0), seq: Seq(0) };

    pub fn of(id: TaskId, waiting: &Waiting) -> Self {
        Self { priority: waiting.priority, at: waiting.at, seq: id.seq() }
    }
}

/// A search, from its beginning until its batch is committed.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    pub from: Position,
    insertions: u64,
}

#[derive(Debug, Default)]
pub struct Cursors(Mutex<HashMap<QueueId, Cursor>>);

#[derive(Debug)]
struct Cursor {
    from: Position,
    since: Instant,
    /// How many insertions there were, and the lowest place of each of the last ones.
    insertions: u64,
    last: VecDeque<Position>,
}

impl Cursor {
    fn new() -> Self {
        Self { from: Position::START, since: Instant::now(), insertions: 0, last: VecDeque::new() }
    }

    /// The lowest insertion since then; `None` if that is not known any more.
    fn lowest_since(&self, insertions: u64) -> Option<Option<Position>> {
        let missed = usize::try_from(self.insertions - insertions).ok().filter(|missed| *missed <= self.last.len())?;
        Some(self.last.iter().rev().take(missed).min().copied())
    }
}

impl Cursors {
    fn all(&self) -> MutexGuard<'_, HashMap<QueueId, Cursor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self, queue: QueueId) -> Search {
        let mut all = self.all();
        let cursor = all.entry(queue).or_insert_with(Cursor::new);
        if cursor.since.elapsed() >= KEPT {
            cursor.from = Position::START;
            cursor.since = Instant::now();
        }
        Search { from: cursor.from, insertions: cursor.insertions }
    }

    /// Everything below `to` was taken by the search or is somebody else's. `None`: there was no backlog.
    pub fn found(&self, queue: QueueId, search: Search, to: Option<Position>) {
        let mut all = self.all();
        let Some(cursor) = all.get_mut(&queue) else { return };
        let Some(to) = to else {
            cursor.from = Position::START;
            return;
        };
        // What was inserted meanwhile was not seen by the search.
        if let Some(inserted) = cursor.lowest_since(search.insertions) {
            cursor.from = inserted.map_or(to, |inserted| inserted.min(to));
        }
    }

    /// These rows became ready, and everybody can see them.
    pub fn inserted(&self, rows: &[(TaskId, Waiting)]) {
        let mut lowest: HashMap<QueueId, Position> = HashMap::new();
        for (id, waiting) in rows {
            let position = Position::of(*id, waiting);
            lowest.entry(waiting.queue).and_modify(|low| *low = position.min(*low)).or_insert(position);
        }
        let mut all = self.all();
        for (queue, position) in lowest {
            let Some(cursor) = all.get_mut(&queue) else { continue };
            cursor.from = cursor.from.min(position);
            cursor.insertions += 1;
            cursor.last.push_back(position);
            if cursor.last.len() > REMEMBERED {
                cursor.last.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: QueueId = QueueId(1);

    fn at(seq: i64) -> Position {
        Position { priority: 5, at: Timestamp::from_millis(1_000), seq: Seq(seq) }
    }

    fn row(priority: u8, seq: i64) -> (TaskId, Waiting) {
        let waiting = Waiting {
            queue: QUEUE,
            priority,
            at: Timestamp::from_millis(1_000),
            fair: None,
            message: 1,
            attempt: 0,
            fence: tenure_core::Fence(0),
            carry: tenure_core::task::Carry::default(),
        };
        (TaskId::from_u128(u128::from(seq.unsigned_abs()) | 0x8 << 60), waiting)
    }

    #[test]
    fn a_search_begins_behind_what_was_taken() {
        let cursors = Cursors::default();
        let first = cursors.begin(QUEUE);
        assert_eq!(first.from, Position::START);
        cursors.found(QUEUE, first, Some(at(9)));
        assert_eq!(cursors.begin(QUEUE).from, at(9));
        assert_eq!(cursors.begin(QueueId(2)).from, Position::START);
        cursors.found(QUEUE, cursors.begin(QUEUE), None);
        assert_eq!(cursors.begin(QUEUE).from, Position::START);
    }

    #[test]
    fn what_is_put_below_is_found() {
        let cursors = Cursors::default();
        cursors.found(QUEUE, cursors.begin(QUEUE), Some(at(9)));
        cursors.inserted(&[row(5, 12), row(0, 11)]);
        let found = cursors.begin(QUEUE).from;
        assert_eq!((found.priority, found.seq), (0, Seq(11)));
    }

    /// The row was not committed when the search looked, and lies below what the search took.
    #[test]
    fn what_comes_during_a_search_is_found_after_it() {
        let cursors = Cursors::default();
        let search = cursors.begin(QUEUE);
        cursors.inserted(&[row(5, 4)]);
        cursors.found(QUEUE, search, Some(at(9)));
        assert_eq!(cursors.begin(QUEUE).from.seq, Seq(4));
        // Too much happened to remember it all: the cursor stays where it was.
        let search = cursors.begin(QUEUE);
        for seq in 0..=i64::try_from(REMEMBERED).unwrap() {
            cursors.inserted(&[row(5, 20 + seq)]);
        }
        cursors.found(QUEUE, search, Some(at(99)));
        assert_eq!(cursors.begin(QUEUE).from.seq, Seq(4));
    }

    #[test]
    fn a_cursor_is_forgotten_after_a_while() {
        let cursors = Cursors::default();
        cursors.found(QUEUE, cursors.begin(QUEUE), Some(at(9)));
        cursors.all().get_mut(&QUEUE).unwrap().since = Instant::now() - KEPT;
        assert_eq!(cursors.begin(QUEUE).from, Position::START);
    }
}
