//! What happens by itself: signs of life, expiry, timers, wake-ups that were lost, redrives, retention.
//!
//! Each of these only looks for rows and sends commands; whether a row is really due is decided again inside the
//! transaction. So any number of control planes can do it at the same time. To spare the store, what is done for all is
//! done by the one that has the [`Duty`]; the mark of life, the sweeper and the note of workers are everyone's own.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::Seq;
use tenure_core::command::expire::Expire;
use tenure_core::command::promote::Promote;
use tenure_core::command::redrive::Redrive;
use tenure_core::command::{Answer, Command};
use tenure_core::mutant;
use tenure_core::queue::JOB_WAKES;
use tenure_store::{AuditCut, JobQueues, RedriveView, StoreError};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::duty::{self, Duties, Duty};
use crate::engine::Shared;
use crate::error::EngineError;
use crate::{effects, fleet, replicas};

const ALIVE_EVERY: Duration = Duration::from_secs(1);
const REAP_EVERY: Duration = Duration::from_secs(1);
const TIMER_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const NOTE_WORKERS_EVERY: Duration = Duration::from_secs(5);
const REDRIVE_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(10);
const PRUNE_IDENTITY_EVERY: Duration = Duration::from_secs(60);
/// Between two bites of pruning others get their turn.
const PRUNE_PAUSE: Duration = Duration::from_millis(20);
/// A row that could not be ended is left alone for a while.
const SKIP_FOR: Duration = Duration::from_secs(60);
/// How long whoever does not have a duty leaves it alone.
const NOT_MINE: Duration = Duration::from_secs(1);
const ROWS: usize = 1_000;
const PRUNE_ROWS: usize = 500;
const REDRIVE_ROWS: usize = 500;
const SWEEP_TASKS: usize = 1_000;

pub fn start(shared: &Arc<Shared>, tasks: &TaskTracker) {
    tasks.spawn(alive(Arc::clone(shared)));
    tasks.spawn(duty::keep(Arc::clone(shared)));
    tasks.spawn(replicas::tell(Arc::clone(shared)));
    tasks.spawn(replicas::hear(Arc::clone(shared)));
    tasks.spawn(reaper(Arc::clone(shared)));
    tasks.spawn(timer(Arc::clone(shared)));
    tasks.spawn(sweeper(Arc::clone(shared)));
    tasks.spawn(note_workers(Arc::clone(shared)));
    tasks.spawn(fleet::watch_drains(Arc::clone(shared)));
    tasks.spawn(redriver(Arc::clone(shared)));
    tasks.spawn(retention(Arc::clone(shared)));
    tasks.spawn(identity(Arc::clone(shared)));
    for (transport, _) in shared.config.transports.configured() {
        tasks.spawn(effects::sweeper(Arc::clone(shared), transport));
        tasks.spawn(effects::waker(Arc::clone(shared), transport));
    }
    tasks.spawn(effects::teller(Arc::clone(shared)));
}

/// The pauses between the turns of one loop.
pub struct Pacer<'a> {
    shared: &'a Shared,
    moved: watch::Receiver<()>,
}

impl<'a> Pacer<'a> {
    pub fn new(shared: &'a Shared) -> Self {
        Self { shared, moved: shared.moved.clone() }
    }

    /// Sleeps, less if the clock is moved or was moved since the last pause. Returns false when the engine stops.
    pub async fn pause(&mut self, time: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            // The clock lives as long as the engine.
            _ = self.moved.changed() => true,
            () = self.shared.stopping.cancelled() => false,
        }
    }

    /// Waits for the next turn of a duty: `time` from now, or when the duty became this control plane's. Returns false
    /// when the engine stops.
    pub async fn turn(&mut self, duty: Duty, mut time: Duration) -> bool {
        let shared = self.shared;
        loop {
            tokio::select! {
                more = self.pause(time) => if !more { return false },
                () = shared.duties.gained(duty) => {}
            }
            if shared.duties.is_mine(duty) {
                return true;
            }
            time = NOT_MINE;
        }
    }
}

async fn alive(shared: Arc<Shared>) {
    let mut pacer = Pacer::new(&shared);
    while pacer.pause(ALIVE_EVERY).await {
        match shared.store.mark_alive().await {
            Ok(None) => {}
            Ok(Some(until)) => {
                tracing::warn!(grace.until = %until, "no control plane was available for a while: no lease from before expires until the grace ends");
            }
            Err(error) => tracing::warn!(error = error.chain(), "cannot write the mark of life"),
        }
        match shared.store.check_schema().await {
            Err(error @ StoreError::NewerSchema { .. }) => {
                tracing::error!(error = error.chain(), "this control plane must stop");
                shared.left_behind(error);
                return;
            }
            Err(error) => tracing::debug!(error = error.chain(), "cannot read the schema version"),
            Ok(()) => {}
        }
    }
}

async fn reaper(shared: Arc<Shared>) {
    let mut skipped: HashMap<Seq, Instant> = HashMap::new();
    let mut pacer = Pacer::new(&shared);
    while pacer.turn(Duty::Reaper, REAP_EVERY).await {
        skipped.retain(|_, at| at.elapsed() < SKIP_FOR);
        loop {
            match reap(&shared, &mut skipped).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for expired leases");
                    break;
                }
            }
        }
    }
}

/// One sweep over what has expired. Gives whether there may be more. A row that fails is reported and skipped.
async fn reap(shared: &Shared, skipped: &mut HashMap<Seq, Instant>) -> Result<bool, EngineError> {
    let mut rows = shared.store.expired(ROWS + skipped.len()).await?;
    rows.retain(|row| !skipped.contains_key(row));
    rows.truncate(ROWS);
    if rows.is_empty() {
        return Ok(false);
    }
    let commands = rows.iter().map(|row| Command::Expire(Expire { row: *row })).collect();
    let mut ended = 0_u64;
    for (row, reply) in rows.iter().zip(shared.work.send(commands, 0).await?) {
        match reply {
            Ok(Ok(Answer::Done(true))) => ended += 1,
            Ok(_) => {}
            Err(EngineError::Internal) => {
                tracing::error!(task.seq = row.0, "cannot end an expired lease: skipping it for a while");
                metrics::counter!("tenure_reaper_skipped_total").increment(1);
                skipped.insert(*row, Instant::now());
            }
            Err(error) => return Err(error),
        }
    }
    metrics::counter!("tenure_leases_expired_total").increment(ended);
    Ok(ended > 0 && rows.len() == ROWS)
}

async fn timer(shared: Arc<Shared>) {
    let at_least_every = shared.config.look_every.unwrap_or(TIMER_AT_LEAST_EVERY);
    let (mut pacer, mut sleep) = (Pacer::new(&shared), Duration::ZERO);
    loop {
        tokio::select! {
            more = pacer.turn(Duty::Timer, sleep) => if !more { return },
            () = shared.scheduled.notified() => {}
        }
        if !shared.duties.is_mine(Duty::Timer) {
            continue;
        }
        sleep = match promote(&shared).await {
            Ok(next) => next.min(at_least_every),
            Err(error) => {
                tracing::warn!(%error, "cannot look for due tasks");
                TIMER_AT_LEAST_EVERY
            }
        };
    }
}

/// Makes ready what is due. Gives how long until the next.
async fn promote(shared: &Shared) -> Result<Duration, EngineError> {
    let due = shared.store.due(ROWS).await?;
    if !due.rows.is_empty() {
        let commands = due.rows.iter().map(|row| Command::Promote(Promote { row: *row })).collect();
        for reply in shared.work.send(commands, 0).await? {
            if let Err(error) = reply {
                // Not at once again: a row that always fails would keep this turning.
                tracing::error!(%error, "cannot make a due task ready");
                return Ok(TIMER_AT_LEAST_EVERY);
            }
        }
    }
    let ms = due.next_at.map_or(i64::MAX, |at| at.since(due.now));
    Ok(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

/// Wakes whoever waits for a queue that has ready tasks: a wake-up may have been lost with the process that owed it, or
/// the task was made ready by another control plane.
async fn sweeper(shared: Arc<Shared>) {
    let every = shared.config.look_every.unwrap_or(SWEEP_EVERY);
    let mut pacer = Pacer::new(&shared);
    while pacer.pause(every).await {
        sweep(&shared).await;
    }
}

pub async fn sweep(shared: &Shared) {
    let (jobs, queues): (Vec<_>, Vec<_>) =
        shared.waiters.queues().into_iter().partition(|name| name.starts_with(JOB_WAKES));
    if !jobs.is_empty() {
        sweep_jobs(shared).await;
    }
    if queues.is_empty() {
        return;
    }
    match shared.store.ready_in(&queues, SWEEP_TASKS).await {
        Ok(found) => {
            for (queue, tasks) in found {
                shared.waiters.wake(&queue, tasks);
            }
        }
        Err(error) => tracing::warn!(error = error.chain(), "cannot look for ready tasks"),
    }
}

/// Does the same for long polls that wait for tasks of jobs.
async fn sweep_jobs(shared: &Shared) {
    match shared.store.job_queues(None).await {
        Ok(JobQueues { queues, now }) => {
            for queue in queues {
                // Of a held job perhaps none can be claimed.
                let ready = if queue.is_held() { 1 } else { usize::try_from(queue.ready).unwrap_or(SWEEP_TASKS) };
                let tasks = queue.first(now, SWEEP_TASKS).limit.min(ready);
                if tasks > 0 {
                    shared.waiters.wake(&queue.queue.wakes(), tasks);
                }
            }
        }
        Err(error) => tracing::warn!(error = error.chain(), "cannot look for ready tasks of jobs"),
    }
}

async fn note_workers(shared: Arc<Shared>) {
    let mut pacer = Pacer::new(&shared);
    while pacer.pause(NOTE_WORKERS_EVERY).await {
        fleet::note(&shared, false).await;
        let queues: Vec<Arc<str>> = {
            let mut asked_for = shared.asked_for.lock().unwrap_or_else(PoisonError::into_inner);
            let mut queues: Vec<_> = asked_for.drain().collect();
            queues.extend(shared.waiters.queues());
            queues.sort_unstable();
            queues.dedup();
            queues
        };
        if queues.is_empty() {
            continue;
        }
        if let Err(error) = shared.store.saw_workers(&queues).await {
            tracing::warn!(error = error.chain(), "cannot record which queues have workers");
        }
    }
}

async fn redriver(shared: Arc<Shared>) {
    let mut last_step: HashMap<u128, Instant> = HashMap::new();
    let mut pacer = Pacer::new(&shared);
    loop {
        tokio::select! {
            more = pacer.turn(Duty::Redrive, REDRIVE_EVERY) => if !more { return },
            () = shared.redriving.notified() => {}
        }
        if !shared.duties.is_mine(Duty::Redrive) {
            continue;
        }
        let open = match shared.store.open_redrives().await {
            Ok(open) => open,
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot look for redrives");
                continue;
            }
        };
        last_step.retain(|id, _| open.iter().any(|redrive| redrive.redrive_id == *id));
        for redrive in open {
            if let Err(error) = drive(&shared, redrive, &mut last_step).await {
                tracing::warn!(%error, "redrive interrupted, will continue");
            }
        }
    }
}

/// As many steps of a redrive as its rate allows now.
async fn drive(
    shared: &Shared,
    mut redrive: RedriveView,
    last_step: &mut HashMap<u128, Instant>,
) -> Result<(), EngineError> {
    let mut allowed = match redrive.rate {
        None => usize::MAX,
        Some(rate) => {
            // The first step has waited for nothing, and may release what one second allows.
            let waited = last_step.get(&redrive.redrive_id).map_or(1.0, |at| at.elapsed().as_secs_f64().min(60.0));
            (waited * rate) as usize
        }
    };
    if allowed == 0 {
        return Ok(());
    }
    last_step.insert(redrive.redrive_id, Instant::now());
    while allowed > 0 && !redrive.finished && !shared.stopping.is_cancelled() && shared.duties.is_mine(Duty::Redrive) {
        // Somebody may have paused or canceled it since the last step.
        let known = shared.store.redrive(redrive.redrive_id, &tenure_core::command::Reach::All).await?;
        if known.is_none_or(|known| known.paused || known.finished) {
            return Ok(());
        }
        let limit = allowed.min(REDRIVE_ROWS);
        let rows = shared.store.redrive_matches(&redrive, limit).await?;
        let mut cursor = rows.last().copied().unwrap_or(redrive.cursor);
        let mut finished = rows.len() < limit;
        allowed = allowed.saturating_sub(rows.len().max(1));
        if mutant!("redrive-repeated") {
            (cursor, finished, allowed) = (redrive.cursor, false, 0);
        }
        let rows = rows.into_iter().filter(|_| !mutant!("redrive-leaves-out", every 3)).collect();
        let step = Redrive { redrive_id: redrive.redrive_id, rows, cursor, finished, started_at: redrive.started_at };
        let replies = shared.work.send(vec![Command::Redrive(step)], 0).await?;
        match replies.into_iter().next() {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(EngineError::Internal),
        }
        redrive.cursor = cursor;
        redrive.finished = finished;
    }
    Ok(())
}

async fn retention(shared: Arc<Shared>) {
    let mut pacer = Pacer::new(&shared);
    while pacer.pause(PRUNE_EVERY).await {
        if !shared.duties.is_mine(Duty::Retention) {
            continue;
        }
        let mut after = Seq(0);
        loop {
            let keep = shared.retention.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match shared.store.prune(&keep, after, PRUNE_ROWS).await {
                Ok(pruned) => {
                    metrics::counter!("tenure_tasks_pruned_total").increment(pruned.removed as u64);
                    let Some(next) = pruned.next else { break };
                    after = next;
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot prune finished tasks");
                    break;
                }
            }
            tokio::time::sleep(PRUNE_PAUSE).await;
            if shared.stopping.is_cancelled() {
                return;
            }
            if !shared.duties.is_mine(Duty::Retention) {
                break;
            }
        }
    }
}

/// Audit rows, revocations and task keys that nobody needs any more.
async fn identity(shared: Arc<Shared>) {
    let mut pacer = Pacer::new(&shared);
    while pacer.pause(PRUNE_IDENTITY_EVERY).await {
        if !shared.duties.is_mine(Duty::IdentityPrune) {
            continue;
        }
        if let Err(error) = Duties::forget_gone(&*shared.store).await {
            tracing::warn!(error = error.chain(), "cannot remove control planes that are gone");
        }
        loop {
            match prune_identity(&shared).await {
                Ok(removed) if removed < PRUNE_ROWS => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot prune audit rows and old keys");
                    break;
                }
            }
            tokio::time::sleep(PRUNE_PAUSE).await;
            if shared.stopping.is_cancelled() {
                return;
            }
            if !shared.duties.is_mine(Duty::IdentityPrune) {
                break;
            }
        }
    }
}

async fn prune_identity(shared: &Shared) -> Result<usize, StoreError> {
    let now = shared.store.now().await?;
    let before = |kept: Duration| now.plus(i64::try_from(kept.as_millis()).unwrap_or(i64::MAX).saturating_neg());
    let cut = AuditCut {
        admin_before: shared.config.admin_audit_retention.map(before),
        operations_before: shared.config.audit_retention.map(before),
    };
    shared.store.prune_identity(cut, PRUNE_ROWS).await
}

#[cfg(test)]
mod tests {
    use crate::{Engine, EngineConfig};

    use super::*;

    #[tokio::test]
    async fn a_clock_that_was_moved_during_a_turn_ends_the_next_pause() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("tenure.db").display());
        let config = EngineConfig::default();
        let clock = Arc::clone(&config.clock);
        let engine = Engine::open_with(&url, config).await.unwrap();
        let mut pacer = Pacer::new(&engine.shared);
        for _ in 0..2 {
            // Nobody waits for it now.
            clock.advance(1);
            let pause = tokio::time::timeout(Duration::from_secs(60), pacer.pause(Duration::from_secs(3_600)));
            assert!(pause.await.expect("the clock was moved"));
        }
        let mut pause = std::pin::pin!(pacer.pause(Duration::from_secs(3_600)));
        assert!(futures_util::poll!(&mut pause).is_pending());
        engine.shutdown().await;
        assert!(!pause.await, "the engine stops");
    }
}
