//! Effects: what committed batches cause outside the store.
//!
//! The outbox of the store is the truth; what is kept here only makes it fast. Whoever commits an effect performs it at
//! once, from memory. If that fails, or the process dies first, the row is taken from the outbox when its time comes, by
//! whichever control plane looks first. A row that fails is tried again after a back-off of its own, so it holds up no
//! other. A destination that cannot be reached delays its own rows and counts against none of them.
//!
//! Each kind of effect has a [`Handler`] in a file of its own, and a line in [`handlers`].

mod enqueue_task;
mod jobs;
mod publish_buffer;
mod sweep;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tenure_core::command::claim::Grant;
use tenure_core::effect::EffectKind;
use tenure_store::{DueEffect, NextTry, PutOff, Settled, Store, StoreError};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::engine::Shared;
use enqueue_task::WakeUps;

pub use enqueue_task::Transports;
pub use jobs::{Room, teller, waker};
pub use sweep::{beyond, sweeper};

/// How often the outbox is looked at for rows that nobody has in hand.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// How long a row is reserved for whoever took it.
const HOLD_MS: i64 = 30_000;
const BATCH: usize = 500;
/// Fresh effects in memory. More are left to the poll.
const FRESH: usize = 20_000;
/// A row that failed is tried again after this, then after twice as long, and so on.
const BACKOFF_MS: i64 = 1_000;
const BACKOFF_MAX_MS: i64 = 300_000;
/// A destination that is away is tried this often.
const AWAY_EVERY: Duration = Duration::from_secs(1);
const LAG_EVERY: Duration = Duration::from_secs(5);

/// Performs the effects of one kind and key.
#[async_trait]
pub trait Handler: Send + Sync + std::fmt::Debug {
    fn kind(&self) -> EffectKind;

    /// Which rows of the kind: where they go.
    fn key(&self) -> &'static str;

    /// Performs effects. Returns what came of each, in order: a receipt, or why it failed. An error means that the
    /// destination cannot be reached, which says nothing about any of them.
    async fn perform(&self, effects: &[DueEffect]) -> Result<Vec<Result<Arc<str>, Failure>>, String>;

    /// Records effects that were performed, with their receipts. A kind whose rows stay overrides it.
    async fn performed(&self, store: &dyn Store, done: &[(DueEffect, Arc<str>)]) -> Result<(), StoreError> {
        store.effects_done(&done.iter().map(|(effect, _)| effect.id).collect::<Vec<_>>()).await
    }

    /// This process is about to perform an effect that it has just committed.
    fn taken_up(&self, _id: i64) {}

    /// This process will not perform effects that it took up, or could not.
    fn given_up(&self, _ids: &[i64]) {}

    /// The destination can be reached again. It may have lost what it had.
    fn is_back(&self) {}
}

/// Why an effect was not performed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It was refused, and may be refused for good.
    Refused(String),
    /// Its destination could not be reached, while others could.
    Away(String),
}

/// Effects on their way out.
#[derive(Debug, Default)]
pub struct Effects {
    lines: HashMap<(EffectKind, &'static str), Line>,
    wake_ups: Arc<WakeUps>,
}

#[derive(Debug)]
struct Line {
    handler: Arc<dyn Handler>,
    fresh: mpsc::Sender<DueEffect>,
    /// The outbox has something that is due now.
    due: Notify,
    /// The destination could not be reached when it was last tried.
    away: AtomicBool,
}

/// The ends of the lines, for the tasks that serve them.
#[derive(Debug)]
pub struct Ends {
    fresh: Vec<((EffectKind, &'static str), mpsc::Receiver<DueEffect>)>,
    settled: enqueue_task::Ends,
}

/// All handlers: one line for each kind.
fn handlers(
    transports: &Transports,
    store: &Arc<dyn Store>,
    sweep: &watch::Sender<()>,
    wake_ups: &Arc<WakeUps>,
) -> Vec<Arc<dyn Handler>> {
    let mut handlers: Vec<Arc<dyn Handler>> = Vec::new();
    handlers.extend(enqueue_task::handlers(transports, sweep, wake_ups));
    handlers.extend(publish_buffer::handlers(transports, store));
    handlers
}

impl Effects {
    /// `sweep` is told when a transport is back.
    pub fn new(transports: &Transports, store: &Arc<dyn Store>, sweep: &watch::Sender<()>) -> (Self, Ends) {
        let (wake_ups, settled) = WakeUps::new(transports);
        let wake_ups = Arc::new(wake_ups);
        let (mut lines, mut fresh) = (HashMap::new(), Vec::new());
        for handler in handlers(transports, store, sweep, &wake_ups) {
            let (sender, receiver) = mpsc::channel(FRESH);
            let name = (handler.kind(), handler.key());
            lines.insert(name, Line { handler, fresh: sender, due: Notify::new(), away: AtomicBool::new(false) });
            fresh.push((name, receiver));
        }
        (Self { lines, wake_ups }, Ends { fresh, settled })
    }

    fn line(&self, kind: EffectKind, key: &str) -> Option<&Line> {
        self.lines.iter().find(|(name, _)| **name == (kind, key)).map(|(_, line)| line)
    }

    /// Effects of a committed batch. Those without room or handler stay in the outbox.
    pub fn perform(&self, effects: Vec<DueEffect>) {
        for effect in effects {
            let Some(line) = self.line(effect.kind, &effect.key) else { continue };
            // One at a time finds out whether a destination that was away is back.
            if line.away.load(Ordering::Relaxed) && line.fresh.capacity() < line.fresh.max_capacity() {
                continue;
            }
            let id = effect.id;
            line.handler.taken_up(id);
            if line.fresh.try_send(effect).is_err() {
                line.handler.given_up(&[id]);
            }
        }
    }

    /// Wake-ups that are over. Those without room are swept up later.
    pub fn settle(&self, settled: Vec<Settled>) {
        self.wake_ups.settle(settled);
    }

    /// Rows in the outbox became due before their time.
    pub fn look(&self) {
        self.lines.values().for_each(|line| line.due.notify_one());
    }

    /// The names of wake-ups that this process has just published, or is publishing. However many are asked for, the
    /// answer comes in a moment, because leases run meanwhile.
    pub async fn names(&self, grants: impl Iterator<Item = &mut Grant>) {
        let away =
            |key: &str| self.line(EffectKind::EnqueueTask, key).is_none_or(|line| line.away.load(Ordering::Relaxed));
        self.wake_ups.names(grants, away).await;
    }
}

pub fn start(shared: &Arc<Shared>, ends: Ends, tasks: &TaskTracker) {
    for (name, fresh) in ends.fresh {
        tasks.spawn(performer(Arc::clone(shared), name, fresh));
    }
    enqueue_task::start(shared, ends.settled, tasks);
    if !shared.effects.lines.is_empty() {
        tasks.spawn(measure(Arc::clone(shared)));
    }
}

async fn performer(shared: Arc<Shared>, name: (EffectKind, &'static str), mut fresh: mpsc::Receiver<DueEffect>) {
    let Some(line) = shared.effects.lines.get(&name) else { return };
    let (store, tries) = (&*shared.store, shared.config.outbox_tries);
    let mut looked = Instant::now();
    loop {
        let away = line.away.load(Ordering::Relaxed);
        let poll = if away { AWAY_EVERY } else { POLL_EVERY };
        let mut effects = Vec::new();
        tokio::select! {
            _ = fresh.recv_many(&mut effects, BATCH) => {}
            () = tokio::time::sleep_until((looked + poll).into()) => {}
            () = line.due.notified() => looked = Instant::now().checked_sub(poll).unwrap_or(looked),
            () = shared.stopping.cancelled() => {
                while let Ok(effect) = fresh.try_recv() {
                    effects.push(effect);
                }
                line.perform(store, tries, effects).await;
                return;
            }
        }
        let mut reached = line.perform(store, tries, effects).await;
        // Rows that somebody left behind and fresh ones take turns, so that a long backlog of either does not hold up the
        // other.
        if reached && looked.elapsed() >= poll && !shared.stopping.is_cancelled() {
            match store.take_effects(name.0, name.1, BATCH, HOLD_MS).await {
                Ok(effects) => {
                    let whole = effects.len() == BATCH;
                    reached = line.perform(store, tries, effects).await;
                    if !whole {
                        looked = Instant::now();
                    }
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot read the outbox");
                    looked = Instant::now();
                }
            }
        }
        if !reached {
            looked = Instant::now();
        }
    }
}

impl Line {
    /// Performs effects and records what came of each. Returns whether the destination could be reached.
    async fn perform(&self, store: &dyn Store, tries: u32, effects: Vec<DueEffect>) -> bool {
        if effects.is_empty() {
            return true;
        }
        let handler = &self.handler;
        let answers = match handler.perform(&effects).await {
            Ok(answers) => answers,
            Err(error) => {
                self.was_away(&error);
                handler.given_up(&effects.iter().map(|effect| effect.id).collect::<Vec<_>>());
                let next = NextTry::Away { after_ms: AWAY_EVERY.as_millis() as i64 };
                let put_off = effects.iter().map(|effect| PutOff { id: effect.id, error: error.clone(), next });
                note(store.put_off_effects(&put_off.collect::<Vec<_>>()).await);
                return false;
            }
        };
        if self.away.swap(false, Ordering::Relaxed) {
            tracing::info!(
                effect.kind = handler.kind().as_str(),
                effect.key = handler.key(),
                "destination available again"
            );
            handler.is_back();
        }
        let (mut done, mut put_off) = (Vec::new(), Vec::new());
        for (effect, answer) in effects.into_iter().zip(answers) {
            match answer {
                Ok(receipt) => done.push((effect, receipt)),
                Err(Failure::Refused(error)) => put_off.push(refused(&effect, tries, error)),
                Err(Failure::Away(error)) => {
                    put_off.push(PutOff { id: effect.id, error, next: NextTry::Away { after_ms: BACKOFF_MS } });
                }
            }
        }
        if !done.is_empty() {
            // If this fails they are performed again; the receiver can tell by the id.
            note(handler.performed(store, &done).await);
        }
        if !put_off.is_empty() {
            handler.given_up(&put_off.iter().map(|row| row.id).collect::<Vec<_>>());
            note(store.put_off_effects(&put_off).await);
        }
        true
    }

    fn was_away(&self, error: &str) {
        let (kind, key) = (self.handler.kind().as_str(), self.handler.key());
        metrics::counter!("tenure_transport_failures_total", "transport" => key).increment(1);
        if !self.away.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                effect.kind = kind,
                effect.key = key,
                error,
                "destination unavailable: effects stay in the outbox"
            );
        }
    }
}

/// What to do with an effect that was refused while others were performed.
fn refused(effect: &DueEffect, tries: u32, error: String) -> PutOff {
    let next = if effect.tries + 1 >= tries {
        tracing::error!(
            outbox.id = effect.id, effect.kind = effect.kind.as_str(), effect.key = %effect.key,
            queue.name = effect.queue.as_deref(), error,
            "effect failed for good: see `tenure outbox list --state failed`"
        );
        metrics::counter!("tenure_outbox_failed_total", "transport" => effect.key.to_string()).increment(1);
        NextTry::Never
    } else {
        NextTry::Refused { after_ms: (BACKOFF_MS << effect.tries.min(20)).min(BACKOFF_MAX_MS) }
    };
    PutOff { id: effect.id, error, next }
}

fn note(outcome: Result<(), StoreError>) {
    if let Err(error) = outcome {
        tracing::warn!(error = error.chain(), "cannot record the outcome of effects");
    }
}

async fn measure(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LAG_EVERY) => {}
            () = shared.stopping.cancelled() => return,
        }
        for (kind, key) in shared.effects.lines.keys().copied() {
            let Ok(lag) = shared.store.outbox_lag(kind, key).await else { continue };
            metrics::gauge!("tenure_outbox_waiting", "transport" => key).set(lag.waiting as f64);
            metrics::gauge!("tenure_outbox_failed", "transport" => key).set(lag.failed as f64);
            metrics::gauge!("tenure_outbox_oldest_seconds", "transport" => key).set(lag.oldest_ms as f64 / 1000.0);
        }
    }
}

#[cfg(test)]
mod tests;
