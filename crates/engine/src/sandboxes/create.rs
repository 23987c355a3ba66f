//! Creating sandboxes: what a request comes to, whether it is admitted, and where it goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_core::WorkerId;
use tenure_core::sandbox::placement::{self, NoPlace, Rules, Worker};
use tenure_core::sandbox::reconcile::{self, Answer, Owner};
use tenure_core::sandbox::template::{self, EGRESS_ALLOW_LIST, Request, Template};
use tenure_core::sandbox::{Change, Sandbox, SandboxId, Spec, State, policy};
use tenure_core::time::DurationMs;
use tenure_store::{
    NewSandbox, NewSandboxEvent, NotPlaced, Page, Placed, Queueing, RequestKey, ResourceLease, SandboxFilter,
    SpawnTerms, TemplateRow,
};
use tokio::sync::oneshot;

use super::calls::runtime;
use super::error::span;
use super::limits::Limits;
use super::spawn::Driving;
use super::templates::pool_key;
use super::{Caller, ErrorClass, Overflow, SandboxError, Sandboxes, TENANT_WIDE, event, lock};
use crate::random::random_bits;

/// An id that is taken is drawn again this often.
const DRAWS: usize = 8;
/// Another control plane may end a spawn: its row is read this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A read of a sandbox does not wait longer for its worker.
const REFRESH_WITHIN: Duration = Duration::from_secs(5);

/// A sandbox that was created.
#[derive(Debug, Clone)]
pub struct Created {
    /// `creating` if nobody waited for more.
    pub row: Sandbox,
    /// The idempotency key has made it before.
    pub is_repeat: bool,
}

/// Whether a sandbox would be created now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    pub allowed: bool,
    pub queueable: bool,
    pub reason: Option<&'static str>,
    pub active_sandboxes: u64,
    pub max_sandboxes: u64,
    pub active_owner_sandboxes: Option<u64>,
    pub max_owner_sandboxes: Option<u64>,
    pub max_ttl_ms: Option<DurationMs>,
    pub selected_worker: Option<WorkerId>,
    pub eligible_workers: Vec<WorkerId>,
    pub worker_reason: Option<&'static str>,
}

/// A request with everything filled in.
pub(super) struct Prepared {
    pub spec: Arc<Spec>,
    pub ttl_ms: DurationMs,
    pub limits: Limits,
    /// The pool whose warm sandboxes fit.
    pub pool: Option<Arc<str>>,
    /// How workers are compared, with those that can be called.
    pub rules: Rules,
}

impl Prepared {
    fn check_ttl(&self) -> Result<(), SandboxError> {
        let max = self.limits.max_ttl_ms;
        if max > 0 && self.ttl_ms > max {
            let message = format!("the time to live is longer than the maximum of {}", span(max));
            return Err(SandboxError::new(ErrorClass::ResourceLimit, "max_ttl", message));
        }
        Ok(())
    }
}

impl Sandboxes {
    /// Creates a sandbox. With `wait` it returns when the sandbox runs or has failed, otherwise when its row stands. The
    /// spawn goes on if the caller stops waiting.
    pub async fn create(
        &self,
        request: &Request,
        caller: &Caller,
        key: Option<RequestKey>,
        wait: bool,
    ) -> Result<Created, SandboxError> {
        let prepared = self.prepare(request, caller).await?;
        prepared.check_ttl()?;
        if let Some(row) = self.claim_warm(&prepared, request, caller, key.clone()).await? {
            self.audit(caller, "spawn", &row, Ok(()), Some("warm".to_owned())).await;
            return Ok(Created { row, is_repeat: false });
        }
        let new = |id| self.new_sandbox(id, &prepared, caller, key.clone());
        let placed = self.place(new, &prepared).await;
        let (placed, driving) =
            placed.inspect_err(|_| self.measure("spawn", &prepared.spec.provider, false, Duration::ZERO))?;
        let (row, is_repeat) = match placed {
            Placed::On(row, worker, lease) => {
                self.recorded(1);
                let waiting = wait.then(|| self.wait_for(&row.id));
                self.start_spawn(driving, (*row).clone(), *worker, lease);
                return self.await_outcome(*row, waiting, caller).await;
            }
            Placed::Queued(row) => {
                self.queued();
                (*row, false)
            }
            Placed::Known(row) => (*row, true),
        };
        drop(driving);
        let waiting = (wait && row.state == State::Creating).then(|| self.wait_for(&row.id));
        let created = self.await_outcome(row, waiting, caller).await?;
        Ok(Created { is_repeat, ..created })
    }

    /// Gives a new row a place, under an id that nobody has. It counts as driven from before it stands, so that
    /// reconciliation leaves it alone.
    pub(super) async fn place(
        &self,
        new: impl Fn(SandboxId) -> NewSandbox,
        prepared: &Prepared,
    ) -> Result<(Placed, Driving), SandboxError> {
        for _ in 0..DRAWS {
            let id: SandboxId = format!("sb-{:08x}", random_bits() as u32).into();
            let Some(driving) = self.begin_driving(&id) else { continue };
            match self.rows().place_sandbox(new(id), prepared.limits.caps, &prepared.rules).await? {
                Ok(placed) => return Ok((placed, driving)),
                Err(NotPlaced::IdTaken) => {}
                Err(NotPlaced::NoPlace(why)) => return Err(self.no_place(why).await),
                Err(NotPlaced::QueueFull(why)) => {
                    let error = SandboxError::from(why);
                    let message = format!("{}, and the spawn queue is full", error.message);
                    return Err(SandboxError::new(ErrorClass::ResourceLimit, "spawn_queue_full", message));
                }
                Err(NotPlaced::KeyTaken) => {
                    let message = "the idempotency key belongs to another request";
                    return Err(SandboxError::conflict("idempotency_key_taken", message));
                }
                Err(NotPlaced::Gone) => return Err(SandboxError::internal("the row of a new sandbox is gone")),
            }
        }
        Err(SandboxError::internal("no free sandbox id was found"))
    }

    async fn no_place(&self, why: NoPlace) -> SandboxError {
        let error = SandboxError::from(why);
        self.record(vec![super::system_event("resource.limit", json!({"reason": error.reason}))]).await;
        error
    }

    pub(super) fn new_sandbox(
        &self,
        id: SandboxId,
        prepared: &Prepared,
        caller: &Caller,
        key: Option<RequestKey>,
    ) -> NewSandbox {
        let settings = self.settings();
        let queue = (settings.spawn_overflow == Overflow::Queue)
            .then_some(Queueing { timeout_ms: settings.spawn_queue_timeout_ms, places: settings.max_spawn_queue });
        NewSandbox {
            id,
            request_id: self.request_id(),
            tenant: Arc::clone(&caller.tenant),
            owner: caller.owner.clone(),
            spec: Arc::clone(&prepared.spec),
            pool: None,
            ttl_ms: prepared.ttl_ms,
            spawn_timeout_ms: self.spawn_time(&prepared.spec),
            lease: self.lease_terms(),
            key,
            queue,
            told: created,
        }
    }

    /// Until when a spawn and its setup must be done.
    pub(super) fn spawn_time(&self, spec: &Spec) -> DurationMs {
        let settings = self.settings();
        let setup = if template::needs_setup(spec) { self.setup_time() } else { 0 };
        settings.spawn_timeout_ms.saturating_add(setup)
    }

    /// Fills in template, snapshot and defaults, and checks what does not depend on room.
    pub(super) async fn prepare(&self, request: &Request, caller: &Caller) -> Result<Prepared, SandboxError> {
        let mut request = request.clone();
        let name = request.template.as_deref().filter(|name| !name.is_empty());
        let terms = self.rows().spawn_terms(&caller.tenant, caller.owner.as_deref(), TENANT_WIDE, name).await?;
        let SpawnTerms { template, policies, quotas, workers } = terms;
        let template = template_of(&request, template)?;
        self.fill_from_snapshot(&mut request, caller).await?;
        let settings = self.settings();
        let body = template.as_ref().map(|(_, _, template)| template);
        let resolved = template::resolve(&request, body, &settings.defaults)
            .map_err(|error| SandboxError::bad_request("invalid", error.to_string()))?;
        check_hosts(&resolved.spec.allowed_hosts, &workers)?;
        self.env_of(&caller.tenant, &resolved.spec)?;
        policy::judge(&super::limits::policies(policies)?, &resolved.spec)
            .map_err(|denied| SandboxError::new(ErrorClass::Forbidden, "policy_denied", denied.to_string()))?;
        let limits = self.limits_by(&quotas, caller.owner.as_deref());
        let pool = template.filter(|_| request.fits_warm());
        let pool = pool.and_then(|(name, version, template)| {
            (self.pool_target(&caller.tenant, &name, &template) > 0).then(|| pool_key(&caller.tenant, &name, version))
        });
        let rules = self.rules_of(&workers);
        Ok(Prepared { spec: Arc::new(resolved.spec), ttl_ms: resolved.ttl_ms, limits, pool, rules })
    }

    /// A snapshot begins a sandbox of the same image and provider.
    async fn fill_from_snapshot(&self, request: &mut Request, caller: &Caller) -> Result<(), SandboxError> {
        let Some(id) = request.snapshot.clone().filter(|id| !id.is_empty()) else { return Ok(()) };
        let snapshot = self.snapshot(&id, &caller.reach).await?;
        let same = |own: &Option<String>, of_snapshot: &str| {
            own.as_deref().is_none_or(|own| own.is_empty() || placement::same_provider(own, of_snapshot))
        };
        if !same(&request.image, &snapshot.image) || !same(&request.provider, &snapshot.provider) {
            let (image, provider) = (&snapshot.image, &snapshot.provider);
            let message = format!("snapshot {id} needs image '{image}' and provider '{provider}'");
            return Err(SandboxError::bad_request("snapshot_mismatch", message));
        }
        request.image = Some(snapshot.image);
        request.provider = Some(snapshot.provider);
        Ok(())
    }

    /// Hosts are refused where nobody would keep to them.
    pub(super) async fn check_hosts(&self, hosts: &[String]) -> Result<(), SandboxError> {
        if hosts.is_empty() { Ok(()) } else { check_hosts(hosts, &self.rows().sandbox_workers().await?) }
    }

    /// Whether a request would be served now. Changes nothing.
    pub async fn admission(&self, request: &Request, caller: &Caller) -> Result<Admission, SandboxError> {
        let prepared = self.prepare(request, caller).await?;
        let owner = caller.owner.as_deref();
        let (fleet, now) = self.rows().fleet(&caller.tenant, owner).await?;
        let caps = prepared.limits.caps;
        let mut decision = Admission {
            active_sandboxes: fleet.counts.total,
            max_sandboxes: caps.total,
            active_owner_sandboxes: owner.map(|_| fleet.counts.owner),
            max_owner_sandboxes: owner.map(|_| caps.per_owner),
            max_ttl_ms: Some(prepared.limits.max_ttl_ms).filter(|max| *max > 0),
            eligible_workers: placement::eligible_workers(&fleet, &prepared.spec, &prepared.rules, now),
            ..Admission::default()
        };
        if let Err(error) = prepared.check_ttl() {
            debug_assert_eq!(error.reason, "max_ttl");
            decision.reason = Some("max_ttl");
            return Ok(decision);
        }
        match placement::place(&fleet, &prepared.spec, caps, &prepared.rules, &[], now) {
            Ok(worker) => (decision.allowed, decision.selected_worker) = (true, Some(worker)),
            Err(why) => {
                let can_queue = self.settings().spawn_overflow == Overflow::Queue;
                decision.queueable = can_queue && why.is_queueable();
                decision.reason = Some(why.reason());
                if let NoPlace::WorkerUnavailable { why } = why {
                    decision.worker_reason = Some(why);
                }
            }
        }
        Ok(decision)
    }

    /// A row, refreshed by its worker if that answers.
    pub async fn get(&self, id: &str, caller: &Caller) -> Result<Sandbox, SandboxError> {
        let row = self.row(id, &caller.reach).await?;
        let row = match self.refresh(&row).await {
            Ok(fresh) => fresh.unwrap_or(row),
            Err(error) => {
                tracing::debug!(sandbox.id = id, "a sandbox is shown as it is stored: {error}");
                row
            }
        };
        if row.state == State::Destroyed {
            return Err(SandboxError::not_found("sandbox", id));
        }
        Ok(row)
    }

    /// A row without asking its worker, destroyed or not.
    pub async fn stored(&self, id: &str, caller: &Caller) -> Result<Option<Sandbox>, SandboxError> {
        Ok(self.rows().sandbox(id, &caller.reach).await?)
    }

    /// Newest first. Without states: all but destroyed and warm ones.
    pub async fn list(&self, mut filter: SandboxFilter) -> Result<Page<Sandbox>, SandboxError> {
        if filter.states.is_empty() {
            let shown = |state: &State| !matches!(state, State::Idle | State::Destroyed);
            filter.states = State::ALL.into_iter().filter(shown).collect();
        }
        Ok(self.rows().sandboxes(&filter).await?)
    }

    async fn refresh(&self, row: &Sandbox) -> Result<Option<Sandbox>, SandboxError> {
        if !matches!(row.state, State::Running | State::Idle | State::Unhealthy) {
            return Ok(None);
        }
        let (worker, target) = self.owner_of(row).await?;
        let owner = Owner::of(worker.as_ref(), self.settings().freshness_ms, self.now().await?);
        let (Some(worker), Some(target)) = (worker, target) else { return Ok(None) };
        if !matches!(owner, Owner::Online | Owner::Draining) {
            return Ok(None);
        }
        match self.ask(row, &target, REFRESH_WITHIN).await {
            // The row as it is stored will do.
            Answer::Failed => Ok(None),
            answer => self.apply_answer(row, &worker, &target, &owner, &answer).await,
        }
    }

    pub(super) async fn ask(&self, row: &Sandbox, target: &super::Target, within: Duration) -> Answer {
        let terms = self.terms(None, within);
        match Self::within(&terms, self.workers().status(target, &terms, &runtime(row))).await {
            Ok(status) => Answer::State(status.state),
            Err(error) => match error.class() {
                Some(super::CallClass::NotFound | super::CallClass::Destroyed) => Answer::Absent,
                _ => {
                    tracing::debug!(
                        sandbox.id = &*row.id,
                        worker.id = &*target.worker,
                        "no status of a sandbox: {error}"
                    );
                    Answer::Failed
                }
            },
        }
    }

    /// Asks the worker about a runtime that it did not find, and returns the row as it is then.
    pub(super) async fn look_into(&self, row: &Sandbox) -> Result<Option<Sandbox>, SandboxError> {
        if let Some(after) = self.refresh(row).await? {
            return Ok(Some(after));
        }
        Ok(self.rows().sandbox(&row.id, &tenure_core::command::Reach::All).await?)
    }

    // Waiting for the end of a spawn.

    pub(super) fn wait_for(&self, id: &SandboxId) -> Waiting {
        let (sender, outcome) = oneshot::channel();
        lock(&self.inner.outcomes).entry(Arc::clone(id)).or_default().push(sender);
        Waiting { sandboxes: self.clone(), id: Arc::clone(id), outcome }
    }

    /// Tells everyone who waits for a spawn here how it ended.
    pub(super) fn ended(&self, id: &str, outcome: &Result<Sandbox, SandboxError>) {
        let waiting = lock(&self.inner.outcomes).remove(id).unwrap_or_default();
        for sender in waiting {
            let _ = sender.send(outcome.clone());
        }
    }

    pub(super) async fn await_outcome(
        &self,
        row: Sandbox,
        waiting: Option<Waiting>,
        caller: &Caller,
    ) -> Result<Created, SandboxError> {
        let began = Instant::now();
        let Some(mut waiting) = waiting else {
            self.audit(caller, "spawn", &row, Ok(()), Some("accepted".to_owned())).await;
            return Ok(Created { row, is_repeat: false });
        };
        let outcome = loop {
            tokio::select! {
                outcome = &mut waiting.outcome => break outcome.unwrap_or_else(|_| Err(SandboxError::stopping())),
                () = self.inner.shared.stopping.cancelled() => break Err(SandboxError::stopping()),
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let now = self.rows().sandbox(&row.id, &tenure_core::command::Reach::All).await?;
                    if let Some(ended) = now.filter(|row| row.state != State::Creating) {
                        break outcome_of(ended);
                    }
                }
            }
        };
        self.measure("spawn", &row.spec.provider, outcome.is_ok(), began.elapsed());
        self.audit(caller, "spawn", &row, outcome.as_ref().map(drop), None).await;
        Ok(Created { row: outcome?, is_repeat: false })
    }

    /// Drives a spawn until it has ended, apart from whoever asked for it.
    pub(super) fn start_spawn(&self, driving: Driving, row: Sandbox, worker: Worker, lease: ResourceLease) {
        let sandboxes = self.clone();
        self.inner.tasks.spawn(async move {
            let stopping = sandboxes.inner.shared.stopping.clone();
            tokio::select! {
                // Whoever starts next goes on with it.
                () = stopping.cancelled() => {}
                outcome = sandboxes.drive(row.clone(), worker, lease) => {
                    sandboxes.warmed(&row, outcome.is_ok()).await;
                    sandboxes.ended(&row.id, &outcome);
                }
            }
            drop(driving);
        });
    }
}

/// What is told of a new row.
fn created(row: &Sandbox) -> Vec<NewSandboxEvent> {
    let data = json!({"image": row.spec.image, "provider": row.spec.provider, "worker": row.worker});
    let mut events = vec![event("sandbox.created", row, Some(data))];
    if row.worker.is_none() {
        events.push(event("spawn.queued", row, None));
    }
    events
}

/// What is told of a warm sandbox that has an owner now.
pub(super) fn claimed(row: &Sandbox) -> Vec<NewSandboxEvent> {
    let mut events = created(row);
    events.push(event("sandbox.running", row, None));
    events
}

fn template_of(
    request: &Request,
    found: Option<TemplateRow>,
) -> Result<Option<(Arc<str>, i64, Template)>, SandboxError> {
    let Some(name) = request.template.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
    match found {
        Some(row) => {
            let template = super::templates::read(&row)?;
            Ok(Some((row.name, row.version, template)))
        }
        // Existing clients send both.
        None if request.image.as_deref().is_some_and(|image| !image.is_empty()) => Ok(None),
        None => Err(SandboxError::not_found("template", name)),
    }
}

fn check_hosts(hosts: &[String], workers: &[Worker]) -> Result<(), SandboxError> {
    if hosts.is_empty() || workers.iter().any(|worker| worker.can(EGRESS_ALLOW_LIST)) {
        return Ok(());
    }
    let message = "allowed_hosts: no worker enforces a list of hosts (capability egress_allow_list)";
    Err(SandboxError::bad_request("egress_allow_list_unsupported", message))
}

/// Somebody who waits for the end of a spawn.
pub(super) struct Waiting {
    sandboxes: Sandboxes,
    id: SandboxId,
    outcome: oneshot::Receiver<Result<Sandbox, SandboxError>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Another control plane may end the spawn: nobody here would clear up.
        self.outcome.close();
        let mut outcomes = lock(&self.sandboxes.inner.outcomes);
        if let Some(waiting) = outcomes.get_mut(&self.id) {
            waiting.retain(|sender| !sender.is_closed());
            if waiting.is_empty() {
                outcomes.remove(&self.id);
            }
        }
    }
}

/// What a row says about its spawn.
fn outcome_of(row: Sandbox) -> Result<Sandbox, SandboxError> {
    match row.state {
        State::Error => {
            let reason = row.reason.as_deref().unwrap_or("error").to_owned();
            let class =
                if reason == "spawn_queue_timeout" { ErrorClass::ResourceLimit } else { ErrorClass::Unavailable };
            let message = format!("sandbox {} could not be created: {reason}", row.id);
            Err(SandboxError { class, reason: reason.into(), message })
        }
        State::Destroyed | State::Expired => {
            Err(SandboxError::conflict("destroyed", format!("sandbox {} was destroyed while it was created", row.id)))
        }
        _ => Ok(row),
    }
}

impl Sandboxes {
    /// Applies what a worker says about a runtime.
    pub(super) async fn apply_answer(
        &self,
        row: &Sandbox,
        worker: &Worker,
        target: &super::Target,
        owner: &Owner,
        answer: &Answer,
    ) -> Result<Option<Sandbox>, SandboxError> {
        let Some(change) = reconcile::after_status(row, owner, answer) else { return Ok(None) };
        if change == Change::Recover {
            // Not without its lease: nobody could destroy it.
            let lease = self.lease_for(row, worker).await?;
            if let Err(error) = self.push_lease(row, target, lease).await {
                tracing::debug!(sandbox.id = &*row.id, "a lease could not be pushed: {error}");
            }
        }
        self.reconciled(row, &change).await
    }
}
