//! What changed, for those who watch: durable, in order, and with ids from which one can go on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::command::Reach;
use tenure_core::event::{Fact, FactKind};
use tenure_core::mutant;
use tenure_core::run::RunState;
use tenure_core::time::Timestamp;
use tenure_core::{RunId, Seq};
use tenure_store::EventBatch;

use crate::engine::Shared;
use crate::error::EngineError;

/// A place in the record: the batch, and the fact inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId {
    batch: i64,
    index: u32,
}

impl EventId {
    /// `<batch>-<index>`.
    pub fn parse(text: &str) -> Option<Self> {
        let (batch, index) = text.split_once('-')?;
        Some(Self { batch: batch.parse().ok().filter(|batch| *batch >= 0)?, index: index.parse().ok()? })
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.batch, self.index)
    }
}

#[derive(Debug, Clone)]
pub enum Event {
    Task {
        id: EventId,
        at: Timestamp,
        queue: Arc<str>,
        fact: Fact,
    },
    Run {
        id: EventId,
        at: Timestamp,
        run: RunId,
        kind: FactKind,
        state: RunState,
    },
    /// What lies before this was removed: the watcher should look at everything anew.
    Reset {
        id: EventId,
    },
}

/// How long a batch that is missing between two others is waited for while its transaction may still be open. A watcher that
/// goes on without it is told so.
const GAP: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(500);
const GAP_POLL: Duration = Duration::from_millis(20);
/// A transaction that is open for longer may be open for long.
const GAP_RECENT: Duration = Duration::from_secs(1);
const BATCHES: usize = 64;

/// A watcher. [`Events::next`] waits for the next change.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
    reach: Reach,
    last: EventId,
    ready: VecDeque<Event>,
    gap: Option<Gap>,
    /// What is missing before this batch will not come.
    settled: i64,
}

/// Batches that are missing.
#[derive(Debug)]
struct Gap {
    since: Instant,
    /// The last batch that was read after them.
    before: i64,
    /// They are missing for good when all transactions before this one have ended.
    ended: i64,
}

impl Events {
    /// From behind `after`, or from now on.
    pub(crate) async fn new(shared: Arc<Shared>, reach: Reach, after: Option<EventId>) -> Result<Self, EngineError> {
        let (first, last) = shared.store.event_bounds().await?;
        let mut ready = VecDeque::new();
        let start = match after {
            // Removed, or of another store: say so, and go on with what there is.
            Some(after) if after.batch + 1 < first || after.batch > last => {
                let id = EventId { batch: (first - 1).max(0), index: u32::MAX };
                ready.push_back(Event::Reset { id });
                id
            }
            Some(after) if mutant!("replay-skips-one") => EventId { batch: after.batch + 1, index: u32::MAX },
            Some(after) => after,
            None => EventId { batch: last, index: u32::MAX },
        };
        Ok(Self { shared, reach, last: start, ready, gap: None, settled: 0 })
    }

    /// The next event; `None` when the engine stops.
    pub async fn next(&mut self) -> Result<Option<Event>, EngineError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            // Registered before the read, so that nothing falls in between.
            let shared = Arc::clone(&self.shared);
            let changed = shared.recorded.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.read().await? {
                continue;
            }
            let poll = self.shared.config.look_every.unwrap_or(POLL);
            let recent = self.gap.as_ref().is_some_and(|gap| gap.since.elapsed() < GAP_RECENT);
            let pause = if recent { GAP_POLL } else { poll };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(pause) => {}
                () = self.shared.stopping.cancelled() => return Ok(None),
            }
        }
    }

    /// Reads on. Gives whether it got anywhere.
    async fn read(&mut self) -> Result<bool, EngineError> {
        // The batch of the last event may have more facts behind it.
        let batches = self.shared.store.events(self.last.batch - 1, BATCHES).await?;
        let newest = batches.last().map_or(0, |batch| batch.batch);
        let mut moved = false;
        for batch in batches {
            let expected = self.last.batch + 1;
            if batch.batch > expected && self.last.batch > 0 && batch.batch > self.settled {
                self.gap.take_if(|gap| batch.batch > gap.before);
                return Ok(self.look_into_gap(newest).await? || moved);
            }
            moved |= self.take(batch).await?;
        }
        self.gap = None;
        Ok(moved)
    }

    /// Learns whether a missing batch can still come. Returns whether the watcher goes on.
    ///
    /// The transactions that drew numbers before the newest batch was read have begun by then. When all of them have ended,
    /// another read finds whatever they left.
    async fn look_into_gap(&mut self, newest: i64) -> Result<bool, EngineError> {
        let horizon = self.shared.store.event_horizon().await?;
        let Some(gap) = &self.gap else {
            self.gap = Some(Gap { since: Instant::now(), before: newest, ended: horizon.next });
            return Ok(false);
        };
        let has_ended = horizon.oldest >= gap.ended;
        let given_up = !has_ended && gap.since.elapsed() > GAP;
        if has_ended || given_up {
            self.settled = gap.before;
            self.gap = None;
        }
        if given_up {
            self.ready.push_back(Event::Reset { id: self.last });
        }
        Ok(has_ended || given_up)
    }

    async fn take(&mut self, batch: EventBatch) -> Result<bool, EngineError> {
        let start = if batch.batch == self.last.batch { self.last.index.saturating_add(1) } else { 0 };
        if batch.batch < self.last.batch || start as usize >= batch.facts.len() {
            if batch.batch > self.last.batch {
                self.last = EventId { batch: batch.batch, index: u32::MAX };
            }
            return Ok(false);
        }
        let whose = match self.reach {
            Reach::All => HashMap::new(),
            Reach::Tenant(_) | Reach::Owner { .. } => {
                let rows: Vec<Seq> = batch.facts.iter().map(|fact| fact.task.seq()).collect();
                self.shared.store.whose(&rows).await?
            }
        };
        for (index, fact) in batch.facts.into_iter().enumerate().skip(start as usize) {
            let id = EventId { batch: batch.batch, index: index as u32 };
            self.last = id;
            let visible = match &self.reach {
                Reach::All => true,
                reach => {
                    whose.get(&fact.task.seq()).is_some_and(|whose| reach.covers(&whose.tenant, whose.owner.as_deref()))
                }
            };
            if let Some(state) = fact.kind.run_state().filter(|_| visible) {
                let run = RunId::from_u128(fact.task.as_u128());
                self.ready.push_back(Event::Run { id, at: batch.at, run, kind: fact.kind, state });
            } else if visible {
                let queue = self.shared.queue_name(fact.queue).await?;
                self.ready.push_back(Event::Task { id, at: batch.at, queue, fact });
            }
        }
        Ok(true)
    }
}
