//! Claims: ask, and if there is nothing, wait and ask again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::attempt::Receipt;
use tenure_core::command::claim::{Claim, ClaimTask, Claimed, Grant, NotGranted, NotGrantedReason};
use tenure_core::command::hello::Hello;
use tenure_core::command::report::AttemptReport;
use tenure_core::command::{Answer, Command, Rejection};
use tenure_store::Lane;

use crate::commands::{Reply, typed, variant};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::lane::LaneQueue;
use crate::waiters::Waiter;

/// How long a claim waits for work.
#[derive(Debug, Clone, Copy)]
pub struct ClaimWait(pub Duration);

impl ClaimWait {
    pub const NONE: Self = Self(Duration::ZERO);
}

/// For how long a worker process that was let in is not asked again. Another control plane may have let in a newer one.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// Workers remembered; more are asked again each time.
const KNOWN_WORKERS: usize = 10_000;

/// Worker processes that were let in a moment ago.
#[derive(Debug, Default)]
pub struct KnownWorkers(Mutex<HashMap<Arc<str>, Known>>);

#[derive(Debug)]
struct Known {
    incarnation: Arc<str>,
    at: Instant,
}

impl KnownWorkers {
    fn knows(&self, hello: &Hello) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&hello.worker)
            .is_some_and(|known| known.incarnation == hello.incarnation && known.at.elapsed() < KNOWN_FOR)
    }

    fn learn(&self, hello: &Hello) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_WORKERS {
            known.retain(|_, known| known.at.elapsed() < KNOWN_FOR);
        }
        if known.len() < KNOWN_WORKERS {
            known.insert(
                Arc::clone(&hello.worker),
                Known { incarnation: Arc::clone(&hello.incarnation), at: Instant::now() },
            );
        }
    }
}

impl Engine {
    /// Lets a worker process in, or says that a newer one has its name. What an older one held is voided.
    pub async fn hello(&self, hello: Hello) -> Reply<()> {
        if self.shared.known_workers.knows(&hello) {
            return Ok(Ok(()));
        }
        let admitted = self.ask(Lane::Work, Command::Hello(hello.clone()), 0, variant!(Done)).await?;
        Ok(admitted.map(|_| self.shared.known_workers.learn(&hello)))
    }

    /// Claims tasks of the named queues. Waits only while there are none, and never to get more.
    pub async fn claim(&self, claim: Claim, wait: ClaimWait) -> Result<Claimed, EngineError> {
        let until = Instant::now() + wait.0;
        self.shared.saw(&claim.queues);
        let _present = if wait.0.is_zero() { None } else { self.present(&claim.claimer) };
        let mut waiter = None;
        loop {
            if let Some(worker) = claim.claimer.worker.as_ref().filter(|worker| self.is_drained(&worker.id)) {
                // A worker that gets no work must not be woken in place of another.
                waiter = None;
                if !self.may_get_work(&worker.id, until).await {
                    return self.granted_before(claim).await;
                }
            }
            if waiter.is_none() && !wait.0.is_zero() {
                waiter = Some(self.shared.waiters.register(&claim.queues));
            }
            if let Some(waiter) = &waiter {
                waiter.about_to_ask();
            }
            let claimed = self.ask(Lane::Work, Command::Claim(claim.clone()), 0, variant!(Claimed)).await?;
            let claimed = self.with_messages(never_refused(claimed)?).await;
            let Some(waiter) = waiter.as_ref().filter(|_| claimed.grants.is_empty()) else { return Ok(claimed) };
            if !self.next_ask(waiter, &claimed, until).await? {
                return Ok(claimed);
            }
        }
    }

    /// What this very claim was granted before and still holds, if its answer got lost. Nothing new.
    async fn granted_before(&self, claim: Claim) -> Result<Claimed, EngineError> {
        if claim.claimer.name().is_none() {
            return Ok(Claimed::default());
        }
        let claim = Claim { max_jobs: 0, ..claim };
        let claimed = self.ask(Lane::Work, Command::Claim(claim), 0, variant!(Claimed)).await?;
        Ok(self.with_messages(never_refused(claimed)?).await)
    }

    /// Waits until a claim that was granted nothing may be granted something. Returns false if that did not happen in
    /// time, or the engine stops.
    pub(crate) async fn next_ask(
        &self,
        waiter: &Waiter,
        claimed: &Claimed,
        until: Instant,
    ) -> Result<bool, EngineError> {
        self.shared.waiters.was_full(&claimed.full);
        let mut drains = self.shared.fleet.drains();
        let mut next = until;
        if let Some(retry_at) = claimed.retry_at {
            let ms = u64::try_from(retry_at.since(self.now().await?)).unwrap_or(0).max(1);
            next = next.min(Instant::now() + Duration::from_millis(ms));
        }
        tokio::select! {
            () = waiter.woken() => {}
            _ = drains.changed() => {}
            () = tokio::time::sleep_until(next.into()) => {}
            () = self.shared.stopping.cancelled() => return Ok(false),
        }
        Ok(Instant::now() < until)
    }

    /// Reports and a claim that does not wait, committed together: one turn of a worker's loop.
    pub async fn report_and_claim(
        &self,
        reports: Vec<AttemptReport>,
        claim: Option<Claim>,
        bytes: usize,
    ) -> Result<(Vec<Reply<Receipt>>, Option<Claimed>), EngineError> {
        let claims = claim.is_some();
        let mut commands: Vec<Command> = reports.into_iter().map(Command::Report).collect();
        if let Some(mut claim) = claim {
            self.shared.saw(&claim.queues);
            if claim.claimer.worker.as_ref().is_some_and(|worker| self.is_drained(&worker.id)) {
                claim.max_jobs = 0;
            }
            commands.push(Command::Claim(claim));
        }
        let mut replies = self.shared.work.send(commands, bytes).await?;
        let claimed = match claims.then(|| replies.pop()).flatten() {
            None => None,
            Some(reply) => {
                let claimed = never_refused(typed(reply, variant!(Claimed))?)?;
                Some(self.with_messages(claimed).await)
            }
        };
        Ok((replies.into_iter().map(|reply| typed(reply, variant!(Reported))).collect(), claimed))
    }

    /// Claims one task by its id. Never waits.
    pub async fn claim_task(&self, claim: ClaimTask) -> Reply<TaskClaim> {
        let of_jobs = claim.claimer.worker.as_ref().is_some_and(|worker| worker.dispatch);
        if self.is_kept_from(&claim).await? {
            return Ok(Ok(TaskClaim::NotGranted(NotGranted {
                reason: NotGrantedReason::NotDue,
                ack: false,
                live: None,
            })));
        }
        let granted = |answer| match answer {
            Answer::Claimed(claimed) => Some(TaskClaim::Granted(claimed)),
            Answer::NotGranted(not) => Some(TaskClaim::NotGranted(not)),
            _ => None,
        };
        match self.ask(Lane::Work, Command::ClaimTask(claim), 0, granted).await? {
            Ok(TaskClaim::Granted(claimed)) => {
                let claimed = if of_jobs { self.noted(claimed).await } else { claimed };
                Ok(Ok(TaskClaim::Granted(self.with_messages(claimed).await)))
            }
            other => Ok(other),
        }
    }

    /// Whether the claimer is drained, and does not hold the task already.
    async fn is_kept_from(&self, claim: &ClaimTask) -> Result<bool, EngineError> {
        let Some(worker) = claim.claimer.worker.as_ref().filter(|worker| self.is_drained(&worker.id)) else {
            return Ok(false);
        };
        let running = self.shared.store.in_flight(claim.task).await?;
        Ok(running.is_none_or(|running| running.lease.holder.as_ref() != Some(&worker.id)))
    }

    /// Watches a grant until its claimer is told of it.
    pub fn handing(&self, grant: Grant) -> Handing {
        Handing { engine: self.clone(), grant: Some(grant) }
    }

    /// Workers that read wake-ups from a transport are known by their claims alone.
    async fn noted(&self, claimed: Claimed) -> Claimed {
        let mut handed = Handed { lane: &self.shared.work, claimed };
        for grant in &handed.claimed.grants {
            if let Ok(name) = self.shared.queue_name(grant.queue).await {
                self.shared.saw(&[name]);
            }
        }
        std::mem::take(&mut handed.claimed)
    }

    /// A grant carries the name of its wake-up. One that was published a moment ago may have none in the store yet.
    async fn with_messages(&self, claimed: Claimed) -> Claimed {
        let mut handed = Handed { lane: &self.shared.work, claimed };
        let grants = handed.claimed.grants.iter_mut();
        self.shared.effects.names(grants.filter(|g| g.transport.is_external() && g.receipt.is_none())).await;
        std::mem::take(&mut handed.claimed)
    }
}

/// A grant whose claimer is not told of it yet. Dropped before that, it is taken back, unless the claim can be repeated.
#[derive(Debug)]
pub struct Handing {
    engine: Engine,
    grant: Option<Grant>,
}

impl Handing {
    /// The answer is ready.
    pub fn arrived(mut self) {
        self.grant = None;
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        self.engine.shared.work.take_back(self.grant.iter());
    }
}

/// The answer to a claim that names its task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskClaim {
    Granted(Claimed),
    NotGranted(NotGranted),
}

/// A claim by queue is granted what there is, which may be nothing. The rules have no reason to refuse it.
fn never_refused(claimed: Result<Claimed, Rejection>) -> Result<Claimed, EngineError> {
    claimed.map_err(|rejection| {
        tracing::error!(reason = ?rejection, "claim refused");
        EngineError::Internal
    })
}

/// Grants on their way to a claimer, who may leave meanwhile.
struct Handed<'a> {
    lane: &'a LaneQueue,
    claimed: Claimed,
}

impl Drop for Handed<'_> {
    fn drop(&mut self) {
        self.lane.take_back(self.claimed.grants.iter());
    }
}
