//! Grants the tasks of one queue and sends them on their way.
//!
//! Each queue has a loop of its own, so a target that hangs holds up its own queue only. Places come before grants:
//! nothing is granted that would have to wait in memory until it can be sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::command::claim::{Claim, Claimed, Claimer, Grant};
use tenure_core::limits;
use tenure_core::queue::Queue;
use tenure_core::time::DurationMs;
use tokio::sync::watch;

use super::circuit::{Gate, Name, Probe};
use super::outlet::Outlet;
use super::places::Place;
use super::{BATCH_TASKS, Depot, LOOK_EVERY};
use crate::claims::ClaimWait;
use crate::error::EngineError;
use crate::random::random_seed;

/// A queue without tasks is asked for some at least this often.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// A target that is down is probed with an attempt that is open, if that one is due within this time.
const SOON_MS: DurationMs = limits::PUSH_BACKOFF_MS_MAX;
/// How long a probe is left to open attempts. They may be in the hands of another control plane that reaches the target.
const LEFT_TO_OTHERS: Duration = Duration::from_millis(2 * SOON_MS.cast_unsigned());

/// The loop of one queue.
#[derive(Debug)]
pub struct Granting {
    depot: Arc<Depot>,
    outlet: Arc<Outlet>,
    changes: watch::Receiver<Arc<Queue>>,
    /// Why nothing can be delivered, as it was logged last.
    complaint: Option<String>,
    /// Since when the probe has been left to attempts that are open.
    left_since: Option<Instant>,
}

impl Granting {
    pub fn new(depot: Arc<Depot>, outlet: Arc<Outlet>) -> Self {
        let changes = outlet.changes();
        Self { depot, outlet, changes, complaint: None, left_since: None }
    }

    pub async fn run(mut self) {
        while !self.outlet.gone.is_cancelled() {
            self.turn().await;
        }
    }

    async fn turn(&mut self) {
        let queue = Arc::clone(&self.changes.borrow_and_update());
        let circuit = match self.depot.route(&queue) {
            Ok((_, circuit)) => circuit,
            Err(why) => {
                // Once per reason: it is tried every second.
                if self.complaint.as_ref() != Some(&why) {
                    tracing::error!(queue.name = %queue.name, reason = why, "cannot push tasks of this queue");
                    self.complaint = Some(why);
                }
                return self.wait(LOOK_EVERY).await;
            }
        };
        self.complaint = None;
        let now = Instant::now();
        let gate = self.depot.circuits.gate(&circuit, now);
        if gate != Gate::Probe {
            self.left_since = None;
        }
        match gate {
            Gate::Shut { until } => self.wait(until.saturating_duration_since(now).min(LOOK_EVERY)).await,
            // An attempt that is open can show whether the target answers; a new one would be one more that is lost.
            // Unless another control plane has the open ones, and reaches the target.
            Gate::Probe
                if self.left_since.get_or_insert(now).elapsed() < LEFT_TO_OTHERS
                    && self.has_open_delivery(&queue).await =>
            {
                self.depot.again.notify_one();
                self.wait(LOOK_EVERY).await;
            }
            Gate::Probe => self.probe(queue, &circuit).await,
            Gate::Free => self.grant(queue, &circuit).await,
        }
    }

    /// Waits until something changes, for this long at most.
    async fn wait(&mut self, time: Duration) {
        tokio::select! {
            () = self.outlet.gone.cancelled() => {}
            _ = self.changes.changed() => {}
            () = self.depot.circuits.changed() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Whether the queue has an attempt whose delivery can be repeated before long.
    async fn has_open_delivery(&self, queue: &Queue) -> bool {
        match self.depot.engine.shared.store.pushes_due(&[(queue.id, 1)]).await {
            Ok(due) => !due.rows.is_empty() || due.next_at.is_some_and(|at| at.since(due.now) <= SOON_MS),
            Err(error) => {
                tracing::warn!(queue.name = %queue.name, error = error.chain(), "cannot look for open pushes");
                true
            }
        }
    }

    /// Grants one task to find out whether the target answers.
    async fn probe(&mut self, queue: Arc<Queue>, circuit: &Name) {
        let places = tokio::select! {
            () = self.outlet.gone.cancelled() => return,
            places = self.depot.places.take(queue.id, 1) => places,
        };
        let Some(probe) = self.depot.circuits.probe(circuit, Instant::now()) else { return };
        match self.claim(&queue, places.len()).await {
            Ok(claimed) if !claimed.grants.is_empty() => self.send(&queue, claimed.grants, places, Some(probe)),
            Ok(_) => {
                drop((probe, places));
                self.wait(LOOK_EVERY).await;
            }
            Err(error) => self.claim_failed(&queue, &error).await,
        }
    }

    /// Waits for tasks and grants them, unless the queue or its circuit changes before.
    async fn grant(&mut self, queue: Arc<Queue>, circuit: &Name) {
        let waiter = self.depot.engine.shared.waiters.register(std::slice::from_ref(&queue.name));
        let until = Instant::now() + ASK_EVERY;
        loop {
            waiter.about_to_ask();
            let places = tokio::select! {
                () = changed(&self.depot, &self.outlet, &mut self.changes, circuit) => return,
                places = self.depot.places.take(queue.id, BATCH_TASKS) => places,
            };
            // It is not dropped halfway: what it is granted is sent.
            let claimed = match self.claim(&queue, places.len()).await {
                Ok(claimed) => claimed,
                Err(error) => return self.claim_failed(&queue, &error).await,
            };
            if !claimed.grants.is_empty() {
                return self.send(&queue, claimed.grants, places, None);
            }
            drop(places);
            let more = tokio::select! {
                () = changed(&self.depot, &self.outlet, &mut self.changes, circuit) => return,
                more = self.depot.engine.next_ask(&waiter, &claimed, until) => more,
            };
            match more {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.claim_failed(&queue, &error).await,
            }
        }
    }

    async fn claim(&self, queue: &Queue, max_jobs: usize) -> Result<Claimed, EngineError> {
        let claimer = Claimer::delivery(random_seed());
        let claim = Claim { claimer, queues: vec![Arc::clone(&queue.name)], max_jobs };
        self.depot.engine.claim(claim, ClaimWait::NONE).await
    }

    /// What such a claim may have been granted all the same is delivered when its time is over.
    async fn claim_failed(&mut self, queue: &Queue, error: &EngineError) {
        if *error != EngineError::Closed {
            tracing::warn!(queue.name = %queue.name, %error, "cannot grant tasks for pushing");
        }
        self.wait(LOOK_EVERY).await;
    }

    fn send(&self, queue: &Arc<Queue>, grants: Vec<Grant>, places: Vec<Place>, mut probe: Option<Probe>) {
        for (grant, place) in grants.into_iter().zip(places) {
            self.depot.send(Arc::clone(queue), grant, place, probe.take());
        }
    }
}

/// Ends when the queue changes or is gone, or its circuit is not closed any more.
async fn changed(depot: &Depot, outlet: &Outlet, changes: &mut watch::Receiver<Arc<Queue>>, circuit: &Name) {
    let opened = async {
        loop {
            let changed = depot.circuits.changed();
            tokio::pin!(changed);
            if depot.circuits.gate(circuit, Instant::now()) != Gate::Free {
                return;
            }
            changed.await;
        }
    };
    tokio::select! {
        () = outlet.gone.cancelled() => {}
        _ = changes.changed() => {}
        () = opened => {}
    }
}
