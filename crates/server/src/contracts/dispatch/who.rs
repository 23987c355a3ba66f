//! Who speaks for an attempt: its code by a capability token, or a worker wrapper by its own identity.

use std::sync::Arc;

use tenure_auth::Worker;
use tenure_contract::dispatch::AttemptRef;
use tenure_core::attempt::ClosedAttempt;
use tenure_core::command::emit::Proof;
use tenure_core::command::{Conflict, ConflictKind, Reach, Rejection};
use tenure_core::dag::definition::Runtime;
use tenure_core::task::Place;
use tenure_core::{AttemptId, LeaseToken, TaskId};
use tenure_engine::store::{AttemptView, TaskView};
use uuid::Uuid;

use super::{Capability, task_id};
use crate::access::task_token::{Presented, TaskBearer};
use crate::contracts::pull;
use crate::dispatch::DispatchFault;
use crate::dispatch::render::JobTask;
use crate::error::Fault;
use crate::state::App;

#[derive(Debug)]
pub enum Who {
    Task(Presented<Capability>),
    Worker(Worker),
}

/// A caller whose credential fits what the body says.
#[derive(Debug)]
pub struct Speaker {
    pub task: TaskId,
    pub attempt: u32,
    /// Absent only where the body left it out.
    token: Option<LeaseToken>,
    pub by: SpeaksBy,
    /// The worker that a credential of its own proves: it must hold the attempt.
    pub proven: Option<Arc<str>>,
}

#[derive(Debug)]
pub enum SpeaksBy {
    Task(TaskBearer<Capability>),
    /// The worker, if the credential or the body names it.
    Worker(Option<Arc<str>>),
}

impl Who {
    /// Holds the credential against the body.
    pub fn speaker(&self, app: &App, sent: &AttemptRef) -> Result<Speaker, Fault> {
        let task = task_id(&sent.task_id)?;
        if sent.attempt == 0 {
            return Err(Fault::malformed("attempt must be at least 1"));
        }
        let by = match self {
            Self::Task(presented) => {
                let mismatch = || {
                    let message = "the capability token is for another task or attempt";
                    DispatchFault::fault("capability_mismatch", message)
                };
                let bearer = presented.for_task(task).ok_or_else(mismatch)?;
                if bearer.verified.claims.attempt != sent.attempt {
                    return Err(mismatch());
                }
                SpeaksBy::Task(bearer)
            }
            Self::Worker(worker) => {
                let named = sent.worker_id.as_deref().map(|id| pull::speaks_as(app, worker, id)).transpose()?;
                SpeaksBy::Worker(named.or_else(|| worker.id.as_deref().map(Arc::from)))
            }
        };
        // A text of another shape is no token of ours: it is looked up as one that was never granted.
        let token = sent.lease_token.as_deref();
        let token = token.map(|text| LeaseToken::from_u128(Uuid::try_parse(text).map_or(0, |uuid| uuid.as_u128())));
        let proven = match self {
            Self::Task(_) => None,
            Self::Worker(worker) => worker.proven().map(Arc::from),
        };
        Ok(Speaker { task, attempt: sent.attempt, token, by, proven })
    }
}

impl Speaker {
    fn is_worker(&self) -> bool {
        matches!(self.by, SpeaksBy::Worker(_))
    }

    /// The lease token, if the body has it.
    pub fn sent_token(&self) -> Option<LeaseToken> {
        self.token
    }

    /// The lease token. Towards a wrapper the attempt of a function may leave it out while it runs: only the code that was
    /// invoked knows of the attempt.
    pub fn token(&self, seen: &Seen) -> Result<LeaseToken, Fault> {
        if let Some(token) = self.token {
            return Ok(token);
        }
        if !self.is_worker() || !seen.is_function() {
            return Err(Fault::malformed("lease_token is missing: it is in the answer to the claim"));
        }
        let place = &seen.view.place;
        let kind = match place {
            Place::Running(running) if running.attempt == self.attempt => return Ok(running.lease.token),
            place => match place.last_attempt().filter(|last| last.number == self.attempt) {
                Some(last) if last.receipt.is_none() && last.reason.yields_to_late_report() => {
                    ConflictKind::LeaseExpired
                }
                Some(_) => ConflictKind::AttemptClosed,
                None => ConflictKind::StaleAttempt,
            },
        };
        Err(Conflict::at(place, kind).into())
    }

    /// What shows that the caller holds the attempt. Only a wrapper may leave out the token.
    pub fn proof(&self, seen: &Seen) -> Result<Proof, Fault> {
        if let Some(token) = self.token {
            return Ok(Proof::Token(token));
        }
        match &self.by {
            SpeaksBy::Worker(_) if seen.is_function() => Ok(Proof::Pushed),
            SpeaksBy::Worker(Some(worker)) => Ok(Proof::Holder(Arc::clone(worker))),
            SpeaksBy::Worker(None) => Err(Fault::malformed("lease_token or worker_id is missing: send one of them")),
            SpeaksBy::Task(_) => Err(Fault::malformed("lease_token is missing: it is in the answer to the claim")),
        }
    }
}

/// A task of a job as the store has it.
#[derive(Debug)]
pub struct Seen {
    pub view: TaskView,
    pub task: JobTask,
}

impl Seen {
    /// Any task that is not one of a job is as if it did not exist.
    pub async fn of(app: &App, id: TaskId) -> Result<Self, Fault> {
        let view = app.engine.task(id, &Reach::All).await?.ok_or(Fault::Refused(Rejection::NotFound))?;
        let task = app.dispatch.job_task(&view.body).await?.ok_or(Fault::Refused(Rejection::NotFound))?;
        Ok(Self { view, task })
    }

    /// Whether a function of a cloud runs it.
    fn is_function(&self) -> bool {
        self.task.job.definition.runtime == Runtime::Lambda
    }

    /// An attempt that has ended, by its number.
    pub async fn closed(&self, app: &App, number: u32) -> Result<Option<Box<ClosedAttempt>>, Fault> {
        if let Some(last) = self.view.place.last_attempt().filter(|last| last.number == number) {
            return Ok(Some(Box::new(last.clone())));
        }
        let attempts = app.engine.attempts(self.view.body.id, &Reach::All).await?.unwrap_or_default();
        Ok(attempts.into_iter().find_map(|attempt| match attempt {
            AttemptView::Closed(closed) if closed.number == number => Some(closed),
            _ => None,
        }))
    }

    /// The id of an attempt by its number; one that was never granted has none.
    pub async fn attempt_id(&self, app: &App, number: u32) -> Result<AttemptId, Fault> {
        let nobody = AttemptId::from_u128(0);
        match &self.view.place {
            Place::Running(running) if running.attempt == number => return Ok(running.attempt_id),
            place if place.attempt() < number => return Ok(nobody),
            place => {
                if let Some(last) = place.last_attempt().filter(|last| last.number == number) {
                    return Ok(last.id);
                }
            }
        }
        let attempts = app.engine.attempts(self.view.body.id, &Reach::All).await?.unwrap_or_default();
        let found = attempts.iter().find_map(|attempt| match attempt {
            AttemptView::Closed(closed) => (closed.number == number).then_some(closed.id),
            AttemptView::Open(running) => (running.attempt == number).then_some(running.attempt_id),
        });
        Ok(found.unwrap_or(nobody))
    }
}
