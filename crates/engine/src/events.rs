//! What changed, for those who watch: durable, in order, and with ids from which one can go on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::command::Reach;
use tenure_core::event::{Fact, FactKind};
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

/// How long a batch that is missing between two others is waited for: it may be about to commit.
const GAP: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(500);
const GAP_POLL: Duration = Duration::from_millis(20);
const BATCHES: usize = 64;

/// A watcher. [`Events::next`] waits for the next change.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
    reach: Reach,
    last: EventId,
    ready: VecDeque<Event>,
    gap_since: Option<Instant>,
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
            Some(after) => after,
            None => EventId { batch: last, index: u32::MAX },
        };
        Ok(Self { shared, reach, last: start, ready, gap_since: None })
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
            let pause = if self.gap_since.is_some() { GAP_POLL } else { poll };
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
        let mut moved = false;
        for batch in batches {
            let expected = self.last.batch + 1;
            if batch.batch > expected && self.last.batch > 0 && !self.skip_gap() {
                break;
            }
            self.gap_since = None;
            moved |= self.take(batch).await?;
        }
        Ok(moved)
    }

    /// Whether a missing batch was waited for long enough: its transaction must have failed.
    fn skip_gap(&mut self) -> bool {
        self.gap_since.get_or_insert_with(Instant::now).elapsed() > GAP
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
