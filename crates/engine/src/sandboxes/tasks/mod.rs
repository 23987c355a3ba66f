//! Tasks that run in sandboxes: a courier that gives every attempt a sandbox of its own.
//!
//! A delivery places the sandbox and leaves the rest to a task of its own, the [`Attempt`](attempt::Attempt). Nothing runs
//! before the attempt is started in the store, and only one control plane can start it: another one that has the same
//! delivery finds the same sandbox by the id of the attempt, and steps back. From its start on, the end of the sandbox is
//! the end of the lease, so that neither outlives the other when the control plane that drives them dies.

mod attempt;
mod script;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::AttemptId;
use tenure_core::command::Reach;
use tenure_core::queue::{Push, QueueSettings};
use tenure_core::sandbox::{Sandbox, State};
use tenure_core::task::SandboxRun;
use tenure_core::time::DurationMs;
use tenure_store::{NewSandbox, NotPlaced, Placed, RequestKey};

use super::create::Waiting;
use super::{Caller, ErrorClass, Request, SandboxError, Sandboxes, lock};
use crate::delivery::{Courier, Handover, Outcome, Parcel};
use crate::engine::Engine;
use crate::random::random_bits;
use attempt::Attempt;

/// An id that is taken is drawn again this often.
const DRAWS: usize = 8;
/// How soon room is looked for again.
const NO_ROOM_MS: DurationMs = 2_000;
/// No sandbox is made for less than this.
const MIN_TTL_MS: DurationMs = 1_000;

/// Runs the tasks of queues whose push URL is `sandbox:` or `sandbox:` and the name of a template.
pub struct SandboxCourier {
    engine: Engine,
    sandboxes: Sandboxes,
    driven: Driven,
}

/// The attempts that this control plane drives, and whether each has its sandbox.
type Driven = Arc<Mutex<HashMap<AttemptId, bool>>>;

impl fmt::Debug for SandboxCourier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxCourier").field("driven", &lock(&self.driven).len()).finish_non_exhaustive()
    }
}

/// An attempt that is driven here until this is dropped.
#[derive(Debug)]
struct Driving {
    driven: Driven,
    attempt: AttemptId,
}

impl Driving {
    /// Otherwise says what a second delivery of the attempt means.
    fn begin(driven: &Driven, attempt: AttemptId) -> Result<Self, Outcome> {
        match lock(driven).entry(attempt) {
            Entry::Vacant(entry) => {
                entry.insert(false);
                Ok(Self { driven: Arc::clone(driven), attempt })
            }
            Entry::Occupied(entry) if *entry.get() => Err(Outcome::Duplicate),
            // It may still find no room. Only the last delivery of an attempt counts, so this one must not say that it has.
            Entry::Occupied(_) => Err(Outcome::PutOff { after_ms: Some(NO_ROOM_MS) }),
        }
    }

    fn has_its_sandbox(&self) {
        lock(&self.driven).insert(self.attempt, true);
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        lock(&self.driven).remove(&self.attempt);
    }
}

/// A sandbox that has its place.
struct InPlace {
    row: Sandbox,
    /// Tells how its spawn ends, as far as this control plane learns of it; `None` if it runs already.
    spawn: Option<Waiting>,
    /// This delivery made it.
    is_mine: bool,
}

impl Sandboxes {
    /// What runs tasks in sandboxes, for [`Engine::deliver`].
    pub fn courier(&self, engine: &Engine) -> Arc<dyn Courier> {
        Arc::new(SandboxCourier { engine: engine.clone(), sandboxes: self.clone(), driven: Arc::default() })
    }

    /// Gives the sandbox of an attempt its place. The spawn queue is for users: a task waits in its own queue.
    async fn place_attempt(
        &self,
        parcel: &Parcel,
        request: &Request,
        caller: &Caller,
    ) -> Result<InPlace, SandboxError> {
        let mut prepared = self.prepare(request, caller).await?;
        // Until the attempt is started, its lease is as long as its delivery may take.
        prepared.ttl_ms = parcel.grant.expires_at.since(self.now().await?).max(MIN_TTL_MS);
        // The end is moved with every heartbeat, so a short maximum does not keep a task from running.
        if prepared.limits.max_ttl_ms > 0 {
            prepared.ttl_ms = prepared.ttl_ms.min(prepared.limits.max_ttl_ms);
        }
        let attempt = parcel.grant.attempt_id;
        // The first one may have ended before the attempt began, for want of room or with its control plane.
        for key in [format!("attempt:{attempt}"), format!("attempt:{attempt}:{}", parcel.number())] {
            // No request of a user has this fingerprint, so that none can come in between.
            let key: RequestKey = (key.into(), [0; 32]);
            if let Some(row) = self.claim_warm(&prepared, request, caller, Some(key.clone())).await?
                && matches!(row.state, State::Running | State::Unhealthy)
            {
                return Ok(InPlace { row, spawn: None, is_mine: true });
            }
            let new = |id| NewSandbox { queue: None, ..self.new_sandbox(id, &prepared, caller, Some(key.clone())) };
            let (placed, driving) = self.draw(new, &prepared).await?;
            match placed {
                Placed::On(row, worker, lease) => {
                    self.recorded(1);
                    let spawn = Some(self.wait_for(&row.id));
                    self.start_spawn(driving, (*row).clone(), *worker, lease);
                    return Ok(InPlace { row: *row, spawn, is_mine: true });
                }
                Placed::Queued(row) | Placed::Known(row) => {
                    let spawn = match row.state {
                        State::Running | State::Unhealthy => None,
                        State::Creating => Some(self.wait_for(&row.id)),
                        State::Idle | State::Error | State::Expired | State::Destroyed => continue,
                    };
                    return Ok(InPlace { row: *row, spawn, is_mine: false });
                }
            }
        }
        Err(SandboxError::unavailable("sandbox_lost", "the sandbox of the attempt ended before the attempt began"))
    }

    /// As for users, but the want of room is not an event: the task tries again.
    async fn draw(
        &self,
        new: impl Fn(Arc<str>) -> NewSandbox,
        prepared: &super::create::Prepared,
    ) -> Result<(Placed, super::spawn::Driving), SandboxError> {
        for _ in 0..DRAWS {
            let id: Arc<str> = format!("sb-{:08x}", random_bits() as u32).into();
            let Some(driving) = self.begin_driving(&id) else { continue };
            match self.rows().place_sandbox(new(id), prepared.limits.caps, &prepared.rules).await? {
                Ok(placed) => return Ok((placed, driving)),
                Err(NotPlaced::IdTaken) => {}
                Err(NotPlaced::NoPlace(why) | NotPlaced::QueueFull(why)) => return Err(why.into()),
                Err(NotPlaced::KeyTaken) => {
                    let message = "the idempotency key of the attempt belongs to another request";
                    return Err(SandboxError::conflict("idempotency_key_taken", message));
                }
                Err(NotPlaced::Gone) => return Err(SandboxError::internal("the row of a new sandbox is gone")),
            }
        }
        Err(SandboxError::internal("no free sandbox id was found"))
    }
}

impl SandboxCourier {
    async fn hand_over(&self, parcel: Parcel) -> Outcome {
        let run = parcel.body.envelope.as_ref().and_then(|envelope| envelope.sandbox.clone());
        let (Some(run), Some(template)) = (run, parcel.push.sandbox_template()) else {
            // The queue was changed between the grant and this delivery. The next one sees it as it is.
            return Outcome::Withheld;
        };
        let driving = match Driving::begin(&self.driven, parcel.grant.attempt_id) {
            Ok(driving) => driving,
            Err(outcome) => return outcome,
        };
        let (request, caller) = (request(&parcel, &run, template), caller(&parcel));
        match self.sandboxes.place_attempt(&parcel, &request, &caller).await {
            Ok(in_place) => {
                driving.has_its_sandbox();
                let engine = self.engine.clone();
                let attempt = Attempt::new(engine, self.sandboxes.clone(), parcel, run, caller, &in_place.row);
                self.engine.deliveries.spawn(async move {
                    attempt.drive(in_place).await;
                    drop(driving);
                });
                Outcome::Accepted
            }
            Err(error) => {
                tracing::debug!(task.id = %parcel.grant.task, attempt.number = parcel.grant.attempt, reason = &*error.reason,
                    "no sandbox for a task: {error}");
                refusal(&error)
            }
        }
    }
}

impl Courier for SandboxCourier {
    fn serves(&self, settings: &QueueSettings) -> bool {
        settings.runs_sandboxes()
    }

    fn check(&self, _: &Push) -> Result<(), String> {
        Ok(())
    }

    fn deliver(&self, parcel: Parcel) -> BoxFuture<'_, Handover> {
        self.hand_over(parcel).map(Handover::from).boxed()
    }
}

/// What a sandbox that was refused means for the attempt.
fn refusal(error: &SandboxError) -> Outcome {
    match error.class {
        ErrorClass::ResourceLimit => Outcome::NoRoom { why: error.message.as_str().into(), after_ms: NO_ROOM_MS },
        ErrorClass::NotFound | ErrorClass::BadRequest | ErrorClass::Forbidden => {
            Outcome::Rejected { message: format!("no sandbox for the task: {error}") }
        }
        ErrorClass::Conflict | ErrorClass::Unavailable | ErrorClass::Timeout | ErrorClass::Internal => Outcome::Failed,
    }
}

/// Quotas, policies and templates are those of whoever submitted the task.
fn caller(parcel: &Parcel) -> Caller {
    Caller {
        tenant: Arc::clone(&parcel.body.tenant),
        owner: parcel.body.owner.clone(),
        reach: Reach::All,
        actor: format!("task:{}", parcel.grant.task).into(),
        request_id: None,
    }
}

fn request(parcel: &Parcel, run: &SandboxRun, template: &str) -> Request {
    let grant = &parcel.grant;
    let template = run.template.as_deref().unwrap_or(template);
    let metadata = [
        ("tenure.task", grant.task.to_string()),
        ("tenure.queue", parcel.queue.to_string()),
        ("tenure.attempt", grant.attempt.to_string()),
        ("tenure.fence", grant.fence.0.to_string()),
    ];
    Request {
        image: run.image.clone(),
        memory_mb: run.memory_mb,
        vcpus: run.vcpus,
        disk_mb: run.disk_mb,
        template: Some(template.to_owned()).filter(|template| !template.is_empty()),
        env: run.env.clone(),
        metadata: metadata.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Request::default()
    }
}
