//! Wake-ups that leave the process: published after their commit, settled when they are over.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::command::claim::Grant;
use tenure_core::effect::{EffectKind, enqueued_task};
use tenure_core::queue::Transport;
use tenure_store::{DueEffect, Settled, Store, StoreError};
use tenure_transport::{Refused, TransportError, Upkeep, WakeUp};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::task::TaskTracker;

use super::{Failure, Handler};
use crate::engine::Shared;

const SETTLED: usize = 20_000;
const SETTLE_BATCH: usize = 1_000;
/// How long an answer to a claim waits for the name of a message that is being published.
const NAME_WAIT: Duration = Duration::from_millis(250);
/// Names that are remembered until they are in the store for sure.
const NAMES: usize = 50_000;

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

/// Publishes wake-ups through one transport.
#[derive(Debug)]
struct Publisher {
    transport: Transport,
    service: Arc<dyn Upkeep>,
    /// Queues whose consumers have what they need.
    prepared: Mutex<HashSet<Arc<str>>>,
    sweep: watch::Sender<()>,
    wake_ups: Arc<WakeUps>,
}

/// One for each transport.
pub fn handlers(
    transports: &Transports,
    sweep: &watch::Sender<()>,
    wake_ups: &Arc<WakeUps>,
) -> impl Iterator<Item = Arc<dyn Handler>> {
    transports.configured().map(|(transport, service)| {
        Arc::new(Publisher {
            transport,
            service: Arc::clone(service),
            prepared: Mutex::default(),
            sweep: sweep.clone(),
            wake_ups: Arc::clone(wake_ups),
        }) as Arc<dyn Handler>
    })
}

impl Publisher {
    /// Those who wait for the first message of a queue need something to wait at. Should this fail, the sweep does it.
    async fn prepare(&self, queues: impl Iterator<Item = &Arc<str>>) {
        let unprepared: HashSet<Arc<str>> = {
            let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            queues.filter(|queue| !prepared.contains(*queue)).cloned().collect()
        };
        for queue in unprepared {
            match self.service.prepare(&queue).await {
                Ok(()) => {
                    self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(queue);
                }
                Err(TransportError::Unreachable { .. }) => return,
                Err(TransportError::Refused { .. }) => {}
            }
        }
    }
}

/// The wake-up that an effect stands for.
fn wake_up(effect: &DueEffect) -> Result<WakeUp, Failure> {
    match (&effect.queue, enqueued_task(&effect.body)) {
        (Some(queue), Some(task)) => {
            Ok(WakeUp { queue: Arc::clone(queue), task: task.to_string().into(), enqueue: effect.id })
        }
        _ => Err(Failure::Refused("the row names no task or no queue".to_owned())),
    }
}

#[async_trait]
impl Handler for Publisher {
    fn kind(&self) -> EffectKind {
        EffectKind::EnqueueTask
    }

    fn key(&self) -> &'static str {
        self.transport.as_str()
    }

    async fn perform(&self, effects: &[DueEffect]) -> Result<Vec<Result<Arc<str>, Failure>>, String> {
        let read: Vec<Result<WakeUp, Failure>> = effects.iter().map(wake_up).collect();
        let wakes: Vec<WakeUp> = read.iter().filter_map(|wake| wake.as_ref().ok().cloned()).collect();
        self.prepare(wakes.iter().map(|wake| &wake.queue)).await;
        let mut answers = self.service.publish(&wakes).await.map_err(|error| error.to_string())?.into_iter();
        let told = read.into_iter().map(|wake| {
            wake?;
            match answers.next() {
                Some(Ok(name)) => Ok(name),
                Some(Err(Refused::ForItself(why))) => Err(Failure::Refused(why)),
                Some(Err(Refused::Away(why))) => Err(Failure::Away(why)),
                None => Err(Failure::Away("the transport gave no answer".to_owned())),
            }
        });
        Ok(told.collect())
    }

    /// The rows stay, with the names of their messages. A task that ended while its wake-up was being published is over
    /// before anybody got the message.
    async fn performed(&self, store: &dyn Store, done: &[(DueEffect, Arc<str>)]) -> Result<(), StoreError> {
        let published: Vec<(i64, Arc<str>)> = done.iter().map(|(effect, name)| (effect.id, Arc::clone(name))).collect();
        metrics::counter!("tenure_wakeups_published_total", "transport" => self.service.name())
            .increment(published.len() as u64);
        self.wake_ups.learn(&published);
        let gone = store.outbox_published(&published).await?;
        let over = done.iter().filter(|(effect, _)| gone.contains(&effect.id)).filter_map(|(effect, name)| {
            Some(Settled {
                message: effect.id,
                queue: effect.queue.clone()?,
                transport: self.transport,
                receipt: Some(Arc::clone(name)),
            })
        });
        remove(&self.service, over.collect()).await;
        Ok(())
    }

    fn taken_up(&self, id: i64) {
        self.wake_ups.publishing(id);
    }

    fn given_up(&self, ids: &[i64]) {
        self.wake_ups.forget(ids);
    }

    fn is_back(&self) {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.sweep.send_replace(());
    }
}

/// Wake-ups that this process publishes, until their names are in the store, and those that are over.
#[derive(Debug, Default)]
pub struct WakeUps {
    names: Mutex<Names>,
    /// A name was learned.
    named: Notify,
    settled: HashMap<Transport, mpsc::Sender<Settled>>,
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

pub type Ends = Vec<(Transport, mpsc::Receiver<Settled>)>;

impl WakeUps {
    pub fn new(transports: &Transports) -> (Self, Ends) {
        let (mut settled, mut ends) = (HashMap::new(), Vec::new());
        for (transport, _) in transports.configured() {
            let (sender, receiver) = mpsc::channel(SETTLED);
            settled.insert(transport, sender);
            ends.push((transport, receiver));
        }
        (Self { settled, ..Self::default() }, ends)
    }

    pub fn settle(&self, settled: Vec<Settled>) {
        for settled in settled {
            if let Some(line) = self.settled.get(&settled.transport)
                && settled.receipt.is_some()
            {
                let _ = line.try_send(settled);
            }
        }
    }

    /// `is_away` says whether a transport, by its name, cannot be reached: then no name is waited for.
    pub async fn names(&self, grants: impl Iterator<Item = &mut Grant>, is_away: impl Fn(&str) -> bool) {
        let deadline = tokio::time::Instant::now() + NAME_WAIT;
        for grant in grants {
            let wait = (!is_away(grant.transport.as_str())).then_some(deadline);
            grant.receipt = self.name(grant.message, wait).await;
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

    fn publishing(&self, message: i64) {
        self.lock().put(message, None);
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

pub fn start(shared: &Arc<Shared>, ends: Ends, tasks: &TaskTracker) {
    for (transport, settled) in ends {
        tasks.spawn(settler(Arc::clone(shared), transport, settled));
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

    #[tokio::test]
    async fn however_many_names_are_missing_they_are_waited_for_once() {
        let wake_ups = WakeUps::default();
        (1..=100).for_each(|message| wake_ups.publishing(message));
        let mut grants: Vec<Grant> = (1..=100).map(grant).collect();
        let started = tokio::time::Instant::now();
        wake_ups.names(grants.iter_mut(), |_| false).await;
        assert!(grants.iter().all(|grant| grant.receipt.is_none()));
        assert!(started.elapsed() < 50 * NAME_WAIT, "{:?}", started.elapsed());
        // A transport that is away is not waited for at all.
        let told = tokio::time::timeout(Duration::ZERO, wake_ups.names(grants.iter_mut(), |_| true)).await;
        assert!(told.is_ok(), "it waited");
    }

    #[tokio::test]
    async fn a_name_that_is_learned_meanwhile_is_told() {
        let wake_ups = WakeUps::default();
        wake_ups.publishing(7);
        let mut grants = [grant(7), grant(8)];
        let learned = async { wake_ups.learn(&[(7, "70-0".into())]) };
        tokio::join!(wake_ups.names(grants.iter_mut(), |_| false), learned);
        assert_eq!(grants.map(|grant| grant.receipt), [Some("70-0".into()), None], "nobody publishes the other");
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

    #[test]
    fn a_row_that_names_no_task_is_refused_by_itself() {
        let row = DueEffect {
            id: 1,
            kind: EffectKind::EnqueueTask,
            key: "redis".into(),
            body: "no task".into(),
            queue: Some("q".into()),
            tries: 0,
        };
        assert!(matches!(wake_up(&row), Err(Failure::Refused(_))));
    }
}
