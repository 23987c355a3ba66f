//! Repeats wake-ups of jobs that leave the process.
//!
//! Workers of jobs drop every message that they have read, whatever came of it. So a task is announced again when what was
//! in its way has gone: a version was made active, a queue goes on, a slot is free. And since messages get lost, what
//! waits is announced again after a while, the oldest first and each task at most once in that time.
//!
//! A look costs the same however many tasks wait: it goes through them a page at a time.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::Seq;
use tenure_core::command::rewake::Rewake;
use tenure_core::command::{Answer, Command};
use tenure_core::queue::{QueueId, Transport};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_store::{JobQueue, JobQueues};
use tenure_transport::Upkeep;
use tokio::sync::Notify;

use super::sweep;
use crate::background::Pacer;
use crate::engine::Shared;
use crate::error::EngineError;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Wake-ups that a look goes through.
const PAGE: usize = 1_000;
/// Tasks that are announced because slots were freed.
const ROOM: usize = 100;
/// How often it goes through what waits, as a part of how long a task waits for its next wake-up.
const ROUNDS: i64 = 6;
/// A wake-up that is younger is still on its way to a worker.
const YOUNG_MS: DurationMs = 1_000;
/// For how long other control planes may still act on what a queue was set to before.
const UNTIL_ALL_KNOW: Duration = Duration::from_secs(3);

/// Queues of jobs whose tasks can be claimed again.
#[derive(Debug, Default)]
pub struct Room {
    /// An attempt of theirs has ended.
    queues: Mutex<HashSet<QueueId>>,
    /// Some are no longer held.
    released: AtomicBool,
    made: Notify,
}

impl Room {
    pub fn made(&self, queues: &[QueueId]) {
        if queues.is_empty() {
            return;
        }
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).extend(queues);
        self.made.notify_one();
    }

    pub fn released(&self) {
        self.released.store(true, Ordering::Relaxed);
        self.made.notify_one();
    }

    fn take(&self) -> HashSet<QueueId> {
        std::mem::take(&mut *self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells workers of slots that attempts have freed, and of tasks that were held. What it misses is found by [`waker`] and
/// the sweep.
pub async fn teller(shared: Arc<Shared>) {
    let mut again: Option<Instant> = None;
    loop {
        let at = again.unwrap_or_else(Instant::now);
        tokio::select! {
            () = shared.room.made.notified() => {}
            () = tokio::time::sleep_until(at.into()), if again.is_some() => {}
            () = shared.stopping.cancelled() => return,
        }
        let released = shared.room.released.swap(false, Ordering::Relaxed);
        if released || again.is_some_and(|at| Instant::now() >= at) {
            again = released.then(|| Instant::now() + UNTIL_ALL_KNOW);
            if let Err(error) = feed_released(&shared).await {
                tracing::debug!(%error, "cannot announce tasks that were held: left for the sweep");
            }
        }
        for queue in shared.room.take() {
            if let Err(error) = tell_of_room(&shared, queue).await {
                tracing::debug!(%error, "cannot tell workers of a free slot: left for the next look");
            }
        }
    }
}

/// Tasks that were held have no wake-up yet.
async fn feed_released(shared: &Shared) -> Result<(), EngineError> {
    let mut fed = 0;
    for queue in shared.store.job_queues(None).await?.queues {
        if queue.queue.transport.is_external() && !queue.is_held() {
            fed += sweep::feed(shared, queue.queue.id).await?;
        }
    }
    if fed > 0 {
        shared.effects.look();
    }
    Ok(())
}

async fn tell_of_room(shared: &Shared, queue: QueueId) -> Result<(), EngineError> {
    let Some(view) = shared.store.queue(queue).await? else { return Ok(()) };
    let (transport, now) = (view.queue.transport, view.now);
    let queue = JobQueue { queue: view.queue, ready: 0, running: view.running };
    announce(shared, transport, &queue, now, now, ROOM).await
}

/// Announces the first tasks of a queue again that there is room for, unless they were announced after `before`.
async fn announce(
    shared: &Shared,
    transport: Transport,
    queue: &JobQueue,
    now: Timestamp,
    before: Timestamp,
    limit: usize,
) -> Result<(), EngineError> {
    let first = queue.first(now, limit);
    if first.limit == 0 {
        return Ok(());
    }
    let ready = shared.store.first_ready(&[first]).await?.into_iter();
    let due = ready.filter(|task| task.published_at.is_some_and(|at| at <= before));
    rewake(shared, transport, due.map(|task| (task.task.seq(), task.message)).collect()).await
}

async fn rewake(shared: &Shared, transport: Transport, tasks: Vec<(Seq, i64)>) -> Result<(), EngineError> {
    if tasks.is_empty() {
        return Ok(());
    }
    let commands = tasks.into_iter().map(|(row, message)| Command::Rewake(Rewake { row, message })).collect();
    let mut repeated = 0;
    for reply in shared.work.send(commands, 0).await? {
        repeated += u64::from(reply? == Ok(Answer::Done(true)));
    }
    metrics::counter!("tenure_job_wakeups_repeated_total", "transport" => transport.as_str()).increment(repeated);
    Ok(())
}

/// What keeps the tasks of a queue from being claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// Only tasks that rebuild a version can be claimed.
    Held,
    /// It is paused, or all its slots are taken.
    Closed,
}

impl Gate {
    fn of(queue: &JobQueue, now: Timestamp) -> Self {
        match queue.queue.room(queue.running, now).grants {
            0 => Self::Closed,
            _ if queue.is_held() => Self::Held,
            _ => Self::Open,
        }
    }
}

#[derive(Debug)]
struct Known {
    gate: Gate,
    /// When it last began to go through what waits.
    began: Option<Timestamp>,
    walk: Option<Walk>,
}

/// How far it has come through the wake-ups of a queue.
#[derive(Debug, Clone, Copy)]
struct Walk {
    after: i64,
    /// Those that were published later are left alone.
    before: Timestamp,
}

impl Walk {
    fn begin(before: Timestamp) -> Self {
        Self { after: i64::MIN, before }
    }
}

struct Waker<'a> {
    shared: &'a Shared,
    transport: Transport,
    service: &'a Arc<dyn Upkeep>,
    known: HashMap<QueueId, Known>,
    /// The queue that comes first at the next look.
    next: QueueId,
    /// The transport was away, and may have lost what it had.
    lost: bool,
}

/// The duty of whoever keeps this transport in line.
pub async fn waker(shared: Arc<Shared>, transport: Transport) {
    let (Some(service), Some(duty)) = (shared.config.transports.get(transport), sweep::duty(transport)) else { return };
    let mut waker = Waker { shared: &shared, transport, service, known: HashMap::new(), next: QueueId(0), lost: false };
    let (mut pacer, mut back) = (Pacer::new(&shared), shared.sweep.subscribe());
    loop {
        tokio::select! {
            more = pacer.pause(LOOK_EVERY) => if !more { return },
            () = shared.duties.gained(duty) => {}
            () = shared.queues_set.notified() => {}
            Ok(()) = back.changed() => waker.lost = true,
        }
        if !shared.duties.is_mine(duty) {
            waker.known.clear();
            continue;
        }
        if let Err(error) = waker.look().await {
            tracing::warn!(%error, transport.name = service.name(), "cannot repeat all wake-ups of jobs");
        }
    }
}

impl Waker<'_> {
    async fn look(&mut self) -> Result<(), EngineError> {
        let JobQueues { mut queues, now } = self.shared.store.job_queues(None).await?;
        let lost = std::mem::take(&mut self.lost);
        queues.retain(|queue| queue.queue.transport == self.transport);
        let ids: HashSet<QueueId> = queues.iter().map(|queue| queue.queue.id).collect();
        self.known.retain(|id, _| ids.contains(id));
        let mut waiting: HashMap<Arc<str>, u64> = HashMap::new();
        for queue in &queues {
            *waiting.entry(queue.queue.wakes()).or_default() += queue.ready;
            let gate = Gate::of(queue, now);
            let known = self.known.entry(queue.queue.id).or_insert(Known::new(gate));
            if lost {
                known.walk = Some(Walk::begin(now.plus(-1)));
            }
            if known.turn(gate, now) {
                self.shared.room.released();
            }
        }
        let first = queues.partition_point(|queue| queue.queue.id < self.next);
        queues.rotate_left(first);
        let mut left = PAGE;
        for queue in &queues {
            if left == 0 {
                self.next = queue.queue.id;
                break;
            }
            left = left.saturating_sub(self.look_at(queue, now, left, &waiting).await?);
        }
        Ok(())
    }

    /// Returns how many wake-ups were gone through.
    async fn look_at(
        &mut self,
        queue: &JobQueue,
        now: Timestamp,
        left: usize,
        waiting: &HashMap<Arc<str>, u64>,
    ) -> Result<usize, EngineError> {
        let id = queue.queue.id;
        let Some(gate) = self.known.get(&id).map(|known| known.gate) else { return Ok(0) };
        if gate == Gate::Closed {
            return Ok(0);
        }
        let rewake_ms = i64::try_from(self.shared.config.rewake_after.as_millis()).unwrap_or(i64::MAX);
        let Some(walk) = self.walk(queue, now, rewake_ms, waiting).await else { return Ok(0) };
        if gate == Gate::Held || queue.queue.is_limited() {
            self.end_walk(id);
            announce(self.shared, self.transport, queue, now, walk.before, left).await?;
            return Ok(queue.first(now, left).limit);
        }
        let page = self.shared.store.job_wakes(id, walk.after, left).await?;
        let is_due = |at: Timestamp| at <= walk.before;
        let due = page.iter().filter(|wake| wake.ready && wake.published_at.is_some_and(is_due));
        let due: Vec<(Seq, i64)> = due.map(|wake| (wake.row, wake.message)).collect();
        match page.last() {
            // Younger ones come behind it, at about the order of their ids.
            Some(last) if page.len() == left && (!due.is_empty() || is_due(last.created_at)) => {
                if let Some(known) = self.known.get_mut(&id) {
                    known.walk = Some(Walk { after: last.message, ..walk });
                }
            }
            _ => self.end_walk(id),
        }
        rewake(self.shared, self.transport, due).await?;
        Ok(page.len())
    }

    fn end_walk(&mut self, id: QueueId) {
        if let Some(known) = self.known.get_mut(&id) {
            known.walk = None;
        }
    }

    /// The walk through the wake-ups of a queue that is under way, or a new one if it is time.
    async fn walk(
        &mut self,
        queue: &JobQueue,
        now: Timestamp,
        rewake_ms: DurationMs,
        waiting: &HashMap<Arc<str>, u64>,
    ) -> Option<Walk> {
        let known = self.known.get_mut(&queue.queue.id)?;
        if known.walk.is_some() {
            return known.walk;
        }
        if known.began.is_some_and(|began| now.since(began) < rewake_ms / ROUNDS) {
            return None;
        }
        known.began = Some(now);
        if self.has_enough(queue, waiting).await {
            return None;
        }
        let known = self.known.get_mut(&queue.queue.id)?;
        known.walk = Some(Walk::begin(now.plus(-rewake_ms)));
        known.walk
    }

    /// Whether the transport has more messages than anybody needs. SQS does not let go of those that were replaced, so
    /// without workers there would be more and more of them.
    async fn has_enough(&self, queue: &JobQueue, waiting: &HashMap<Arc<str>, u64>) -> bool {
        if self.transport != Transport::Sqs {
            return false;
        }
        let name = queue.queue.wakes();
        let wanted = waiting.get(&name).copied().unwrap_or_default();
        self.service.depth(&name).await.is_ok_and(|depth| depth > 2 * wanted + PAGE as u64)
    }
}

impl Known {
    fn new(gate: Gate) -> Self {
        Self { gate, began: None, walk: None }
    }

    /// Notes what the queue is now. If it was opened, everybody that waits is announced again. Returns whether its tasks were
    /// held.
    fn turn(&mut self, gate: Gate, now: Timestamp) -> bool {
        let was = std::mem::replace(&mut self.gate, gate);
        if gate == Gate::Open && was != Gate::Open {
            self.walk = Some(Walk::begin(now.plus(-YOUNG_MS)));
        }
        was == Gate::Held && gate == Gate::Open
    }
}
