//! Keeps what a transport holds in line with the store.
//!
//! A transport may lose messages, hold some that stand for nothing any more, or hold some that a consumer took and never
//! claimed. A sweep finds all three. Tasks that are claimed from the control plane need none of this; workers that read
//! the transport themselves do.
//!
//! In the usual case a sweep counts: as many rows in the outbox as tasks that wait or are held, as many messages in the
//! transport as published rows. Only where the numbers differ does it look at them one by one, and now and then all the
//! same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::Seq;
use tenure_core::limits::LEASE_TTL_MS_DEFAULT;
use tenure_core::mutant;
use tenure_core::queue::{QueueId, Transport};
use tenure_store::{ExternalQueue, LiveWake, StoreError, WakeCounts};
use tenure_transport::{Delivery, TransportError, Upkeep, WakeUp};

use crate::duty::Duty;
use crate::engine::Shared;
use crate::error::EngineError;

const TICK: Duration = Duration::from_secs(1);
/// After a change other control planes may still write for the old one for a moment.
const AFTER_CHANGE: Duration = Duration::from_secs(2);
/// However often somebody asks for it.
const AT_MOST_EVERY: Duration = Duration::from_millis(500);
const ROWS: usize = 1_000;
const FEED_ROWS: usize = 10_000;
const PEEK: usize = 500;
/// How far into a queue one sweep looks for what stands for nothing. The next one goes on from there.
const PEEKS: usize = 100;
/// A message is missed only once its name was noted for so long.
const SETTLED_MS: i64 = 1_000;
/// The same where nobody can tell which message is lost.
const UNSURE_MS: i64 = 5_000;
/// There, every message is published again after so long.
const TOO_OLD_MS: i64 = 15 * 60_000;
/// Every so many sweeps all is compared one by one, even if the numbers are right.
const CLOSE_LOOK: u32 = 10;

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] EngineError),
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

/// The duty of whoever keeps this transport in line.
pub(super) fn duty(transport: Transport) -> Option<Duty> {
    match transport {
        Transport::Embedded => None,
        Transport::Redis => Some(Duty::RedisWakeUps),
        Transport::Sqs => Some(Duty::SqsWakeUps),
    }
}

/// Duties that a control plane without their transport must leave to others.
pub fn beyond(transports: &super::Transports) -> Vec<Duty> {
    let missing = Transport::ALL.into_iter().filter(|transport| transports.get(*transport).is_none());
    missing.filter_map(duty).collect()
}

struct Sweeper<'a> {
    shared: &'a Shared,
    transport: Transport,
    service: &'a Arc<dyn Upkeep>,
    /// When each queue was last looked at for what its consumers left.
    taken_over: HashMap<Arc<str>, Instant>,
    /// How far each queue was looked through for what stands for nothing.
    peeked: HashMap<Arc<str>, Arc<str>>,
}

pub async fn sweeper(shared: Arc<Shared>, transport: Transport) {
    let (Some(service), Some(duty)) = (shared.config.transports.get(transport), duty(transport)) else { return };
    let stopping = shared.stopping.clone();
    let (taken_over, peeked) = (HashMap::new(), HashMap::new());
    let sweeper = Sweeper { shared: &shared, transport, service, taken_over, peeked };
    // All of it can be cut off anywhere: the next one finds what is left to do.
    stopping.run_until_cancelled(sweeper.run(duty)).await;
}

impl Sweeper<'_> {
    async fn run(mut self, duty: Duty) {
        let shared = self.shared;
        let mut asked = shared.sweep.subscribe();
        let (mut sweeps, mut next, mut last) = (0_u32, Instant::now(), None::<Instant>);
        let (mut close, mut again) = (true, None);
        loop {
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = shared.duties.gained(duty) => {}
                Ok(()) = asked.changed() => {
                    (next, close) = (Instant::now(), true);
                    again = Some(next + AFTER_CHANGE);
                }
            }
            if !shared.duties.is_mine(duty) {
                // Whoever takes it up does not know how far the last one came.
                (next, close) = (Instant::now(), true);
                continue;
            }
            if again.is_some_and(|at| Instant::now() >= at) {
                (again, next, close) = (None, Instant::now(), true);
            }
            if Instant::now() >= next && last.is_none_or(|last| last.elapsed() >= AT_MOST_EVERY) {
                sweeps = sweeps.wrapping_add(1);
                if let Err(error) = self.sweep(close || sweeps.is_multiple_of(CLOSE_LOOK)).await {
                    tracing::warn!(%error, transport.name = self.service.name(), "cannot sweep all wake-ups");
                }
                close = false;
                last = Some(Instant::now());
                next = Instant::now() + shared.config.sweep_every;
            }
            if let Err(error) = self.take_over().await {
                tracing::debug!(%error, transport.name = self.service.name(), "cannot take over all wake-ups");
            }
        }
    }

    /// One sweep over all queues. What is wrong with one queue does not keep the others from it; a transport that is
    /// away does.
    async fn sweep(&mut self, close_look: bool) -> Result<(), Trouble> {
        let mut published = 0;
        for counts in self.shared.store.outbox_counts(self.transport).await? {
            match self.tidy(&counts, close_look).await {
                Ok(again) => published += again,
                Err(Trouble::Transport(error @ TransportError::Refused { .. })) => {
                    let queue = &counts.queue.name;
                    tracing::warn!(queue.name = %queue, %error, "cannot sweep the wake-ups of a queue");
                }
                Err(error) => return Err(error),
            }
        }
        if published > 0 {
            tracing::info!(count = published, transport.name = self.service.name(), "published missing wake-ups");
            metrics::counter!("tenure_wakeups_refed_total", "transport" => self.service.name()).increment(published);
            self.shared.effects.look();
        }
        Ok(())
    }

    /// Brings one queue in line. Gives how many wake-ups will be published for that.
    async fn tidy(&mut self, counts: &WakeCounts, close_look: bool) -> Result<u64, Trouble> {
        let queue = &counts.queue;
        let mut published = 0;
        if !counts.current || counts.rows > counts.ready + counts.running || close_look {
            self.drop_unneeded(queue).await?;
        }
        if !counts.current {
            return Ok(0);
        }
        if let Some(job) = &counts.job {
            if (counts.rows < counts.ready && !job.held) || close_look {
                published += feed(self.shared, queue.id).await?;
            }
            return Ok(published);
        }
        if counts.rows < counts.ready || close_look {
            published += feed(self.shared, queue.id).await?;
        }
        self.service.prepare(&queue.name).await?;
        let depth = self.service.depth(&queue.name).await?;
        if depth < counts.published || close_look {
            // Where messages can only be counted, and that not exactly, a few less mean nothing.
            published += self.publish_lost(queue, depth * 10 < counts.published * 9).await?;
        }
        if depth > counts.published || close_look {
            self.remove_stale(queue).await?;
        }
        Ok(published)
    }

    /// Removes rows that no task needs, and rows of a transport that their queue no longer has. First the message, then
    /// the row: the row is all that tells of the message.
    async fn drop_unneeded(&self, queue: &ExternalQueue) -> Result<(), Trouble> {
        let (store, mut after) = (&self.shared.store, i64::MIN);
        loop {
            let page = store.check_outbox(queue.id, self.transport, after, ROWS).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.message;
            let unneeded: Vec<_> = page.into_iter().filter(|wake| !wake.needed).collect();
            let names: Vec<Arc<str>> = unneeded.iter().filter_map(|wake| wake.receipt.clone()).collect();
            if !names.is_empty() {
                self.service.remove(&queue.name, &names).await?;
            }
            if !unneeded.is_empty() {
                store.effects_done(&unneeded.iter().map(|wake| wake.message).collect::<Vec<_>>()).await?;
            }
        }
    }

    async fn publish_lost(&self, queue: &ExternalQueue, too_few: bool) -> Result<u64, Trouble> {
        if mutant!("wake-up-not-repeated") {
            return Ok(0);
        }
        let (store, mut after, mut again) = (&self.shared.store, i64::MIN, 0);
        let mut age_ms = SETTLED_MS;
        loop {
            let rows = store.published_outbox(queue.id, age_ms, after, ROWS).await?;
            let Some(last) = rows.last() else { return Ok(again) };
            after = last.message;
            let names: Vec<_> = rows.iter().map(|wake| Arc::clone(&wake.receipt)).collect();
            let lost: Vec<i64> = match self.service.lost(&queue.name, &names).await? {
                Some(lost) => {
                    let lost = lost.into_iter().filter_map(|at| rows.get(at)).filter(|wake| wake.ready);
                    lost.map(|wake| wake.message).collect()
                }
                // Nobody can tell which: all that wait, if there are too few, or those that have waited for long.
                None => {
                    let wanted = if too_few { UNSURE_MS } else { TOO_OLD_MS };
                    if age_ms < wanted {
                        (age_ms, after) = (wanted, i64::MIN);
                        continue;
                    }
                    rows.iter().filter(|wake| wake.ready).map(|wake| wake.message).collect()
                }
            };
            if !lost.is_empty() {
                again += store.republish(&lost).await?;
            }
        }
    }

    /// Removes messages that stand for nothing any more.
    async fn remove_stale(&mut self, queue: &ExternalQueue) -> Result<(), Trouble> {
        for _ in 0..PEEKS {
            let after = self.peeked.get(&queue.name).map(|after| &**after);
            let found = self.service.peek(&queue.name, after, PEEK).await?;
            let Some(last) = found.last() else {
                self.peeked.remove(&queue.name);
                return Ok(());
            };
            self.peeked.insert(Arc::clone(&queue.name), Arc::clone(&last.message_id));
            let stale = self.judge(queue, &found).await?.stale;
            if !stale.is_empty() {
                self.service.remove(&queue.name, &stale).await?;
            }
        }
        Ok(())
    }

    /// What messages are worth.
    async fn judge<'d>(&self, queue: &ExternalQueue, found: &'d [Delivery]) -> Result<Judged<'d>, Trouble> {
        let store = &self.shared.store;
        let messages: Vec<i64> = found.iter().filter_map(|delivery| delivery.enqueue).collect();
        let live: HashMap<i64, LiveWake> = store.live_wakes(&messages).await?;
        let mut judged = Judged::default();
        for delivery in found {
            let wake = delivery.enqueue.and_then(|message| Some((message, live.get(&message)?)));
            let Some((message, wake)) = wake else {
                judged.stale.push(Arc::clone(&delivery.message_id));
                continue;
            };
            match &wake.receipt {
                // It is being published now.
                None => {}
                Some(noted) if *noted == delivery.message_id => {
                    judged.ready.extend(wake.ready.then_some((message, delivery)));
                }
                // Another message stands for the task, or was put back under another name.
                Some(noted) => {
                    let lost = self.service.lost(&queue.name, std::slice::from_ref(noted)).await?;
                    let is_lost = lost.is_some_and(|lost| !lost.is_empty());
                    if is_lost {
                        store.outbox_published(&[(message, Arc::clone(&delivery.message_id))]).await?;
                        judged.ready.extend(wake.ready.then_some((message, delivery)));
                    } else {
                        judged.stale.push(Arc::clone(&delivery.message_id));
                    }
                }
            }
        }
        Ok(judged)
    }

    /// Settles what a consumer took and then was not heard of for the length of a lease.
    async fn take_over(&mut self) -> Result<(), Trouble> {
        let queues = self.shared.store.external_queues().await?;
        self.taken_over.retain(|name, _| queues.iter().any(|queue| queue.name == *name));
        for queue in queues.into_iter().filter(|queue| queue.transport == self.transport) {
            let ttl = queue.lease_ttl_ms.unwrap_or(LEASE_TTL_MS_DEFAULT).unsigned_abs();
            let ttl = Duration::from_millis(ttl);
            let due = self.taken_over.get(&queue.name).is_none_or(|at| at.elapsed() >= (ttl / 4).max(TICK));
            if !due {
                continue;
            }
            self.taken_over.insert(Arc::clone(&queue.name), Instant::now());
            loop {
                let deliveries = self.service.take_over(&queue.name, ttl, ROWS).await?;
                self.settle_taken(&queue, &deliveries).await?;
                if deliveries.len() < ROWS {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Final or enqueued again since: removed. Ready: published again. Held: left to its lease.
    async fn settle_taken(&self, queue: &ExternalQueue, deliveries: &[Delivery]) -> Result<(), Trouble> {
        if deliveries.is_empty() {
            return Ok(());
        }
        let Judged { stale: mut over, ready } = self.judge(queue, deliveries).await?;
        for (message, delivery) in ready {
            let wake = WakeUp { queue: Arc::clone(&queue.name), task: Arc::clone(&delivery.task), enqueue: message };
            if let Some(Ok(name)) = self.service.publish(&[wake]).await?.pop() {
                // Now there are two; the one that counts is noted before the other goes.
                let gone = self.shared.store.outbox_published(&[(message, Arc::clone(&name))]).await?;
                over.push(if gone.is_empty() { Arc::clone(&delivery.message_id) } else { name });
                metrics::counter!("tenure_wakeups_taken_over_total", "transport" => self.service.name()).increment(1);
            }
        }
        if !over.is_empty() {
            self.service.remove(&queue.name, &over).await?;
        }
        Ok(())
    }
}

/// Gives wake-ups to the ready tasks of a queue that have none. Returns how many.
pub(super) async fn feed(shared: &Shared, queue: QueueId) -> Result<u64, StoreError> {
    let (mut after, mut fed) = (Seq(0), 0);
    loop {
        let step = shared.store.feed_outbox(queue, after, FEED_ROWS).await?;
        fed += step.fed;
        let Some(next) = step.next else { return Ok(fed) };
        after = next;
    }
}

/// Messages that were looked at.
#[derive(Debug, Default)]
struct Judged<'d> {
    /// They stand for nothing.
    stale: Vec<Arc<str>>,
    /// They stand for tasks that wait.
    ready: Vec<(i64, &'d Delivery)>,
}
