//! Wake-ups that leave the process: published after their commit, settled when they are over.
//!
//! The outbox of the store is the truth; what is kept here only makes it fast. Whoever commits a wake-up publishes it at
//! once, from memory. If that fails, or the process dies first, the row is taken from the outbox when its time comes, by
//! whichever control plane looks first.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::command::claim::Grant;
use tenure_core::queue::Transport;
use tenure_store::{NextTry, OutboxItem, PutOff, Settled, StoreError};
use tenure_transport::{Refused, TransportError, Upkeep, WakeUp};
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;

use crate::engine::Shared;

/// How often the outbox is looked at for what nobody has in hand.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// How long a row is in the hand of whoever took it.
const HOLD_MS: i64 = 30_000;
const BATCH: usize = 500;
/// Fresh wake-ups in memory. More are left to the poll.
const FRESH: usize = 20_000;
const SETTLED: usize = 20_000;
const SETTLE_BATCH: usize = 1_000;
/// A row that was refused is tried again after this, then after twice as long, and so on.
const BACKOFF_MS: i64 = 1_000;
const BACKOFF_MAX_MS: i64 = 300_000;
/// While a transport is away it is tried this often.
const AWAY_EVERY: Duration = Duration::from_secs(1);
/// How long an answer to a claim waits for the name of a message that is being published.
const NAME_WAIT: Duration = Duration::from_millis(250);
/// Names that are remembered until they are in the store for sure.
const NAMES: usize = 50_000;
const LAG_EVERY: Duration = Duration::from_secs(5);

/// The transports of a control plane, as far as they are configured.
#[derive(Debug, Clone, Default)]
pub struct Transports {
    pub redis: Option<Arc<dyn Upkeep>>,
    pub sqs: Option<Arc<dyn Upkeep>>,
}

impl Transports {
    pub fn get(&self, transport: Transport) -> Option<&Arc<dyn Upkeep>> {
        match transport {
            Transport::Embedded => None,
            Transport::Redis => self.redis.as_ref(),
            Transport::Sqs => self.sqs.as_ref(),
        }
    }

    pub fn configured(&self) -> impl Iterator<Item = (Transport, &Arc<dyn Upkeep>)> {
        Transport::ALL.into_iter().filter_map(|transport| Some((transport, self.get(transport)?)))
    }
}

/// Wake-ups on their way out.
#[derive(Debug, Default)]
pub struct Outbox {
    lines: HashMap<Transport, Line>,
    names: Mutex<Names>,
    /// A name was learned.
    named: Notify,
}

#[derive(Debug)]
struct Line {
    fresh: mpsc::Sender<OutboxItem>,
    settled: mpsc::Sender<Settled>,
    /// The outbox has something that is due now.
    due: Notify,
    /// It could not be reached when it was last tried.
    away: AtomicBool,
    /// Queues whose consumers have what they need.
    prepared: Mutex<HashSet<Arc<str>>>,
}

impl Line {
    fn new(fresh: mpsc::Sender<OutboxItem>, settled: mpsc::Sender<Settled>) -> Self {
        let (due, away, prepared) = (Notify::new(), AtomicBool::new(false), Mutex::default());
        Self { fresh, settled, due, away, prepared }
    }

    /// Those who wait for the first message of a queue need something to wait at. Should this fail, the sweep does it.
    async fn prepare(&self, service: &Arc<dyn Upkeep>, items: &[OutboxItem]) {
        let unprepared: HashSet<Arc<str>> = {
            let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            items.iter().map(|item| &item.queue).filter(|queue| !prepared.contains(*queue)).cloned().collect()
        };
        for queue in unprepared {
            match service.prepare(&queue).await {
                Ok(()) => {
                    self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(queue);
                }
                Err(TransportError::Unreachable { .. }) => return,
                Err(TransportError::Refused { .. }) => {}
            }
        }
    }
}

/// What is being published, and under which names what was published just now.
#[derive(Debug, Default)]
struct Names {
    by_message: HashMap<i64, Option<Arc<str>>>,
    order: VecDeque<i64>,
}

impl Names {
    fn put(&mut self, message: i64, name: Option<Arc<str>>) {
        if self.by_message.insert(message, name).is_none() {
            self.order.push_back(message);
        }
        while self.order.len() > NAMES {
            if let Some(oldest) = self.order.pop_front() {
                self.by_message.remove(&oldest);
            }
        }
    }
}

/// The ends of a line that its tasks read from.
#[derive(Debug)]
pub struct Ends {
    transport: Transport,
    fresh: mpsc::Receiver<OutboxItem>,
    settled: mpsc::Receiver<Settled>,
}

impl Outbox {
    pub fn new(transports: &Transports) -> (Self, Vec<Ends>) {
        let (mut lines, mut ends) = (HashMap::new(), Vec::new());
        for (transport, _) in transports.configured() {
            let (fresh, fresh_end) = mpsc::channel(FRESH);
            let (settled, settled_end) = mpsc::channel(SETTLED);
            lines.insert(transport, Line::new(fresh, settled));
            ends.push(Ends { transport, fresh: fresh_end, settled: settled_end });
        }
        (Self { lines, ..Self::default() }, ends)
    }

    /// Wake-ups of a committed batch. What finds no room, or no transport, stays in the outbox.
    pub fn publish(&self, items: Vec<OutboxItem>) {
        for item in items {
            let Some(line) = self.lines.get(&item.transport) else { continue };
            // One at a time finds out whether a transport that was away is back.
            if line.away.load(Ordering::Relaxed) && line.fresh.capacity() < line.fresh.max_capacity() {
                continue;
            }
            let message = item.message;
            self.lock().put(message, None);
            if line.fresh.try_send(item).is_err() {
                self.forget(&[message]);
            }
        }
    }

    /// Wake-ups that are over. What finds no room is swept up later.
    pub fn settle(&self, settled: Vec<Settled>) {
        for settled in settled {
            if let Some(line) = self.lines.get(&settled.transport)
                && settled.receipt.is_some()
            {
                let _ = line.settled.try_send(settled);
            }
        }
    }

    /// Something in the outbox became due before its time.
    pub fn look(&self) {
        self.lines.values().for_each(|line| line.due.notify_one());
    }

    /// How wake-ups are called that this process has just published, or is publishing. However many are asked for, the
    /// answer comes in a moment: leases run meanwhile.
    pub async fn names(&self, grants: impl Iterator<Item = &mut Grant>) {
        let deadline = tokio::time::Instant::now() + NAME_WAIT;
        for grant in grants {
            let away = self.lines.get(&grant.transport).is_none_or(|line| line.away.load(Ordering::Relaxed));
            grant.receipt = self.name(grant.message, (!away).then_some(deadline)).await;
        }
    }

    async fn name(&self, message: i64, deadline: Option<tokio::time::Instant>) -> Option<Arc<str>> {
        loop {
            let named = self.named.notified();
            match self.lock().by_message.get(&message) {
                None => return None,
                Some(Some(name)) => return Some(Arc::clone(name)),
                Some(None) => {}
            }
            tokio::time::timeout_at(deadline?, named).await.ok()?;
        }
    }

    fn learn(&self, published: &[(i64, Arc<str>)]) {
        let mut names = self.lock();
        for (message, name) in published {
            names.put(*message, Some(Arc::clone(name)));
        }
        drop(names);
        self.named.notify_waiters();
    }

    fn forget(&self, messages: &[i64]) {
        let mut names = self.lock();
        for message in messages {
            // Its place in the order is passed when its turn comes.
            names.by_message.remove(message);
        }
        drop(names);
        self.named.notify_waiters();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn start(shared: &Arc<Shared>, ends: Vec<Ends>, tasks: &TaskTracker) {
    for Ends { transport, fresh, settled } in ends {
        tasks.spawn(publisher(Arc::clone(shared), transport, fresh));
        tasks.spawn(settler(Arc::clone(shared), transport, settled));
    }
    if shared.config.transports.configured().next().is_some() {
        tasks.spawn(measure(Arc::clone(shared)));
    }
}

async fn publisher(shared: Arc<Shared>, transport: Transport, mut fresh: mpsc::Receiver<OutboxItem>) {
    let Some(line) = shared.outbox.lines.get(&transport) else { return };
    let Some(service) = shared.config.transports.get(transport) else { return };
    let mut looked = Instant::now();
    loop {
        let away = line.away.load(Ordering::Relaxed);
        let poll = if away { AWAY_EVERY } else { POLL_EVERY };
        let mut items = Vec::new();
        tokio::select! {
            _ = fresh.recv_many(&mut items, BATCH) => {}
            () = tokio::time::sleep_until((looked + poll).into()) => {}
            () = line.due.notified() => looked = Instant::now().checked_sub(poll).unwrap_or(looked),
            () = shared.stopping.cancelled() => {
                while let Ok(item) = fresh.try_recv() {
                    items.push(item);
                }
                publish(&shared, line, service, items).await;
                return;
            }
        }
        let mut reached = publish(&shared, line, service, items).await;
        // What somebody left behind, and fresh ones, take turns: a long backlog of either does not hold up the other.
        if reached && looked.elapsed() >= poll && !shared.stopping.is_cancelled() {
            match shared.store.take_outbox(transport, BATCH, HOLD_MS).await {
                Ok(items) => {
                    let whole = items.len() == BATCH;
                    reached = publish(&shared, line, service, items).await;
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

/// Publishes, and notes what came of it. Gives whether the transport could be reached.
async fn publish(shared: &Shared, line: &Line, service: &Arc<dyn Upkeep>, items: Vec<OutboxItem>) -> bool {
    if items.is_empty() {
        return true;
    }
    let wakes: Vec<WakeUp> = items
        .iter()
        .map(|item| WakeUp {
            queue: Arc::clone(&item.queue),
            task: item.task.to_string().into(),
            enqueue: item.message,
        })
        .collect();
    line.prepare(service, &items).await;
    let answers = match service.publish(&wakes).await {
        Ok(answers) => answers,
        Err(error) => {
            was_away(line, service, &error);
            shared.outbox.forget(&items.iter().map(|item| item.message).collect::<Vec<_>>());
            let next = NextTry::Away { after_ms: i64::try_from(AWAY_EVERY.as_millis()).unwrap_or(0) };
            let error = error.to_string();
            let put_off = items.iter().map(|item| PutOff { message: item.message, error: error.clone(), next });
            note(shared.store.put_off_outbox(&put_off.collect::<Vec<_>>()).await);
            return false;
        }
    };
    if line.away.swap(false, Ordering::Relaxed) {
        tracing::info!(transport.name = service.name(), "transport available again: publishing wake-ups");
        // It may have lost what it had.
        line.prepared.lock().unwrap_or_else(PoisonError::into_inner).clear();
        shared.sweep.send_replace(());
    }
    let (mut published, mut refused) = (Vec::new(), Vec::new());
    for (item, answer) in items.iter().zip(answers) {
        match answer {
            Ok(name) => published.push((item.message, name)),
            Err(Refused::ForItself(why)) => refused.push(put_off(shared, item, why)),
            Err(Refused::Away(error)) => {
                let next = NextTry::Away { after_ms: BACKOFF_MS };
                refused.push(PutOff { message: item.message, error, next });
            }
        }
    }
    metrics::counter!("tenure_wakeups_published_total", "transport" => service.name())
        .increment(published.len() as u64);
    shared.outbox.learn(&published);
    if !published.is_empty() {
        match shared.store.outbox_published(&published).await {
            Ok(gone) => withdraw(service, &items, &published, &gone).await,
            // They will be published again; whoever meets the second one finds out that it is one.
            Err(error) => note(Err(error)),
        }
    }
    if !refused.is_empty() {
        shared.outbox.forget(&refused.iter().map(|row| row.message).collect::<Vec<_>>());
        note(shared.store.put_off_outbox(&refused).await);
    }
    true
}

fn was_away(line: &Line, service: &Arc<dyn Upkeep>, error: &TransportError) {
    metrics::counter!("tenure_transport_failures_total", "transport" => service.name()).increment(1);
    if !line.away.swap(true, Ordering::Relaxed) {
        tracing::warn!(transport.name = service.name(), %error, "transport unavailable: wake-ups stay in the outbox");
    }
}

/// What to do with a row that was refused while others were taken.
fn put_off(shared: &Shared, item: &OutboxItem, error: String) -> PutOff {
    let next = if item.tries + 1 >= shared.config.outbox_tries {
        tracing::error!(
            outbox.id = item.message, queue.name = %item.queue, transport.name = item.transport.as_str(), error,
            "wake-up failed for good: see `tenure outbox list --state failed`"
        );
        metrics::counter!("tenure_outbox_failed_total", "transport" => item.transport.as_str()).increment(1);
        NextTry::Never
    } else {
        NextTry::Refused { after_ms: (BACKOFF_MS << item.tries.min(20)).min(BACKOFF_MAX_MS) }
    };
    PutOff { message: item.message, error, next }
}

/// What ended while it was being published is over before anybody got it.
async fn withdraw(service: &Arc<dyn Upkeep>, items: &[OutboxItem], published: &[(i64, Arc<str>)], gone: &[i64]) {
    let names: HashMap<i64, &Arc<str>> = published.iter().map(|(message, name)| (*message, name)).collect();
    let over = items.iter().filter(|item| gone.contains(&item.message)).map(|item| Settled {
        message: item.message,
        queue: Arc::clone(&item.queue),
        transport: item.transport,
        receipt: names.get(&item.message).map(|name| Arc::clone(name)),
    });
    remove(service, over.collect()).await;
}

fn note(outcome: Result<(), StoreError>) {
    if let Err(error) = outcome {
        tracing::warn!(error = error.chain(), "cannot record the outcome of wake-ups");
    }
}

async fn settler(shared: Arc<Shared>, transport: Transport, mut settled: mpsc::Receiver<Settled>) {
    let Some(service) = shared.config.transports.get(transport) else { return };
    loop {
        let done = shared.stopping.run_until_cancelled(async {
            let mut batch = Vec::new();
            settled.recv_many(&mut batch, SETTLE_BATCH).await;
            remove(service, batch).await;
        });
        if done.await.is_none() {
            return;
        }
    }
}

/// Takes wake-ups that are over out of their queues. What cannot be taken out now is swept up later.
async fn remove(service: &Arc<dyn Upkeep>, settled: Vec<Settled>) {
    let mut by_queue: HashMap<Arc<str>, Vec<Arc<str>>> = HashMap::new();
    for Settled { queue, receipt, .. } in settled {
        by_queue.entry(queue).or_default().extend(receipt);
    }
    for (queue, names) in by_queue {
        if !names.is_empty()
            && let Err(error) = service.remove(&queue, &names).await
        {
            tracing::debug!(transport.name = service.name(), queue.name = %queue, %error, "cannot remove ended wake-ups: left for the sweep");
        }
    }
}

async fn measure(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LAG_EVERY) => {}
            () = shared.stopping.cancelled() => return,
        }
        for (transport, _) in shared.config.transports.configured() {
            let Ok(lag) = shared.store.outbox_lag(transport).await else { continue };
            let name = transport.as_str();
            metrics::gauge!("tenure_outbox_waiting", "transport" => name).set(lag.waiting as f64);
            metrics::gauge!("tenure_outbox_failed", "transport" => name).set(lag.failed as f64);
            metrics::gauge!("tenure_outbox_oldest_seconds", "transport" => name).set(lag.oldest_ms as f64 / 1000.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{AttemptId, Fence, LeaseToken, Seq, TaskId, Timestamp};

    use super::*;

    fn grant(message: i64) -> Grant {
        Grant {
            task: TaskId::new(0, 0, Seq(message)),
            queue: tenure_core::queue::QueueId(1),
            attempt: 1,
            attempt_id: AttemptId::from_u128(1),
            token: LeaseToken::from_u128(1),
            fence: Fence(1),
            message,
            lease_ttl_ms: 1_000,
            heartbeat_ms: 300,
            deadline: None,
            checkpoint: None,
            transport: Transport::Redis,
            receipt: None,
            repeatable: false,
            granted_at: Timestamp::MIN,
            expires_at: Timestamp::MIN,
            delivery: None,
            body: None,
        }
    }

    fn item(message: i64) -> OutboxItem {
        let task = TaskId::new(0, 0, Seq(message));
        OutboxItem { message, task, queue: "q".into(), transport: Transport::Redis, tries: 0 }
    }

    /// An outbox with a line that nobody serves.
    fn stuck() -> (Outbox, mpsc::Receiver<OutboxItem>, mpsc::Receiver<Settled>) {
        let ((fresh, fresh_end), (settled, settled_end)) = (mpsc::channel(FRESH), mpsc::channel(SETTLED));
        let lines = HashMap::from([(Transport::Redis, Line::new(fresh, settled))]);
        (Outbox { lines, ..Outbox::default() }, fresh_end, settled_end)
    }

    #[tokio::test]
    async fn however_many_names_are_missing_they_are_waited_for_once() {
        let (outbox, _fresh, _settled) = stuck();
        outbox.publish((1..=100).map(item).collect());
        let mut grants: Vec<Grant> = (1..=100).map(grant).collect();
        let started = tokio::time::Instant::now();
        outbox.names(grants.iter_mut()).await;
        assert!(grants.iter().all(|grant| grant.receipt.is_none()));
        assert!(started.elapsed() < 50 * NAME_WAIT, "{:?}", started.elapsed());
        // A transport that is away is not waited for at all.
        outbox.lines[&Transport::Redis].away.store(true, Ordering::Relaxed);
        let told = tokio::time::timeout(Duration::ZERO, outbox.names(grants.iter_mut())).await;
        assert!(told.is_ok(), "it waited");
    }

    #[tokio::test]
    async fn a_name_that_is_learned_meanwhile_is_told() {
        let (outbox, _fresh, _settled) = stuck();
        outbox.publish(vec![item(7)]);
        let mut grants = [grant(7), grant(8)];
        let learned = async { outbox.learn(&[(7, "70-0".into())]) };
        tokio::join!(outbox.names(grants.iter_mut()), learned);
        assert_eq!(grants.map(|grant| grant.receipt), [Some("70-0".into()), None], "nobody publishes the other");
    }

    #[test]
    fn a_transport_that_is_away_is_tried_with_one_at_a_time() {
        let (outbox, mut fresh, _settled) = stuck();
        outbox.lines[&Transport::Redis].away.store(true, Ordering::Relaxed);
        outbox.publish((1..=5).map(item).collect());
        assert_eq!(fresh.try_recv().map(|item| item.message), Ok(1));
        assert!(fresh.try_recv().is_err());
        outbox.publish(vec![item(6)]);
        assert_eq!(fresh.try_recv().map(|item| item.message), Ok(6));
    }

    #[test]
    fn names_are_forgotten_in_their_order() {
        let mut names = Names::default();
        for message in 0..NAMES as i64 + 10 {
            names.put(message, None);
        }
        assert_eq!(names.by_message.len(), NAMES);
        assert!(!names.by_message.contains_key(&9) && names.by_message.contains_key(&10));
    }
}
