//! Retention: which finished tasks, runs and records are removed, and when.

use std::collections::HashMap;

use crate::batch::Counts;
use crate::id::Seq;
use crate::limits;
use crate::queue::QueueId;
use crate::time::{DurationMs, Timestamp};

/// How many runs one step of retention looks at; each can have many tasks.
pub const RUNS_PER_STEP: i64 = 10;
/// How long the name of a worker process is remembered after it said hello.
const WORKERS_KEPT_MS: DurationMs = 7 * 24 * 3_600_000;
/// How long the record of a worker is kept after it was last seen.
const WORKER_RECORDS_KEPT_MS: DurationMs = 24 * 3_600_000;

/// How long finished work is kept.
#[derive(Debug, Clone)]
pub struct Retention {
    pub finished_ms: DurationMs,
    pub dead_letter_ms: DurationMs,
    /// Maximum number of finished tasks, whatever their age. Dead letters are counted but not removed for it.
    pub finished_count: u64,
    /// How long recorded facts are kept for those who watch.
    pub events_ms: DurationMs,
    /// How long logs of tasks are kept, at most as long as their task.
    pub logs_ms: DurationMs,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY_MS: DurationMs = 24 * 3_600_000;
        Self {
            finished_ms: 7 * DAY_MS,
            dead_letter_ms: 30 * DAY_MS,
            finished_count: 10_000_000,
            events_ms: 3_600_000,
            logs_ms: 3 * DAY_MS,
        }
    }
}

/// The times before which records that belong to no task are removed.
#[derive(Debug, Clone, Copy)]
pub struct Cuts {
    pub events: Timestamp,
    pub workers: Timestamp,
    pub logs: Timestamp,
    /// By when a worker was last seen.
    pub worker_records: Timestamp,
    /// By when a finished redrive was started.
    pub redrives: Timestamp,
}

/// The times before which runs are removed, by when they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCuts {
    /// By when it was made. Until then it keeps its key, however long ago it ended.
    pub with_key: Timestamp,
    pub failed: Timestamp,
    pub others: Timestamp,
}

impl Retention {
    pub fn cuts(&self, now: Timestamp) -> Cuts {
        Cuts {
            events: now.plus(-self.events_ms),
            logs: now.plus(-self.logs_ms),
            workers: now.plus(-WORKERS_KEPT_MS),
            worker_records: now.plus(-WORKER_RECORDS_KEPT_MS),
            redrives: now.plus(-self.dead_letter_ms),
        }
    }
}

/// A finished task, as retention sees it.
#[derive(Debug)]
pub struct Prunable {
    pub seq: Seq,
    pub queue: QueueId,
    pub created_at: Timestamp,
    pub finished_at: Timestamp,
    pub dead_lettered_at: Option<Timestamp>,
    pub has_key: bool,
    /// It is removed with its run, not by itself.
    pub in_run: bool,
}

/// The outcome of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    pub removed: usize,
    /// Continue after this row; `None` when the rows that follow are too young to remove.
    pub next: Option<Seq>,
}

/// One step of retention: what it does with a stretch of finished tasks, oldest first, and with the oldest runs.
#[derive(Debug)]
pub struct Pruning {
    /// Tasks to remove, with their bodies and attempts.
    pub rows: Vec<Seq>,
    /// How the numbers of rows change.
    pub counts: HashMap<QueueId, Counts>,
    pub runs_before: RunCuts,
    limit: usize,
    /// How many tasks were removed with their runs. A run without tasks counts as one.
    of_runs: usize,
    /// Some task is only kept because it is young: so are those after it, more or less.
    young: bool,
    /// The last row of the stretch, and whether older ones may follow it.
    last: Seq,
    more: bool,
}

/// What happens to a run whose tasks were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunRemoval {
    /// It is removed too.
    Whole,
    /// The step has removed enough. The rest of the run is removed by the next ones, whatever its age is by then.
    Begun,
}

impl Pruning {
    /// `stretch` are up to `limit` finished tasks after the row `after`. `finished` is how many there are in all.
    pub fn of(stretch: &[Prunable], after: Seq, limit: usize, finished: u64, keep: &Retention, now: Timestamp) -> Self {
        let mut excess = finished.saturating_sub(keep.finished_count);
        let others = if excess > 0 { keep.finished_ms.min(limits::FINISHED_MS_MIN) } else { keep.finished_ms };
        let runs_before = RunCuts {
            with_key: now.plus(-limits::IDEMPOTENCY_MS_MIN),
            failed: now.plus(-keep.dead_letter_ms.max(keep.finished_ms)),
            others: now.plus(-others),
        };
        let mut pruning = Self {
            rows: Vec::new(),
            counts: HashMap::new(),
            runs_before,
            limit,
            of_runs: 0,
            young: false,
            last: stretch.last().map_or(after, |task| task.seq),
            more: false,
        };
        for task in stretch {
            if pruning.keeps(task, keep, now, excess) {
                continue;
            }
            excess = excess.saturating_sub(1);
            pruning.rows.push(task.seq);
            pruning.count(task.queue, task.dead_lettered_at.is_some());
        }
        pruning.more = stretch.len() == limit && !(pruning.young && pruning.rows.is_empty());
        pruning
    }

    fn keeps(&mut self, task: &Prunable, keep: &Retention, now: Timestamp, excess: u64) -> bool {
        // A key is promised to live for a day at least.
        if task.has_key && now.since(task.created_at) < limits::IDEMPOTENCY_MS_MIN {
            return true;
        }
        let age = now.since(task.finished_at);
        if task.in_run {
            self.young |= excess == 0 && age < keep.finished_ms;
            return true;
        }
        if let Some(at) = task.dead_lettered_at {
            return now.since(at) < keep.dead_letter_ms;
        }
        let keeps = age < keep.finished_ms && (excess == 0 || age < limits::FINISHED_MS_MIN);
        self.young |= keeps;
        keeps
    }

    fn count(&mut self, queue: QueueId, dead_lettered: bool) {
        let counts = self.counts.entry(queue).or_default();
        counts.finished -= 1;
        counts.dead_lettered -= i64::from(dead_lettered);
    }

    /// How many tasks of runs this step may still remove.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.of_runs)
    }

    /// These tasks of a run were removed, up to [`Self::room`]: their queues, and whether each was a dead letter.
    pub fn remove_run(&mut self, tasks: &[(QueueId, bool)]) -> RunRemoval {
        for (queue, dead_lettered) in tasks {
            self.count(*queue, *dead_lettered);
        }
        self.of_runs += tasks.len().max(1);
        if self.of_runs >= self.limit { RunRemoval::Begun } else { RunRemoval::Whole }
    }

    /// `events` is how many batches of facts were removed as well: a full bite means that more of them are old.
    pub fn outcome(&self, events: usize) -> Pruned {
        let more = self.more || events == self.limit || self.of_runs > 0;
        Pruned { removed: self.rows.len() + self.of_runs, next: more.then_some(self.last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: DurationMs = 24 * 3_600_000;
    const NOW: Timestamp = Timestamp::from_millis(100 * DAY_MS);
    const QUEUE: QueueId = QueueId(1);

    fn keep() -> Retention {
        Retention {
            finished_ms: 7 * DAY_MS,
            dead_letter_ms: 30 * DAY_MS,
            finished_count: 100,
            events_ms: 1,
            logs_ms: 1,
        }
    }

    fn aged(seq: i64, age_ms: DurationMs) -> Prunable {
        let at = NOW.plus(-age_ms);
        Prunable {
            seq: Seq(seq),
            queue: QUEUE,
            created_at: at,
            finished_at: at,
            dead_lettered_at: None,
            has_key: false,
            in_run: false,
        }
    }

    fn removed(stretch: &[Prunable], finished: u64) -> Vec<i64> {
        Pruning::of(stretch, Seq(0), 10, finished, &keep(), NOW).rows.iter().map(|seq| seq.0).collect()
    }

    #[test]
    fn a_task_is_removed_when_it_is_old_or_one_too_many() {
        let stretch = [aged(1, 8 * DAY_MS), aged(2, DAY_MS), aged(3, DAY_MS), aged(4, 60_000)];
        assert_eq!(removed(&stretch, 100), [1]);
        assert_eq!(removed(&stretch, 102), [1, 2], "the old one is one of those too many");
        assert_eq!(removed(&stretch, 200), [1, 2, 3], "the last one ended a minute ago");
    }

    #[test]
    fn dead_letters_keys_and_tasks_of_runs_are_kept_longer() {
        let old = || aged(1, 8 * DAY_MS);
        let dead = |age: i64| Prunable { dead_lettered_at: Some(NOW.plus(-age)), ..old() };
        assert_eq!(removed(&[dead(8 * DAY_MS)], 1_000), [0; 0], "they are not removed for others' sake");
        assert_eq!(removed(&[dead(30 * DAY_MS)], 1), [1]);
        let key = |age: i64| Prunable { has_key: true, created_at: NOW.plus(-age), ..old() };
        assert_eq!(removed(&[key(DAY_MS - 1)], 1_000), [0; 0]);
        assert_eq!(removed(&[key(DAY_MS)], 1_000), [1]);
        assert_eq!(removed(&[Prunable { in_run: true, ..old() }], 1_000), [0; 0]);
    }

    #[test]
    fn a_step_ends_where_the_young_ones_begin() {
        let next = |stretch: &[Prunable], limit| Pruning::of(stretch, Seq(0), limit, 1, &keep(), NOW).outcome(0).next;
        assert_eq!(next(&[aged(1, DAY_MS), aged(2, 0)], 2), None, "nothing was removed, and what follows is younger");
        assert_eq!(next(&[aged(1, 8 * DAY_MS), aged(2, 0)], 2), Some(Seq(2)), "there may be more old ones");
        assert_eq!(next(&[aged(1, 8 * DAY_MS)], 2), None, "there are no more");
    }

    #[test]
    fn runs_are_removed_up_to_the_limit_of_a_step() {
        let mut pruning = Pruning::of(&[], Seq(7), 3, 0, &keep(), NOW);
        assert_eq!(pruning.remove_run(&[]), RunRemoval::Whole);
        assert_eq!(pruning.room(), 2);
        assert_eq!(pruning.remove_run(&[(QUEUE, true), (QUEUE, false)]), RunRemoval::Begun);
        assert_eq!(pruning.counts[&QUEUE], Counts { finished: -2, dead_lettered: -1, ..Counts::default() });
        assert_eq!(pruning.outcome(0), Pruned { removed: 3, next: Some(Seq(7)) });
    }

    #[test]
    fn runs_are_removed_earlier_while_there_are_too_many_tasks() {
        let before = |finished| Pruning::of(&[], Seq(0), 1, finished, &keep(), NOW).runs_before;
        let failed = NOW.plus(-30 * DAY_MS);
        let with_key = NOW.plus(-DAY_MS);
        assert_eq!(before(100), RunCuts { with_key, failed, others: NOW.plus(-7 * DAY_MS) });
        assert_eq!(before(101), RunCuts { with_key, failed, others: NOW.plus(-limits::FINISHED_MS_MIN) });
    }
}
