//! Sandboxes from the control plane: who may have one, which worker gets it, what becomes of it.
//!
//! The manager knows no HTTP. It decides with `core/src/sandbox`, keeps its rows in the store and reaches workers through
//! the port [`Workers`]. Every step writes to the store what it is about to do before it asks a worker, so that a control
//! plane that dies leaves a row from which another goes on. No lock is held while a worker is called.

mod beats;
mod calls;
mod counts;
mod create;
mod destroy;
mod error;
mod events;
mod fleet;
mod leases;
mod limits;
mod pool;
mod queue;
mod reconcile;
mod settings;
mod setup;
mod snapshots;
mod spawn;
mod tasks;
mod telling;
mod templates;
pub mod workers;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::{Rules, Worker};
use tenure_core::sandbox::{Change, Refused, Sandbox, SandboxId, State};
use tenure_core::time::Timestamp;
use tenure_store::{Changed, NewSandboxEvent, OperationAudit, SandboxStore};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

use crate::engine::{Engine, Shared};
use crate::random::random_bits;

pub use beats::{BeatReply, Orphan, Renewed};
pub use calls::{ExecGuard, Found, Route};
pub use counts::{LeaseCounts, PoolStatus, SandboxCounts, WarmPool};
pub use create::{Admission, Created};
pub use destroy::Ended;
pub use error::{ErrorClass, SandboxError};
pub use events::{EventFilter, SandboxEvents, SandboxNotice};
pub use limits::{OwnerUsage, TENANT_WIDE};
pub use settings::{Overflow, SandboxSettings};
pub use tasks::SandboxCourier;
pub use templates::TemplateView;
pub use tenure_core::sandbox::template::{Defaults, Request, Template};
pub use workers::{CallClass, CallError, CallTerms, RpcLease, RuntimeRef, Target, Workers};

/// How many spawns are under way at once.
const MAX_SPAWNS: usize = 64;
/// How many archives are on their way at once.
const MAX_ARCHIVES: usize = 4;
/// Of how many operations and providers the longest time is remembered.
const MAX_MEASURED: usize = 256;

/// Who asks.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Whose a new sandbox becomes.
    pub tenant: Arc<str>,
    pub owner: Option<Arc<str>>,
    /// What the caller may see and change.
    pub reach: Reach,
    /// For the audit.
    pub actor: Arc<str>,
    pub request_id: Option<Arc<str>>,
}

impl Caller {
    /// The control plane itself.
    fn system() -> Self {
        let tenant = "default".into();
        Self { tenant, owner: None, reach: Reach::All, actor: "system".into(), request_id: None }
    }
}

/// The manager of sandboxes. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Sandboxes {
    inner: Arc<Manager>,
}

struct Manager {
    shared: Arc<Shared>,
    rows: Arc<dyn SandboxStore>,
    workers: Arc<dyn Workers>,
    settings: RwLock<Arc<SandboxSettings>>,
    /// Spawns that this control plane drives.
    driving: Mutex<HashSet<SandboxId>>,
    /// Who waits for the end of a spawn.
    outcomes: Mutex<HashMap<SandboxId, Vec<Outcome>>>,
    /// How many commands run in a sandbox, as far as this control plane knows.
    execs: Mutex<HashMap<SandboxId, usize>>,
    spawns: Semaphore,
    archives: Semaphore,
    /// There may be room for what waits.
    room: Notify,
    /// A warm sandbox was taken.
    refill: Notify,
    /// Events were recorded.
    recorded: Notify,
    /// How many reasons there were so far to look at all sandboxes; the start is one.
    doubts: watch::Sender<u64>,
    /// How many of these the last look knew.
    looked: AtomicU64,
    /// Workers that were stale at the last look.
    stale: Mutex<HashSet<WorkerId>>,
    longest: Mutex<HashMap<String, f64>>,
    /// Pools whose sandboxes fail: how often in a row, and until when they are left alone.
    cold: Mutex<HashMap<Arc<str>, (u32, Instant)>>,
    /// Events that nobody waits for.
    told: mpsc::Sender<telling::Told>,
    tasks: TaskTracker,
}

type Outcome = oneshot::Sender<Result<Sandbox, SandboxError>>;

impl fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandboxes").field("workers", &self.inner.workers).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts to manage sandboxes on this engine. Called once: what happens by itself ends with the engine.
    pub fn sandboxes(&self, settings: SandboxSettings, workers: Arc<dyn Workers>) -> Sandboxes {
        let rows: Arc<dyn SandboxStore> = Arc::clone(&self.shared.store) as _;
        let (told, untold) = mpsc::channel(telling::WAITING);
        let inner = Manager {
            shared: Arc::clone(&self.shared),
            rows,
            workers,
            settings: RwLock::new(Arc::new(settings)),
            driving: Mutex::default(),
            outcomes: Mutex::default(),
            execs: Mutex::default(),
            spawns: Semaphore::new(MAX_SPAWNS),
            archives: Semaphore::new(MAX_ARCHIVES),
            room: Notify::new(),
            refill: Notify::new(),
            recorded: Notify::new(),
            doubts: watch::Sender::new(1),
            looked: AtomicU64::new(0),
            stale: Mutex::default(),
            longest: Mutex::default(),
            cold: Mutex::default(),
            told,
            tasks: self.tracker().clone(),
        };
        let sandboxes = Sandboxes { inner: Arc::new(inner) };
        sandboxes.start();
        sandboxes.inner.tasks.spawn(sandboxes.clone().keep_told(untold));
        sandboxes
    }
}

impl Sandboxes {
    fn start(&self) {
        let stopping = &self.inner.shared.stopping;
        // Whatever they wait for: who starts next goes on.
        let spawn = |task| drop(self.inner.tasks.spawn(stopping.clone().run_until_cancelled_owned(task)));
        spawn(boxed(self.clone().keep_queue()));
        spawn(boxed(self.clone().keep_reconciled()));
        spawn(boxed(self.clone().keep_reaped()));
        spawn(boxed(self.clone().keep_warm()));
        spawn(boxed(self.clone().keep_pruned()));
        spawn(boxed(self.clone().keep_counted()));
    }

    /// Replaces the settings. What is under way goes on with the old ones.
    pub fn replace_settings(&self, settings: SandboxSettings) {
        *self.inner.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.inner.room.notify_one();
        self.inner.refill.notify_one();
    }

    pub fn settings(&self) -> Arc<SandboxSettings> {
        Arc::clone(&self.inner.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn rows(&self) -> &dyn SandboxStore {
        &*self.inner.rows
    }

    fn workers(&self) -> &dyn Workers {
        &*self.inner.workers
    }

    async fn now(&self) -> Result<Timestamp, SandboxError> {
        Ok(self.inner.shared.store.now().await?)
    }

    /// How workers are compared, with those that this control plane can call.
    async fn rules(&self) -> Result<Rules, SandboxError> {
        Ok(self.rules_of(&self.rows().sandbox_workers().await?))
    }

    fn rules_of(&self, workers: &[Worker]) -> Rules {
        let callable = workers.iter().filter(|worker| self.workers().can_call(worker));
        Rules { callable: Some(callable.map(|worker| Arc::clone(&worker.id)).collect()), ..self.settings().rules() }
    }

    /// The worker, if it can be called.
    fn target(&self, worker: &Worker) -> Option<Target> {
        let rpc_url = worker.capacity.rpc_url.as_deref().filter(|_| self.workers().can_call(worker))?;
        Some(Target {
            worker: Arc::clone(&worker.id),
            rpc_url: rpc_url.into(),
            capabilities: worker.capabilities.clone().into(),
        })
    }

    /// Ids begin with the name of the control plane, so that another sees whether the one that drives a spawn is there.
    fn request_id(&self) -> Arc<str> {
        let name = self.inner.shared.duties.name();
        let tail = random_bits();
        let (a, b) = ((tail >> 48) as u16, tail & 0xffff_ffff_ffff);
        let (head, middle) = name.split_at_checked(8).unwrap_or((name, ""));
        let (second, third) = middle.split_at_checked(4).unwrap_or((middle, ""));
        format!("req-{head}-{second}-{third}-{a:04x}-{b:012x}").into()
    }

    fn terms(&self, lease: Option<RpcLease>, within: Duration) -> CallTerms {
        CallTerms { request_id: self.request_id(), lease, within }
    }

    /// Waits no longer for a worker than the terms of a call say.
    async fn within<T>(
        terms: &CallTerms,
        call: impl Future<Output = Result<T, CallError>> + Send,
    ) -> Result<T, CallError> {
        match tokio::time::timeout(terms.within, call).await {
            Ok(answer) => answer,
            Err(_) => {
                let message = format!("the worker did not answer within {} s", terms.within.as_secs());
                Err(CallError::Unreachable { maybe_executed: true, message })
            }
        }
    }

    /// Applies a change with its events. `None`: there is no such row.
    async fn change(
        &self,
        id: &str,
        change: &Change,
        events: Vec<NewSandboxEvent>,
    ) -> Result<Option<Result<Changed, Refused>>, SandboxError> {
        let count = events.len() as u64;
        let changed = self.rows().change_sandbox(id, change, events).await?;
        if let Some(Ok(changed)) = &changed {
            if count > 0 {
                self.recorded(count);
            }
            if changed.before.state.counts() && !changed.after.state.counts() {
                self.inner.room.notify_one();
                if changed.before.state == State::Idle {
                    self.inner.refill.notify_one();
                }
            }
        } else if let Some(Err(refused)) = &changed {
            tracing::debug!(sandbox.id = id, reason = %refused, "refused {change:?}");
        }
        Ok(changed)
    }

    async fn record(&self, events: Vec<NewSandboxEvent>) {
        let count = events.len() as u64;
        match self.rows().record_sandbox_events(events).await {
            Ok(()) => self.recorded(count),
            Err(error) => tracing::warn!(error = error.chain(), "cannot record events of sandboxes"),
        }
    }

    /// Events are stored: those who watch may read them.
    fn recorded(&self, count: u64) {
        metrics::counter!("tenure_events_total").increment(count);
        self.inner.recorded.notify_waiters();
    }

    /// Records an operation. One that cannot be recorded is logged: what it tells of has happened.
    pub async fn audit(
        &self,
        caller: &Caller,
        action: &str,
        row: &Sandbox,
        result: Result<(), &SandboxError>,
        detail: Option<String>,
    ) {
        let (status, why) = match result {
            Ok(()) => ("ok", None),
            Err(error) => ("failed", Some(format!("{}: {}", error.reason, error.message))),
        };
        let entry = OperationAudit {
            actor: caller.actor.to_string(),
            action: action.to_owned(),
            sandbox: Some(row.id.to_string()),
            resource: String::new(),
            status: status.to_owned(),
            detail: why.or(detail),
            tenant: Some(row.tenant.to_string()),
            request_id: caller.request_id.as_deref().map(str::to_owned),
        };
        if let Err(error) = self.inner.shared.store.audit_operations(&[entry]).await {
            tracing::error!(
                error = error.chain(),
                sandbox.id = &*row.id,
                audit.action = action,
                "cannot record an operation"
            );
        }
    }

    /// Counts an operation.
    fn measure(&self, operation: &'static str, provider: &str, is_ok: bool, took: Duration) {
        let name = if is_ok { "tenure_operation_success_total" } else { "tenure_operation_failure_total" };
        metrics::counter!(name, "operation" => operation, "provider" => provider.to_owned()).increment(1);
        let (millis, labels) =
            (took.as_secs_f64() * 1_000.0, [("operation", operation.to_owned()), ("provider", provider.to_owned())]);
        metrics::histogram!("tenure_operation_latency_milliseconds", &labels).record(millis);
        let longest = self.longest(format!("{operation} {provider}"), millis);
        metrics::gauge!("tenure_operation_latency_milliseconds_max", &labels).set(longest);
    }

    /// The longest time of what is measured under a name.
    fn longest(&self, name: String, millis: f64) -> f64 {
        let mut longest = lock(&self.inner.longest);
        // Names of providers come from requests.
        if longest.len() >= MAX_MEASURED && !longest.contains_key(&name) {
            return millis;
        }
        let known = longest.entry(name).or_default();
        *known = known.max(millis);
        *known
    }

    fn is_stopping(&self) -> bool {
        self.inner.shared.stopping.is_cancelled()
    }
}

fn boxed(task: impl Future<Output = ()> + Send + 'static) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(task)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event about a sandbox, for those who may see it.
fn event(kind: &'static str, row: &Sandbox, data: Option<serde_json::Value>) -> NewSandboxEvent {
    NewSandboxEvent {
        kind,
        sandbox: Some(Arc::clone(&row.id)),
        tenant: Some(Arc::clone(&row.tenant)),
        owner: row.owner.clone(),
        data: data.map(|data| data.to_string()).unwrap_or_default(),
    }
}

/// An event for operators.
fn system_event(kind: &'static str, data: serde_json::Value) -> NewSandboxEvent {
    NewSandboxEvent { kind, sandbox: None, tenant: None, owner: None, data: data.to_string() }
}
