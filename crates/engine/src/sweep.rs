//! Keeps what transports hold in line with the store.
//!
//! A transport may lose messages, hold some that stand for nothing any more, or hold some that a consumer took and never
//! claimed. A sweep finds all three. Tasks that are claimed from the control plane need none of this; workers that read
//! the transport themselves do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::limits::LEASE_TTL_MS_DEFAULT;
use tenure_store::ExternalQueue;
use tenure_transport::{Delivery, Upkeep, WakeUp};

use crate::duty::Duty;
use crate::engine::Shared;
use crate::error::EngineError;

const TICK: Duration = Duration::from_secs(1);
/// After a change other control planes may still write for the old one for a moment.
const AFTER_CHANGE: Duration = Duration::from_secs(2);
const ROWS: usize = 1_000;
const FEED_ROWS: usize = 10_000;
const PEEK: usize = 500;
/// How far into a queue one sweep looks for what stands for nothing.
const PEEKS: usize = 100;
/// A message is missed only once its name was noted for so long.
const SETTLED_MS: i64 = 1_000;
/// The same where nobody can tell which message is lost.
const UNSURE_MS: i64 = 5_000;
/// There, every message is published again after so long.
const TOO_OLD_MS: i64 = 15 * 60_000;
/// Every so many sweeps the messages are compared one by one, even if their number is right.
const CLOSE_LOOK: u32 = 10;

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] EngineError),
    #[error(transparent)]
    Transport(#[from] tenure_transport::TransportError),
}

impl From<tenure_store::StoreError> for Trouble {
    fn from(error: tenure_store::StoreError) -> Self {
        Self::Store(error.into())
    }
}

pub async fn sweeper(shared: Arc<Shared>) {
    let mut sweeps = 0_u32;
    let mut next = Instant::now();
    let mut taken_over: HashMap<Arc<str>, Instant> = HashMap::new();
    let mut again = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = shared.duties.gained(Duty::WakeUps) => {}
            () = shared.sweep.notified() => {
                next = Instant::now();
                again = Some(next + AFTER_CHANGE);
            }
            () = shared.stopping.cancelled() => return,
        }
        if !shared.duties.is_mine(Duty::WakeUps) {
            // Whoever takes it up does not know how far the last one came.
            next = Instant::now();
            continue;
        }
        if again.is_some_and(|at| Instant::now() >= at) {
            (again, next) = (None, Instant::now());
        }
        if Instant::now() >= next {
            next = Instant::now() + shared.config.sweep_every;
            sweeps = sweeps.wrapping_add(1);
            if let Err(error) = sweep(&shared, sweeps.is_multiple_of(CLOSE_LOOK)).await {
                tracing::warn!(%error, "wake-ups could not all be swept");
            }
        }
        if let Err(error) = take_over(&shared, &mut taken_over).await {
            tracing::debug!(%error, "wake-ups could not all be taken over");
        }
    }
}

/// One sweep over all queues. A queue that cannot be swept now does not keep the others from it.
async fn sweep(shared: &Shared, close_look: bool) -> Result<(), Trouble> {
    loop {
        let gone = shared.store.drop_orphans(ROWS).await?;
        let more = gone.len() == ROWS;
        shared.outbox.settle(gone);
        if !more {
            break;
        }
    }
    let mut fed = 0;
    loop {
        let now = shared.store.feed_outbox(FEED_ROWS).await?;
        fed += now;
        if now < FEED_ROWS as u64 {
            break;
        }
    }
    for queue in shared.store.external_queues().await? {
        let Some(service) = shared.config.transports.get(queue.transport) else { continue };
        match tidy(shared, service, &queue, close_look).await {
            Ok(again) => fed += again,
            Err(error) => tracing::warn!(queue = %queue.name, %error, "the wake-ups of a queue could not be swept"),
        }
    }
    if fed > 0 {
        tracing::info!(wakeups = fed, "wake-ups that were missing are published");
        metrics::counter!("tenure_wakeups_refed_total").increment(fed);
        shared.outbox.look();
    }
    Ok(())
}

/// Brings one queue in line. Gives how many wake-ups will be published again.
async fn tidy(
    shared: &Shared,
    service: &Arc<dyn Upkeep>,
    queue: &ExternalQueue,
    close_look: bool,
) -> Result<u64, Trouble> {
    service.prepare(&queue.name).await?;
    let published = shared.store.count_published(queue.id).await?;
    let depth = service.depth(&queue.name).await?;
    let mut again = 0;
    if depth < published || close_look {
        // Where messages can only be counted, and that not exactly, a few less mean nothing.
        again = publish_lost(shared, service, queue, depth * 10 < published * 9).await?;
    }
    if depth > published || close_look {
        remove_stale(shared, service, queue).await?;
    }
    Ok(again)
}

async fn publish_lost(
    shared: &Shared,
    service: &Arc<dyn Upkeep>,
    queue: &ExternalQueue,
    too_few: bool,
) -> Result<u64, Trouble> {
    let (mut after, mut again) = (i64::MIN, 0);
    let mut age_ms = SETTLED_MS;
    loop {
        let rows = shared.store.published_outbox(queue.id, age_ms, after, ROWS).await?;
        let Some(last) = rows.last() else { return Ok(again) };
        after = last.message;
        let names: Vec<_> = rows.iter().map(|wake| Arc::clone(&wake.receipt)).collect();
        let lost: Vec<i64> = match service.lost(&queue.name, &names).await? {
            Some(lost) => {
                lost.into_iter().filter_map(|at| rows.get(at)).filter(|w| w.ready).map(|w| w.message).collect()
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
            again += shared.store.republish(&lost).await?;
        }
    }
}

/// Removes messages that stand for nothing any more.
async fn remove_stale(shared: &Shared, service: &Arc<dyn Upkeep>, queue: &ExternalQueue) -> Result<(), Trouble> {
    let mut after: Option<Arc<str>> = None;
    for _ in 0..PEEKS {
        let found = service.peek(&queue.name, after.as_deref(), PEEK).await?;
        let Some(last) = found.last() else { return Ok(()) };
        after = Some(Arc::clone(&last.message_id));
        let stale = stale(shared, &found).await?;
        if !stale.is_empty() {
            service.remove(&queue.name, &stale).await?;
        }
    }
    Ok(())
}

async fn stale(shared: &Shared, found: &[Delivery]) -> Result<Vec<Arc<str>>, Trouble> {
    let messages: Vec<i64> = found.iter().filter_map(|delivery| delivery.enqueue).collect();
    let live = shared.store.live_wakes(&messages).await?;
    let stale = found.iter().filter(|delivery| {
        let wake = delivery.enqueue.and_then(|message| live.get(&message));
        // A wake-up without a name is being published now.
        wake.is_none_or(|wake| wake.receipt.as_ref().is_some_and(|name| *name != delivery.message_id))
    });
    Ok(stale.map(|delivery| Arc::clone(&delivery.message_id)).collect())
}

/// Settles what a consumer took and then was not heard of for the length of a lease.
async fn take_over(shared: &Shared, taken_over: &mut HashMap<Arc<str>, Instant>) -> Result<(), Trouble> {
    if shared.config.transports.configured().next().is_none() {
        return Ok(());
    }
    let queues = shared.store.external_queues().await?;
    taken_over.retain(|name, _| queues.iter().any(|queue| queue.name == *name));
    for queue in queues {
        let Some(service) = shared.config.transports.get(queue.transport) else { continue };
        let ttl = queue.lease_ttl_ms.unwrap_or(LEASE_TTL_MS_DEFAULT).unsigned_abs();
        let ttl = Duration::from_millis(ttl);
        let due = taken_over.get(&queue.name).is_none_or(|at| at.elapsed() >= (ttl / 4).max(TICK));
        if !due {
            continue;
        }
        taken_over.insert(Arc::clone(&queue.name), Instant::now());
        loop {
            let deliveries = service.take_over(&queue.name, ttl, ROWS).await?;
            let whole = deliveries.len() == ROWS;
            settle_taken(shared, service, &queue, deliveries).await?;
            if !whole {
                break;
            }
        }
    }
    Ok(())
}

/// Final or enqueued again since: removed. Ready: published again. Held: left to its lease.
async fn settle_taken(
    shared: &Shared,
    service: &Arc<dyn Upkeep>,
    queue: &ExternalQueue,
    deliveries: Vec<Delivery>,
) -> Result<(), Trouble> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let mut over = stale(shared, &deliveries).await?;
    let messages: Vec<i64> = deliveries.iter().filter_map(|delivery| delivery.enqueue).collect();
    let live = shared.store.live_wakes(&messages).await?;
    for delivery in &deliveries {
        let Some(message) = delivery.enqueue.filter(|_| !over.contains(&delivery.message_id)) else { continue };
        if !live.get(&message).is_some_and(|wake| wake.ready) {
            continue;
        }
        let wake = WakeUp { queue: Arc::clone(&queue.name), task: Arc::clone(&delivery.task), enqueue: message };
        if let Some(Ok(name)) = service.publish(&[wake]).await?.pop() {
            // Now there are two; the one that counts is noted before the other goes.
            let gone = shared.store.outbox_published(&[(message, Arc::clone(&name))]).await?;
            over.push(if gone.is_empty() { Arc::clone(&delivery.message_id) } else { name });
            metrics::counter!("tenure_wakeups_taken_over_total", "transport" => service.name()).increment(1);
        }
    }
    if !over.is_empty() {
        service.remove(&queue.name, &over).await?;
    }
    Ok(())
}
