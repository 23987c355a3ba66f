//! Grants tasks of push queues and hands them to their pushes; repeats those that are due.
//!
//! Each queue has a loop of its own with slots of its own, so a target that hangs holds up its queue and no other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::Seq;
use tenure_core::command::claim::{Claim, Claimer, Grant};
use tenure_core::command::push::TakePush;
use tenure_core::command::{Answer, Command};
use tenure_core::limits;
use tenure_core::queue::{Queue, QueueId};
use tenure_core::time::DurationMs;
use tenure_engine::{ClaimWait, Engine, EngineError, random_seed};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::circuit::{Circuits, Gate, Name, Probe};
use super::targets::PushTargets;
use crate::identity::task_keys::SharedTaskKeys;
use crate::live::Live;

/// Pushes of one queue that wait for an answer at a time. Each holds its envelope in memory.
const IN_FLIGHT: usize = 128;
/// Grants of one claim.
const BATCH: usize = 64;
/// How long a claim waits for tasks.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
/// How often queues are looked for, and what cannot go on now is tried again.
const LOOK: Duration = Duration::from_secs(1);
/// A target that is down is tried with a push that is open, if that one is due within this time.
const SOON_MS: DurationMs = limits::PUSH_BACKOFF_MS_MAX;
/// For so long at the most.
const LEFT_TO_OTHERS: Duration = Duration::from_millis(2 * SOON_MS.cast_unsigned());
/// Due pushes are not looked for more often than this.
const SCAN_AT_MOST_EVERY: Duration = Duration::from_millis(20);

/// What all pushes share.
#[derive(Debug)]
pub struct Pusher {
    pub engine: Engine,
    pub targets: Live<PushTargets>,
    pub keys: Arc<SharedTaskKeys>,
    pub circuits: Arc<Circuits>,
    lanes: Mutex<HashMap<QueueId, Arc<Lane>>>,
    /// Something is to be pushed again, or there is room to do so.
    pub again: Notify,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

/// A queue whose tasks are pushed.
#[derive(Debug)]
pub struct Lane {
    queue: watch::Sender<Arc<Queue>>,
    slots: Arc<Semaphore>,
    gone: CancellationToken,
}

impl Lane {
    /// The queue as it is now.
    pub fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue.borrow())
    }
}

/// Pushes until `stop`, on tasks of the tracker.
pub fn start(
    engine: Engine,
    targets: Live<PushTargets>,
    keys: Arc<SharedTaskKeys>,
    circuits: Arc<Circuits>,
    tasks: &TaskTracker,
    stop: CancellationToken,
) {
    let pusher = Arc::new(Pusher {
        engine,
        targets,
        keys,
        circuits,
        lanes: Mutex::default(),
        again: Notify::new(),
        tasks: tasks.clone(),
        stop,
    });
    tasks.spawn(Arc::clone(&pusher).look_for_queues());
    tasks.spawn(pusher.repeat());
}

impl Pusher {
    fn lanes(&self) -> MutexGuard<'_, HashMap<QueueId, Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues appear, change and vanish, here and at other control planes.
    async fn look_for_queues(self: Arc<Self>) {
        loop {
            match self.engine.store().push_queues().await {
                Ok(queues) => self.follow(queues),
                Err(error) => tracing::warn!(error = error.chain(), "cannot look for push queues"),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.engine.queue_set() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn follow(self: &Arc<Self>, queues: Vec<Queue>) {
        let mut lanes = self.lanes();
        lanes.retain(|id, lane| {
            let stays = queues.iter().any(|queue| queue.id == *id);
            if !stays {
                lane.gone.cancel();
            }
            stays
        });
        for queue in queues {
            match lanes.get(&queue.id) {
                Some(lane) => {
                    // Its bucket changes with every grant; that is no news.
                    lane.queue.send_if_modified(|known| {
                        let changed = known.settings.push != queue.settings.push || known.paused != queue.paused;
                        *known = Arc::new(queue);
                        changed
                    });
                }
                None => {
                    let id = queue.id;
                    let lane = Arc::new(Lane {
                        queue: watch::Sender::new(Arc::new(queue)),
                        slots: Arc::new(Semaphore::new(IN_FLIGHT)),
                        gone: self.stop.child_token(),
                    });
                    lanes.insert(id, Arc::clone(&lane));
                    self.tasks.spawn(Arc::clone(self).serve(lane));
                }
            }
        }
        let queues: Vec<_> = lanes.values().map(|lane| lane.queue()).collect();
        let named = queues.iter().filter_map(|queue| Some(Name::of(&queue.name, queue.settings.push.as_deref()?)));
        let names: HashSet<Name> = named.collect();
        self.circuits.keep(|known| names.contains(known));
    }

    /// Grants the tasks of one queue as long as it is one to push.
    async fn serve(self: Arc<Self>, lane: Arc<Lane>) {
        let mut changes = lane.queue.subscribe();
        let mut complained: Option<String> = None;
        let mut waiting_since: Option<Instant> = None;
        while !lane.gone.is_cancelled() {
            let queue = Arc::clone(&changes.borrow_and_update());
            let circuit = match self.circuit_of(&queue) {
                Ok(circuit) => circuit,
                Err(why) => {
                    // Once per reason: it is tried every second.
                    if complained.as_ref() != Some(&why) {
                        tracing::error!(queue.name = %queue.name, reason = why, "cannot push tasks of this queue");
                        complained = Some(why);
                    }
                    self.wait(&lane, &mut changes, LOOK).await;
                    continue;
                }
            };
            complained = None;
            let now = Instant::now();
            let gate = self.circuits.gate(&circuit, now);
            if gate != Gate::Probe {
                waiting_since = None;
            }
            match gate {
                Gate::Shut { until } => {
                    self.wait(&lane, &mut changes, until.saturating_duration_since(now).min(LOOK)).await;
                }
                // What was granted before is there to see how the target is; something new would be one more attempt lost.
                // Unless another control plane is at it, and lives well.
                Gate::Probe
                    if waiting_since.get_or_insert(now).elapsed() < LEFT_TO_OTHERS
                        && self.has_open_push(&queue).await =>
                {
                    self.again.notify_one();
                    self.wait(&lane, &mut changes, LOOK).await;
                }
                Gate::Probe => {
                    let Some(probe) = self.circuits.probe(&circuit, now) else { continue };
                    let granted = self.claim(&queue, 1, ClaimWait::NONE, std::future::ready(())).await;
                    if granted.is_empty() {
                        drop(probe);
                        self.wait(&lane, &mut changes, LOOK).await;
                    } else {
                        self.push_all(&lane, granted, Some(probe)).await;
                    }
                }
                Gate::Free => {
                    let Some(room) = self.room(&lane).await else { continue };
                    let enough = async {
                        tokio::select! {
                            () = lane.gone.cancelled() => {}
                            _ = changes.changed() => {}
                            () = self.until_shut(&circuit) => {}
                        }
                    };
                    let granted = self.claim(&queue, room.min(BATCH), ClaimWait(CLAIM_WAIT), enough).await;
                    self.push_all(&lane, granted, None).await;
                }
            }
        }
    }

    /// Whether the queue has a push that can be repeated before long.
    async fn has_open_push(&self, queue: &Queue) -> bool {
        match self.engine.store().pushes_due(&[(queue.id, 1)]).await {
            Ok(due) => !due.rows.is_empty() || due.next_at.is_some_and(|at| at.since(due.now) <= SOON_MS),
            Err(error) => {
                tracing::warn!(queue.name = %queue.name, error = error.chain(), "cannot look for open pushes");
                true
            }
        }
    }

    fn circuit_of(&self, queue: &Queue) -> Result<Name, String> {
        let push = queue.settings.push.as_ref().ok_or("the queue has no push block")?;
        self.targets.get().route(push)?;
        Ok(Name::of(&queue.name, push))
    }

    async fn wait(&self, lane: &Lane, changes: &mut watch::Receiver<Arc<Queue>>, time: Duration) {
        tokio::select! {
            () = lane.gone.cancelled() => {}
            _ = changes.changed() => {}
            () = self.circuits.changed() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    async fn until_shut(&self, circuit: &Name) {
        loop {
            let changed = self.circuits.changed();
            tokio::pin!(changed);
            if self.circuits.gate(circuit, Instant::now()) != Gate::Free {
                return;
            }
            changed.await;
        }
    }

    /// Waits for a free slot; gives how many there are.
    async fn room(&self, lane: &Lane) -> Option<usize> {
        let free = lane.slots.acquire();
        tokio::select! {
            () = lane.gone.cancelled() => None,
            free = free => free.ok().map(|_| lane.slots.available_permits().max(1)),
        }
    }

    async fn claim(
        &self,
        queue: &Queue,
        max_jobs: usize,
        wait: ClaimWait,
        enough: impl Future<Output = ()>,
    ) -> Vec<Grant> {
        let claimer = Claimer::delivery(random_seed());
        let claim = Claim { claimer, queues: vec![Arc::clone(&queue.name)], max_jobs };
        let mut claimed = self.engine.claim_unless(claim.clone(), wait, enough).await;
        loop {
            match claimed {
                Ok(claimed) => return claimed.grants,
                Err(EngineError::Closed) => return Vec::new(),
                Err(error) => tracing::warn!(queue.name = %queue.name, %error, "cannot grant tasks for pushing"),
            }
            if self.stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() {
                return Vec::new();
            }
            // What the first one may have been granted is found by the time at which it is due. A seed is drawn from once.
            let claim = Claim { claimer: Claimer::delivery(random_seed()), ..claim.clone() };
            claimed = self.engine.claim(claim, ClaimWait::NONE).await;
        }
    }

    async fn push_all(self: &Arc<Self>, lane: &Arc<Lane>, granted: Vec<Grant>, mut probe: Option<Probe>) {
        for grant in granted {
            // Room was there a moment ago; repeats may have taken it.
            let Ok(slot) = Arc::clone(&lane.slots).acquire_owned().await else { return };
            self.spawn(lane, grant, slot, probe.take());
        }
    }

    fn spawn(self: &Arc<Self>, lane: &Arc<Lane>, grant: Grant, slot: OwnedSemaphorePermit, probe: Option<Probe>) {
        self.tasks.spawn(Arc::clone(self).push(Arc::clone(lane), grant, slot, probe));
    }

    /// Repeats pushes that are due, whoever began them.
    async fn repeat(self: Arc<Self>) {
        loop {
            let sleep = match self.repeat_due().await {
                Ok(sleep) => sleep,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for due pushes");
                    LOOK
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                // The clock of a test may be moved.
                more = self.engine.pause(sleep) => if !more { return },
                () = self.again.notified() => tokio::time::sleep(SCAN_AT_MOST_EVERY).await,
            }
        }
    }

    /// One look. Gives how long until the next.
    async fn repeat_due(self: &Arc<Self>) -> Result<Duration, EngineError> {
        let lanes: HashMap<QueueId, Arc<Lane>> = self.lanes().clone();
        let mut rooms = Vec::new();
        let mut circuits_of = HashMap::new();
        let now = Instant::now();
        for (id, lane) in &lanes {
            let Ok(circuit) = self.circuit_of(&lane.queue()) else { continue };
            let room = match self.circuits.gate(&circuit, now) {
                Gate::Free => lane.slots.available_permits().min(BATCH),
                Gate::Probe => 1,
                Gate::Shut { .. } => 0,
            };
            if room > 0 {
                rooms.push((*id, room));
            }
            circuits_of.insert(*id, circuit);
        }
        if rooms.is_empty() {
            return Ok(LOOK);
        }
        let due = self.engine.store().pushes_due(&rooms).await?;
        let full = due.rows.len();
        let taken = self.take(&lanes, &circuits_of, due.rows).await?;
        if taken > 0 && full >= BATCH {
            return Ok(SCAN_AT_MOST_EVERY);
        }
        let ms = due.next_at.map_or(i64::MAX, |at| at.since(due.now));
        Ok(Duration::from_millis(u64::try_from(ms).unwrap_or(0)).clamp(SCAN_AT_MOST_EVERY, LOOK))
    }

    /// Takes these pushes, as far as others have not done so, and pushes what was taken.
    async fn take(
        self: &Arc<Self>,
        lanes: &HashMap<QueueId, Arc<Lane>>,
        circuits_of: &HashMap<QueueId, Name>,
        rows: Vec<(QueueId, Seq)>,
    ) -> Result<usize, EngineError> {
        let mut ours = Vec::new();
        for (queue, row) in rows {
            let (Some(lane), Some(circuit)) = (lanes.get(&queue), circuits_of.get(&queue)) else { continue };
            let Ok(slot) = Arc::clone(&lane.slots).try_acquire_owned() else { continue };
            let now = Instant::now();
            let probe = match self.circuits.gate(circuit, now) {
                Gate::Free => None,
                Gate::Probe => match self.circuits.probe(circuit, now) {
                    None => continue,
                    probe => probe,
                },
                Gate::Shut { .. } => continue,
            };
            ours.push((row, lane, slot, probe));
        }
        if ours.is_empty() {
            return Ok(0);
        }
        let commands = ours.iter().map(|(row, ..)| Command::TakePush(TakePush { row: *row })).collect();
        let replies = self.engine.run(commands, 0).await?;
        let mut taken = 0;
        for ((_, lane, slot, probe), reply) in ours.into_iter().zip(replies) {
            match reply {
                Ok(Ok(Answer::Claimed(claimed))) => {
                    let Some(grant) = claimed.grants.into_iter().next() else { continue };
                    taken += 1;
                    self.spawn(lane, grant, slot, probe);
                }
                Ok(_) => {}
                // The others were taken all the same.
                Err(error) => tracing::warn!(%error, "cannot take a due push"),
            }
        }
        Ok(taken)
    }
}
