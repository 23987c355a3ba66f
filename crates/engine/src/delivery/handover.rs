//! One delivery: the courier hands the task over, and what came of it is noted in the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::command::claim::Grant;
use tenure_core::command::push::{PushOutcome, Pushed};
use tenure_core::command::{Command, Reach};
use tenure_core::queue::Queue;
use tenure_core::{AttemptId, Seq, TaskId};
use tenure_store::{AttemptView, Lane};

use super::Depot;
use super::circuit::Probe;
use super::courier::{Health, Outcome, Parcel, millis};
use super::places::Place;
use crate::commands::variant;

/// When the control plane stops, an answer that is on its way may still arrive within this time.
const LAST_WAIT: Duration = Duration::from_secs(2);
/// How often an exchange that goes on after its outcome is checked for whether its attempt is still open.
const CHECK_EVERY: Duration = Duration::from_secs(15);

/// One delivery and what it occupies.
#[derive(Debug)]
pub struct Trip {
    pub depot: Arc<Depot>,
    pub queue: Arc<Queue>,
    pub place: Place,
    pub probe: Option<Probe>,
}

/// What a delivery is known by.
#[derive(Debug)]
struct Label {
    task: TaskId,
    row: Seq,
    attempt: u32,
    attempt_id: AttemptId,
    delivery_id: String,
    number: u32,
}

impl Label {
    fn of(parcel: &Parcel) -> Self {
        let grant = &parcel.grant;
        Self {
            task: grant.task,
            row: grant.seq(),
            attempt: grant.attempt,
            attempt_id: grant.attempt_id,
            delivery_id: parcel.delivery_id(),
            number: parcel.number(),
        }
    }
}

impl Trip {
    pub async fn run(mut self, mut grant: Grant) {
        let depot = Arc::clone(&self.depot);
        let (Some(push), Some(body)) = (self.queue.settings.push.clone(), grant.body.take()) else { return };
        let (courier, circuit) = match depot.route(&self.queue) {
            Ok(route) => route,
            // The loop of the queue logs it; the delivery is repeated when its time has come.
            Err(why) => {
                return tracing::debug!(queue.name = %self.queue.name, reason = why, "cannot push a task");
            }
        };
        self.place.weigh(body.payload.len() + grant.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.len()));
        let ack = millis(push.ack_timeout_ms);
        let parcel = Parcel { queue: Arc::clone(&self.queue.name), push, grant, body };
        let label = Label::of(&parcel);
        let started = Instant::now();
        let mut delivering = courier.deliver(parcel);
        let (outcome, rest): (Outcome, Option<BoxFuture<'_, ()>>) = tokio::select! {
            handover = &mut delivering => (handover.outcome, handover.rest.map(|rest| rest as BoxFuture<'_, ()>)),
            () = tokio::time::sleep(ack) => (Outcome::Silent, Some(delivering.map(drop).boxed())),
            () = depot.last_wait() => return,
        };
        let fate = outcome.fate();
        let counted = depot.note(&label, fate.clone()).await;
        // A target that has taken up the attempt is alive, whatever became of the exchange. An attempt can also be over
        // because no target did.
        let taken_up = !counted && (outcome.health() == Health::Alive || depot.was_taken_up(&label).await);
        let (health, word) = if taken_up { (Health::Alive, "started") } else { (outcome.health(), outcome.word()) };
        match self.probe.take() {
            Some(probe) => probe.report(health, Instant::now()),
            None => depot.circuits.report(&circuit, health, Instant::now()),
        }
        self.log(&label, &fate, counted, word, started.elapsed());
        drop(self.place);
        if counted
            && matches!(fate, PushOutcome::Again { .. } | PushOutcome::NoRoom { .. } | PushOutcome::Unreachable { .. })
        {
            depot.again.notify_one();
        }
        // A target may execute inside the exchange, before its answer or while it answers: to drop the exchange could end
        // the execution.
        if let Some(rest) = rest.filter(|_| taken_up || fate == PushOutcome::Accepted) {
            depot.hold(&label, rest).await;
        }
    }

    fn log(&self, label: &Label, fate: &PushOutcome, counted: bool, word: &'static str, took: Duration) {
        metrics::counter!("tenure_pushes_total", "outcome" => word).increment(1);
        metrics::histogram!("tenure_push_seconds").record(took);
        let queue = &self.queue.name;
        tracing::debug!(queue.name = %queue, task.id = %label.task, attempt.number = label.attempt,
            delivery.id = label.delivery_id, delivery.number = label.number, outcome = word, "pushed");
        if let PushOutcome::Rejected { message } = fate
            && counted
        {
            tracing::warn!(queue.name = %queue, task.id = %label.task, attempt.number = label.attempt,
                delivery.id = label.delivery_id, reason = message, "the worker rejected a task: the attempt failed");
        }
    }
}

impl Depot {
    /// Ends when a delivery must be given up because the engine stops. Others repeat it.
    async fn last_wait(&self) {
        self.engine.shared.stopping.cancelled().await;
        tokio::time::sleep(LAST_WAIT).await;
    }

    /// Notes what came of a delivery. Returns whether it counted: not if the attempt has started or ended meanwhile, or
    /// if another delivery of it is on its way.
    async fn note(&self, label: &Label, outcome: PushOutcome) -> bool {
        let pushed = Pushed { row: label.row, attempt_id: label.attempt_id, delivery: label.number, outcome };
        match self.engine.ask(Lane::Work, Command::Pushed(pushed), 0, variant!(Done)).await {
            Ok(counted) => counted.unwrap_or(false),
            Err(error) => {
                // It is repeated when the time of this delivery is over.
                tracing::warn!(task.id = %label.task, delivery.id = label.delivery_id, %error,
                    "cannot record the outcome of a push");
                true
            }
        }
    }

    /// Whether a worker has started the attempt, or has ended it.
    async fn was_taken_up(&self, label: &Label) -> bool {
        if let Ok(Some(running)) = self.engine.shared.store.in_flight(label.task).await
            && running.attempt_id == label.attempt_id
        {
            return running.started_at().is_some();
        }
        let attempts = self.engine.attempts(label.task, &Reach::All).await;
        attempts.ok().flatten().unwrap_or_default().iter().any(|attempt| match attempt {
            AttemptView::Open(running) => running.attempt_id == label.attempt_id && running.started_at().is_some(),
            AttemptView::Closed(closed) => closed.id == label.attempt_id && closed.worker.is_some(),
        })
    }

    /// Keeps an exchange open as long as its attempt is.
    async fn hold(&self, label: &Label, mut exchange: BoxFuture<'_, ()>) {
        let shared = &self.engine.shared;
        loop {
            tokio::select! {
                () = &mut exchange => return,
                () = shared.stopping.cancelled() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
            match shared.store.in_flight(label.task).await {
                Ok(Some(running)) if running.attempt_id == label.attempt_id => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }
}
