//! Workers as this control plane sees them: who called, and who gets no new work.
//!
//! A call costs no write. Who was seen is kept in memory and written down every few seconds. Drains are read every second,
//! and at once when another control plane tells of one.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::command::claim::Claimer;
use tenure_store::{HeldTask, Notice, Page, Sighting, WORKER_RECORDS_MAX, WorkerDetails, WorkerRecord};
use tokio::sync::watch;

use crate::background::Pacer;
use crate::engine::{Engine, Shared};
use crate::error::EngineError;

const READ_DRAINS_EVERY: Duration = Duration::from_secs(1);
/// A worker about which nothing new is known is written down this often.
const REWRITE_AFTER: Duration = Duration::from_secs(15);
/// Differences of a clock up to this are the time of the request on its way.
const CLOCK_NOISE_MS: u64 = 1_000;
/// Workers that have not called for this long are dropped from memory.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// A call of a worker.
#[derive(Debug)]
pub struct WorkerCall<'a> {
    pub worker: &'a WorkerId,
    /// `pull`, `dispatch` or `callback`.
    pub contract: &'static str,
    /// Queues that it asks for; empty if it does not ask.
    pub queues: &'a [Arc<str>],
    pub details: Option<WorkerDetails>,
}

#[derive(Debug, Default)]
pub struct Fleet {
    seen: Mutex<HashMap<WorkerId, Seen>>,
    drained: Mutex<HashMap<WorkerId, Drained>>,
    drains_changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Seen {
    contracts: BTreeSet<&'static str>,
    queues: Vec<Arc<str>>,
    details: Option<WorkerDetails>,
    at: Instant,
    /// Claims of it that wait.
    waiting: usize,
    written_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Drained {
    /// The worker was answered since it was drained.
    told: bool,
}

impl Fleet {
    pub fn saw(&self, call: WorkerCall<'_>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, has_room) = (Instant::now(), seen.len() < WORKER_RECORDS_MAX);
        match seen.get_mut(call.worker) {
            Some(known) => {
                known.at = now;
                let asks_elsewhere = !call.queues.is_empty() && known.queues != call.queues;
                let says_more = call.details.as_ref().is_some_and(|new| differs(known.details.as_ref(), new));
                if asks_elsewhere {
                    known.queues = call.queues.to_vec();
                }
                if call.details.is_some() {
                    known.details = call.details;
                }
                if known.contracts.insert(call.contract) || asks_elsewhere || says_more {
                    known.written_at = None;
                }
            }
            None if has_room => {
                let new = Seen {
                    contracts: BTreeSet::from([call.contract]),
                    queues: call.queues.to_vec(),
                    details: call.details,
                    at: now,
                    waiting: 0,
                    written_at: None,
                };
                seen.insert(Arc::clone(call.worker), new);
            }
            None => {}
        }
    }

    /// A worker whose claim waits is here until the guard is dropped.
    fn waits(&self, worker: &WorkerId) -> Present<'_> {
        self.change(worker, |seen| seen.waiting += 1);
        Present { fleet: self, worker: Arc::clone(worker) }
    }

    fn change(&self, worker: &WorkerId, change: impl FnOnce(&mut Seen)) {
        if let Some(seen) = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get_mut(worker) {
            change(seen);
        }
    }

    /// What should be written down now: everything new, and of the rest what was written some time ago.
    fn unwritten(&self, all: bool) -> Vec<Sighting> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        seen.retain(|_, seen| seen.waiting > 0 || now.duration_since(seen.at) < FORGET_AFTER);
        let mut sightings = Vec::new();
        for (worker, seen) in seen.iter_mut() {
            if seen.waiting > 0 {
                seen.at = now;
            }
            let is_due = |at: Instant| seen.at > at && (all || now.duration_since(at) >= REWRITE_AFTER);
            if !seen.written_at.is_none_or(is_due) {
                continue;
            }
            seen.written_at = Some(now);
            sightings.push(Sighting {
                worker: Arc::clone(worker),
                contracts: seen.contracts.iter().copied().collect(),
                queues: seen.queues.clone(),
                details: seen.details.clone(),
                ago_ms: i64::try_from(now.duration_since(seen.at).as_millis()).unwrap_or(0),
            });
        }
        sightings
    }

    /// What could not be written is new again.
    fn not_written(&self, sightings: &[Sighting]) {
        for sighting in sightings {
            self.change(&sighting.worker, |seen| seen.written_at = None);
        }
    }

    pub fn is_drained(&self, worker: &str) -> bool {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner).contains_key(worker)
    }

    /// Whether a drained worker is answered at once, because it does not know of its drain yet. Once only: otherwise it
    /// would ask without a pause.
    fn tells(&self, worker: &str) -> bool {
        let mut drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        drained.get_mut(worker).is_some_and(|drained| !std::mem::replace(&mut drained.told, true))
    }

    fn set_drained(&self, workers: Vec<WorkerId>) {
        let mut drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        let before = drained.len();
        let known = std::mem::take(&mut *drained);
        let mut changed = before != workers.len();
        for worker in workers {
            changed |= !known.contains_key(&worker);
            let state = known.get(&worker).copied().unwrap_or_default();
            drained.insert(worker, state);
        }
        drop(drained);
        if changed {
            self.drains_changed.send_replace(());
        }
    }

    pub fn drains(&self) -> watch::Receiver<()> {
        self.drains_changed.subscribe()
    }
}

/// Whether there is something to write. How long a request took makes no difference.
fn differs(known: Option<&WorkerDetails>, new: &WorkerDetails) -> bool {
    let Some(known) = known else { return true };
    let apart = match (known.clock_ahead_ms, new.clock_ahead_ms) {
        (Some(a), Some(b)) => a.abs_diff(b) > CLOCK_NOISE_MS,
        (a, b) => a != b,
    };
    apart || WorkerDetails { clock_ahead_ms: new.clock_ahead_ms, ..known.clone() } != *new
}

#[derive(Debug)]
pub(crate) struct Present<'a> {
    fleet: &'a Fleet,
    worker: WorkerId,
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.fleet.change(&self.worker, |seen| {
            seen.waiting = seen.waiting.saturating_sub(1);
            seen.at = Instant::now();
        });
    }
}

/// Writes down who was seen.
pub async fn note(shared: &Shared, all: bool) {
    let sightings = shared.fleet.unwritten(all);
    if sightings.is_empty() {
        return;
    }
    if let Err(error) = shared.store.note_workers(&sightings).await {
        shared.fleet.not_written(&sightings);
        tracing::warn!(error = error.chain(), "cannot record which workers were seen");
    }
}

/// Reads who is drained.
pub async fn read_drains(shared: &Shared) {
    match shared.store.drained_workers().await {
        Ok(workers) => shared.fleet.set_drained(workers),
        Err(error) => tracing::debug!(error = error.chain(), "cannot read which workers are drained"),
    }
}

pub async fn watch_drains(shared: Arc<Shared>) {
    let mut pacer = Pacer::new(&shared);
    while pacer.pause(READ_DRAINS_EVERY).await {
        read_drains(&shared).await;
    }
}

impl Engine {
    /// Takes note of a worker. Costs no write.
    pub fn saw_worker(&self, call: WorkerCall<'_>) {
        self.shared.fleet.saw(call);
    }

    /// Whether a worker gets no new work.
    pub fn is_drained(&self, worker: &str) -> bool {
        self.shared.fleet.is_drained(worker)
    }

    /// Marks the worker of a claim as present while the claim waits.
    pub(crate) fn present(&self, claimer: &Claimer) -> Option<Present<'_>> {
        claimer.worker.as_ref().map(|worker| self.shared.fleet.waits(&worker.id))
    }

    /// Holds up a claim of a drained worker. Returns true if it may be granted something, false if it is answered with
    /// nothing new: at once the first time after the drain, later when its time is over.
    pub async fn may_get_work(&self, worker: &str, until: Instant) -> bool {
        let mut drains = self.shared.fleet.drains();
        loop {
            if !self.is_drained(worker) {
                return true;
            }
            if Instant::now() >= until || self.shared.fleet.tells(worker) {
                return false;
            }
            tokio::select! {
                _ = drains.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
                () = self.shared.stopping.cancelled() => return false,
            }
        }
    }

    /// Records of workers with ids after `after`, by id.
    pub async fn worker_records(&self, after: &str, limit: usize) -> Result<Page<WorkerRecord>, EngineError> {
        note(&self.shared, true).await;
        Ok(self.shared.store.worker_records(after, limit).await?)
    }

    pub async fn worker_record(&self, worker: &str) -> Result<Option<WorkerRecord>, EngineError> {
        note(&self.shared, true).await;
        Ok(self.shared.store.worker_record(worker).await?)
    }

    /// What a worker holds, oldest first.
    pub async fn held_tasks(&self, worker: &str, reach: &Reach, limit: usize) -> Result<Vec<HeldTask>, EngineError> {
        Ok(self.shared.store.held_tasks(worker, reach, limit).await?)
    }

    /// Lets a worker get no new work, or takes that back. It keeps what it holds. `None` if it is not known.
    pub async fn drain_worker(
        &self,
        worker: &str,
        drain: bool,
        reason: Option<&str>,
    ) -> Result<Option<WorkerRecord>, EngineError> {
        note(&self.shared, true).await;
        if !self.shared.store.drain_worker(worker, drain, reason).await? {
            return Ok(None);
        }
        self.shared.fleet.set_drained(self.shared.store.drained_workers().await?);
        self.shared.tell(|| Notice::Workers);
        self.worker_record(worker).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(worker: &'a WorkerId, queues: &'a [Arc<str>], details: Option<WorkerDetails>) -> WorkerCall<'a> {
        WorkerCall { worker, contract: "pull", queues, details }
    }

    #[test]
    fn a_worker_is_written_down_once_until_it_says_something_new() {
        let fleet = Fleet::default();
        let (worker, queues): (WorkerId, Vec<Arc<str>>) = ("w".into(), vec!["q".into()]);
        for _ in 0..1_000 {
            fleet.saw(call(&worker, &queues, None));
        }
        assert_eq!(fleet.unwritten(false).len(), 1);
        fleet.saw(call(&worker, &queues, None));
        assert_eq!(fleet.unwritten(false), []);
        fleet.saw(call(&worker, &[], Some(WorkerDetails { slots: Some(4), ..WorkerDetails::default() })));
        let written = fleet.unwritten(false);
        assert_eq!((written.len(), &written[0].queues), (1, &queues));
        fleet.not_written(&written);
        assert_eq!(fleet.unwritten(false).len(), 1);
    }

    #[test]
    fn a_drained_worker_is_told_at_once_and_only_once() {
        let fleet = Fleet::default();
        let mut drains = fleet.drains();
        fleet.set_drained(vec!["w".into()]);
        assert!(drains.has_changed().unwrap());
        drains.mark_unchanged();
        assert!(fleet.is_drained("w") && !fleet.is_drained("v"));
        assert!(fleet.tells("w") && !fleet.tells("w") && !fleet.tells("v"));
        fleet.set_drained(vec!["w".into()]);
        assert!(!drains.has_changed().unwrap() && !fleet.tells("w"));
        fleet.set_drained(Vec::new());
        assert!(drains.has_changed().unwrap() && !fleet.is_drained("w"));
    }

    #[test]
    fn memory_is_bounded() {
        let fleet = Fleet::default();
        for n in 0..WORKER_RECORDS_MAX + 10 {
            fleet.saw(call(&format!("w{n}").into(), &[], None));
        }
        assert_eq!(fleet.unwritten(true).len(), WORKER_RECORDS_MAX);
    }
}
