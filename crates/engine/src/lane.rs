//! Group commit: commands of concurrent callers are committed together.
//!
//! A batch is whatever arrived while the last commit ran. Only heartbeats that arrive fast wait for others, for a few
//! milliseconds; see [`Pace`].

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tenure_core::batch::Outcome;
use tenure_core::command::claim::Grant;
use tenure_core::command::submit::Start;
use tenure_core::command::{Answer, Command, release::Release};
use tenure_core::mutant;
use tenure_store::{Batch, Done, Lane, StoreError};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::commands::Reply;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::pace::{GATHER, Pace};
use crate::waiters::Waiters;

/// How many requests may wait.
const WAITING_REQUESTS: usize = 20_000;
/// How much they may weigh in memory together.
const WAITING_KIB: usize = 256 << 10;
/// How many tasks a batch may touch.
const BATCH_WEIGHT: usize = 2_000;
/// How often claims that were called in get a turn before the batch goes without them.
const TURNS_FOR_CALLED: usize = 3;
/// How often a batch that met another transaction is tried again as a whole.
const CONTENTION_TRIES: u32 = 5;
/// How long the fate of a commit is looked for.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);

/// Commands of one caller, each judged by itself.
struct Request {
    commands: Vec<Command>,
    reply: oneshot::Sender<Vec<Reply<Answer>>>,
    _room: OwnedSemaphorePermit,
}

impl Request {
    /// A claimer that is gone takes no job. Reports of a caller that is gone still count.
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed() && self.commands.iter().all(|c| matches!(c, Command::Claim(_) | Command::ClaimTask(_)))
    }

    fn weight(&self) -> usize {
        self.commands.iter().map(|command| command.profile().weight).sum()
    }
}

/// A line of requests in front of the store.
pub struct LaneQueue {
    lane: Lane,
    sender: std::sync::Mutex<Option<mpsc::Sender<Request>>>,
    intake: Mutex<Intake>,
    room: Arc<Semaphore>,
}

/// The end of a line at which batches are taken.
struct Intake {
    receiver: mpsc::Receiver<Request>,
    /// How fast heartbeats arrive. Other work never waits for more.
    pace: Option<Pace>,
}

impl std::fmt::Debug for LaneQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneQueue").field("lane", &self.lane).finish_non_exhaustive()
    }
}

impl LaneQueue {
    pub fn new(lane: Lane) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_REQUESTS);
        Self {
            lane,
            sender: std::sync::Mutex::new(Some(sender)),
            intake: Mutex::new(Intake { receiver, pace: (lane == Lane::Heartbeat).then(|| Pace::new(Instant::now())) }),
            room: Arc::new(Semaphore::new(WAITING_KIB)),
        }
    }

    /// Stands in line. `bytes` is about how much memory the commands hold. Once accepted they are carried out, even if
    /// the caller stops waiting.
    pub async fn send(&self, commands: Vec<Command>, bytes: usize) -> Result<Vec<Reply<Answer>>, EngineError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        if mutant!("refuses-work", every 100) {
            return Err(EngineError::busy());
        }
        if mutant!("fails-inside", every 200) {
            return Err(StoreError::Failed { operation: "work", source: "a mutant".into() }.into());
        }
        let mut awaited = Awaited { lane: self, answers: self.put(commands, bytes)? };
        (&mut awaited.answers).await.map_err(|_| EngineError::Closed)
    }

    fn put(&self, commands: Vec<Command>, bytes: usize) -> Result<oneshot::Receiver<Vec<Reply<Answer>>>, EngineError> {
        let kib = u32::try_from(bytes / 1024 + commands.len().div_ceil(4)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(kib.min(WAITING_KIB as u32));
        let room = room.map_err(|_| EngineError::busy())?;
        let sender = self.sender.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let sender = sender.ok_or(EngineError::Closed)?;
        let (reply, answers) = oneshot::channel();
        sender.try_send(Request { commands, reply, _room: room }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => EngineError::busy(),
            mpsc::error::TrySendError::Closed(_) => EngineError::Closed,
        })?;
        Ok(answers)
    }

    fn release(&self, undelivered: &[Reply<Answer>]) {
        let grants = undelivered.iter().filter_map(|reply| match reply {
            Ok(Ok(Answer::Claimed(claimed))) => Some(&claimed.grants),
            _ => None,
        });
        self.take_back(grants.flatten());
    }

    /// Takes back grants whose claimer was gone when the answer was ready. With a claim id the claimer can ask again.
    pub fn take_back<'a>(&self, grants: impl Iterator<Item = &'a Grant>) {
        let commands: Vec<Command> = grants
            .filter(|grant| !grant.repeatable)
            .map(|grant| Command::Release(Release { row: grant.seq(), attempt_id: grant.attempt_id, by_holder: false }))
            .collect();
        if commands.is_empty() {
            return;
        }
        metrics::counter!("tenure_grants_undelivered_total").increment(commands.len() as u64);
        // Should this fail, the leases run out.
        let _ = self.put(commands, 0);
    }

    /// How many requests stand in line.
    pub fn waiting(&self) -> usize {
        let sender = self.sender.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        sender.as_ref().map_or(0, |sender| sender.max_capacity() - sender.capacity())
    }

    /// Nothing more is accepted; what was accepted is carried out.
    pub fn close(&self) {
        self.sender.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }

    /// Takes what has arrived, up to a batch full. `None` once the lane is closed and empty.
    ///
    /// Claims that wait for what a submit brings are called in: one commit then serves both. Should they come too late,
    /// the commit of the submit wakes others, as ever.
    async fn next(&self, waiters: &Waiters) -> Option<Vec<Request>> {
        let mut intake = self.intake.lock().await;
        let Intake { receiver, pace } = &mut *intake;
        let mut requests = vec![receiver.recv().await?];
        let mut weight = requests[0].weight();
        weight = take(receiver, &mut requests, weight);
        if let Some(pace) = pace {
            if weight < BATCH_WEIGHT && pace.is_fast(Instant::now()) {
                let before = requests.len();
                tokio::time::sleep(GATHER).await;
                take(receiver, &mut requests, weight);
                pace.gathered(requests.len() - before, Instant::now());
            }
            pace.took(requests.len());
            return Some(requests);
        }
        if weight < BATCH_WEIGHT && call_in(waiters, &requests) {
            for _ in 0..TURNS_FOR_CALLED {
                tokio::task::yield_now().await;
                weight = take(receiver, &mut requests, weight);
            }
        }
        Some(requests)
    }
}

/// A caller that waits for its answers. It may stop waiting when they are already on their way to it.
struct Awaited<'a> {
    lane: &'a LaneQueue,
    answers: oneshot::Receiver<Vec<Reply<Answer>>>,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        // Whoever comes later finds nobody here, and knows it.
        self.answers.close();
        if let Ok(undelivered) = self.answers.try_recv() {
            self.lane.release(&undelivered);
        }
    }
}

/// Moves what has arrived into the batch until it is full. Gives what the batch weighs.
fn take(receiver: &mut mpsc::Receiver<Request>, requests: &mut Vec<Request>, mut weight: usize) -> usize {
    while weight < BATCH_WEIGHT
        && let Ok(request) = receiver.try_recv()
    {
        weight += request.weight();
        requests.push(request);
    }
    weight
}

/// Wakes claims that wait for the queues of tasks about to be submitted. Says whether there were any.
fn call_in(waiters: &Waiters, requests: &[Request]) -> bool {
    let mut tasks: HashMap<&str, usize> = HashMap::new();
    for command in requests.iter().flat_map(|request| &request.commands) {
        match command {
            Command::Submit(submit) => {
                for task in submit.tasks.iter().filter(|task| task.start == Start::Now) {
                    *tasks.entry(&task.queue).or_default() += 1;
                }
            }
            Command::SubmitRun(submit) => {
                let first = submit.tasks.iter().filter(|one| one.depends_on.is_empty() && one.carried.is_none());
                for task in first.map(|one| &one.task).filter(|task| task.start == Start::Now) {
                    *tasks.entry(&task.queue).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    tasks.into_iter().fold(false, |called, (queue, tasks)| waiters.wake(queue, tasks) > 0 || called)
}

/// Commits batches of a lane until it is closed and empty. Several may serve one lane.
pub async fn commit(shared: Arc<Shared>, lane: Lane) {
    let queue = shared.lane(lane);
    while let Some(mut requests) = queue.next(&shared.waiters).await {
        requests.retain(|request| !request.is_abandoned());
        if !requests.is_empty() {
            serve(&shared, lane, requests).await;
        }
    }
}

async fn serve(shared: &Arc<Shared>, lane: Lane, requests: Vec<Request>) {
    let (mut sizes, mut replies) = (Vec::new(), Vec::new());
    let mut commands = Vec::new();
    for request in requests {
        sizes.push(request.commands.len());
        commands.extend(request.commands);
        replies.push((request.reply, request._room));
    }
    let mut answers = execute(shared, lane, Arc::new(commands)).await.into_iter();
    for (size, (reply, room)) in sizes.into_iter().zip(replies) {
        let own: Vec<Reply<Answer>> = answers.by_ref().take(size).collect();
        // Before the answer: whoever has it may send the next request at once.
        drop(room);
        if let Err(undelivered) = reply.send(own) {
            shared.work.release(&undelivered);
        }
    }
}

/// Runs commands as one batch; if the batch as such fails, one by one, so that one poison command harms nobody.
async fn execute(shared: &Arc<Shared>, lane: Lane, commands: Arc<Vec<Command>>) -> Vec<Reply<Answer>> {
    match run(shared, lane, &commands).await {
        Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
        Err(error) if error.is_transient() || commands.len() == 1 => {
            let error = EngineError::from(error);
            commands.iter().map(|_| Err(error.clone())).collect()
        }
        Err(error) => {
            tracing::warn!(
                error = error.chain(),
                commands = commands.len(),
                "batch failed: running its commands one by one"
            );
            metrics::counter!("tenure_batches_split_total").increment(1);
            let mut replies = Vec::with_capacity(commands.len());
            for command in commands.iter() {
                let alone = run(shared, lane, &Arc::new(vec![command.clone()])).await;
                replies.push(match alone {
                    Ok(mut outcomes) => outcomes.pop().ok_or(EngineError::Internal),
                    Err(error) => Err(EngineError::from(error)),
                });
            }
            replies
        }
    }
}

/// Runs a batch until its fate is known, or cannot be found out.
async fn run(shared: &Arc<Shared>, lane: Lane, commands: &Arc<Vec<Command>>) -> Result<Vec<Outcome>, StoreError> {
    let started = Instant::now();
    let mut retrying = false;
    let mut tries = 0;
    let done = loop {
        match once(shared, lane, commands, retrying).await {
            Ok(done) => break done,
            Err(StoreError::Contention) if tries < CONTENTION_TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(2_u64.pow(tries))).await;
            }
            // It may have happened. Only the store can tell; nothing is answered before.
            Err(StoreError::CommitUnknown { .. }) if started.elapsed() < UNKNOWN_FOR => retrying = true,
            Err(error) if retrying && error.is_transient() && started.elapsed() < UNKNOWN_FOR => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(StoreError::Contention) => {
                let source = "too many conflicts with other transactions".into();
                return Err(StoreError::Failed { operation: "commit", source });
            }
            Err(error) => return Err(error),
        }
    };
    let name = if lane == Lane::Work { "work" } else { "heartbeat" };
    metrics::counter!("tenure_batches_total", "lane" => name).increment(1);
    metrics::counter!("tenure_commands_total", "lane" => name).increment(commands.len() as u64);
    metrics::histogram!("tenure_batch_seconds", "lane" => name).record(started.elapsed());
    Ok(shared.committed(done))
}

async fn once(
    shared: &Arc<Shared>,
    lane: Lane,
    commands: &Arc<Vec<Command>>,
    retrying: bool,
) -> Result<Done, StoreError> {
    let wanted = commands.iter().map(|command| command.profile().numbers).sum();
    let numbers = shared.numbers.take(&*shared.store, wanted).await?;
    let batch = Batch { commands: Arc::clone(commands), numbers, lane, retrying };
    // A panic inside the store must not end the lane.
    match AssertUnwindSafe(shared.store.execute(batch)).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(_) => Err(StoreError::Failed { operation: "run a batch", source: "the store panicked".into() }),
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::Seq;
    use tenure_core::command::promote::Promote;

    use super::*;

    fn command() -> Vec<Command> {
        vec![Command::Promote(Promote { row: Seq(1) })]
    }

    /// How many requests the next batch has if a second one arrives just after the first was taken.
    async fn taken(queue: &LaneQueue) -> usize {
        let waiters = Waiters::default();
        let _first = queue.put(command(), 0).unwrap();
        let second = async { Some(queue.put(command(), 0).unwrap()) };
        let (requests, _second) = tokio::join!(queue.next(&waiters), second);
        let count = requests.unwrap().len();
        if count == 1 {
            queue.next(&waiters).await.unwrap();
        }
        count
    }

    #[tokio::test]
    async fn heartbeats_that_arrive_fast_share_a_batch_and_other_work_does_not_wait() {
        let (beats, work) = (LaneQueue::new(Lane::Heartbeat), LaneQueue::new(Lane::Work));
        assert_eq!((taken(&beats).await, taken(&work).await), (1, 1));
        for queue in [&beats, &work] {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let mut intake = queue.intake.lock().await;
            if let Some(pace) = &mut intake.pace {
                pace.took(1_000_000);
            }
        }
        assert_eq!((taken(&beats).await, taken(&work).await), (2, 1));
    }
}
