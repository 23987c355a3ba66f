use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use jiff::Timestamp;
use tenure_sandbox::{Deadlines, Provider, RuntimeId, Spec};
use tokio::sync::Notify;

use super::clock::Moment;
use super::error::NodeError;
use super::holdings::{Entry, Holdings, Order, Stage};
use super::lease::Lease;
use super::plane::{Plane, Renewed};
use super::providers::Providers;
use super::settings::NodeSettings;

/// Longer than any token lives. The control plane repeats what is still needed.
const REVOCATION_KEPT: Duration = Duration::from_secs(20 * 60);
const MAX_REVOKED: usize = 100_000;

/// The sandbox that a call is about.
#[derive(Debug, Clone, Default)]
pub struct Target {
    pub sandbox_id: String,
    /// Blank: by the sandbox.
    pub runtime_id: String,
    /// Blank: whichever has it.
    pub provider: String,
}

/// What happens in a new sandbox before it counts as running, for example the restoring of a snapshot. If it fails, the
/// sandbox is destroyed.
pub type Prepare = Box<dyn FnOnce(Arc<dyn Provider>, RuntimeId) -> Prepared + Send>;
type Prepared = Pin<Box<dyn Future<Output = Result<(), NodeError>> + Send>>;

/// A sandbox that is wanted.
pub struct SpawnOrder {
    /// As the caller wrote it. Blank: the default one.
    pub provider: String,
    pub spec: Spec,
    pub owner_id: Option<String>,
    /// Zero: until it is destroyed.
    pub ttl: Duration,
    pub prepare: Option<Prepare>,
}

impl fmt::Debug for SpawnOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnOrder")
            .field("provider", &self.provider)
            .field("sandbox_id", &self.spec.sandbox_id)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// A sandbox that this worker holds.
#[derive(Debug, Clone)]
pub struct Held {
    pub sandbox_id: String,
    pub runtime_id: RuntimeId,
    /// As the caller of the spawn wrote it.
    pub provider_name: String,
    pub provider: Arc<dyn Provider>,
    pub owner_id: Option<String>,
    /// Of the spawn, with what the provider added.
    pub metadata: BTreeMap<String, String>,
    pub generation: i64,
    /// Its lease lapsed.
    pub frozen: bool,
    pub created_at: Timestamp,
}

impl Held {
    /// Refuses commands and file calls while the lease has lapsed.
    pub fn check_not_frozen(&self) -> Result<(), NodeError> {
        if self.frozen { Err(NodeError::Frozen(self.sandbox_id.clone())) } else { Ok(()) }
    }
}

type SandboxLock = Arc<tokio::sync::Mutex<()>>;

/// The sandboxes of this worker.
#[derive(Debug)]
pub struct Node {
    pub(super) holdings: Holdings,
    pub(super) providers: Providers,
    pub(super) plane: Option<Plane>,
    pub(super) settings: NodeSettings,
    draining: AtomicBool,
    stopping: AtomicBool,
    /// A spawn, destroy, freeze or thaw of a sandbox waits for the one before it.
    locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// Something may be due sooner than was known.
    pub(super) changed: Notify,
    /// The control plane should hear something before the next heartbeat is due.
    pub(super) beat_now: Notify,
    /// Tokens that the control plane revoked, and until when that matters.
    revoked: Mutex<HashMap<String, Moment>>,
}

impl Node {
    /// Without `plane` no lease can be renewed.
    pub fn new(holdings: Holdings, providers: Providers, plane: Option<Plane>, settings: NodeSettings) -> Arc<Self> {
        let (draining, stopping, locks, changed, beat_now, revoked) = Default::default();
        Arc::new(Self { holdings, providers, plane, settings, draining, stopping, locks, changed, beat_now, revoked })
    }

    pub fn worker_id(&self) -> &str {
        self.holdings.worker_id()
    }

    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    pub fn providers(&self) -> &Providers {
        &self.providers
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Takes no new sandboxes. Those that are there stay.
    pub fn drain(&self) {
        self.set_draining(true);
    }

    pub fn undrain(&self) {
        if self.is_stopping() {
            return;
        }
        self.set_draining(false);
    }

    /// Drains, and no control plane can end that.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.drain();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn set_draining(&self, draining: bool) {
        if self.draining.swap(draining, Ordering::SeqCst) != draining {
            tracing::info!(draining, "draining changed");
            self.beat_now.notify_one();
        }
    }

    /// Whether the control plane has revoked the token with this id.
    pub fn is_revoked(&self, token_id: &str) -> bool {
        self.revoked.lock().unwrap_or_else(PoisonError::into_inner).contains_key(token_id)
    }

    pub(super) fn revoke(&self, token_ids: Vec<String>) {
        let mut revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        revoked.retain(|_, until| !until.has_passed());
        let until = Moment::now().after(REVOCATION_KEPT);
        for id in token_ids {
            if revoked.len() < MAX_REVOKED || revoked.contains_key(&id) {
                revoked.insert(id, until);
            }
        }
    }

    /// Creates a sandbox, or returns the one that this sandbox id has. Goes on when the caller stops waiting.
    pub async fn spawn(self: &Arc<Self>, lease: Lease, order: SpawnOrder) -> Result<Held, NodeError> {
        let node = Arc::clone(self);
        detached(async move { node.spawn_here(&lease, order).await }).await
    }

    async fn spawn_here(&self, lease: &Lease, order: SpawnOrder) -> Result<Held, NodeError> {
        let sandbox_id = order.spec.sandbox_id.clone();
        if sandbox_id.trim().is_empty() {
            return Err(NodeError::Invalid("sandbox_id is blank".to_owned()));
        }
        if self.is_draining() {
            return Err(NodeError::Draining);
        }
        self.holdings.check_lease(lease, &sandbox_id)?;
        let provider = Arc::clone(self.providers.get(&order.provider)?);
        let lock = self.lock_of(&sandbox_id);
        let _guard = lock.lock().await;
        if let Some(entry) = self.holdings.entry(&sandbox_id)
            && let Stage::Held { .. } = entry.stage
        {
            self.holdings.admit(lease, &sandbox_id).await?;
            return self.held(&sandbox_id, self.holdings.entry(&sandbox_id).unwrap_or(entry));
        }
        let record = Order {
            provider: if order.provider.trim().is_empty() { provider.name().to_owned() } else { order.provider },
            spec: order.spec.clone(),
            owner_id: order.owner_id,
            ttl: order.ttl,
            accepted_at: Timestamp::now(),
        };
        let max = self.settings.max_sandboxes;
        self.holdings.intend(&sandbox_id, lease, record, max).await?;
        // Renewals begin before the provider's work does.
        self.changed.notify_waiters();
        if let Err(error) = self.create(&provider, order.spec, order.prepare).await {
            self.holdings.fail(&sandbox_id);
            return Err(error);
        }
        self.hand_over_deadlines(&sandbox_id).await;
        let entry = self.holdings.entry(&sandbox_id).unwrap_or_default();
        tracing::info!(
            sandbox.id = sandbox_id,
            provider.name = provider.name(),
            lease.fence = lease.generation,
            "sandbox spawned"
        );
        self.held(&sandbox_id, entry)
    }

    async fn create(
        &self,
        provider: &Arc<dyn Provider>,
        spec: Spec,
        prepare: Option<Prepare>,
    ) -> Result<(), NodeError> {
        let sandbox_id = spec.sandbox_id.clone();
        let runtime = provider.spawn(spec).await?;
        if let Some(prepare) = prepare
            && let Err(error) = prepare(Arc::clone(provider), runtime.id.clone()).await
        {
            if let Err(error) = provider.destroy(&runtime.id).await {
                // It has no record, so that the next start destroys it at the latest.
                tracing::error!(sandbox.id = sandbox_id, runtime.id = %runtime.id, "a failed spawn was not undone: {error}");
            }
            return Err(error);
        }
        self.holdings.hold(&sandbox_id, &runtime);
        Ok(())
    }

    /// Destroys a sandbox. One that does not exist counts as destroyed, and a later spawn under the same lease is
    /// refused. Goes on when the caller stops waiting.
    pub async fn destroy(self: &Arc<Self>, lease: Lease, target: Target) -> Result<(), NodeError> {
        let node = Arc::clone(self);
        detached(async move { node.destroy_here(&lease, &target).await }).await
    }

    async fn destroy_here(&self, lease: &Lease, target: &Target) -> Result<(), NodeError> {
        self.holdings.check_lease(lease, &target.sandbox_id)?;
        if !target.provider.trim().is_empty() {
            self.providers.get(&target.provider)?;
        }
        self.check_runtime_of(target)?;
        self.holdings.admit(lease, &target.sandbox_id).await?;
        self.remove(&target.sandbox_id, &target.runtime_id, "asked to").await
    }

    /// Destroys what a sandbox has, if it is this runtime, and remembers that it is gone.
    pub(super) async fn remove(&self, sandbox_id: &str, runtime_id: &str, why: &str) -> Result<(), NodeError> {
        let lock = self.lock_of(sandbox_id);
        let _guard = lock.lock().await;
        let entry = self.holdings.entry(sandbox_id).unwrap_or_default();
        if let Stage::Held { order, runtime_id: held, .. } = &entry.stage {
            if !runtime_id.is_empty() && held.0 != runtime_id {
                return Ok(());
            }
            self.providers.get(&order.provider)?.destroy(held).await?;
            tracing::info!(sandbox.id = sandbox_id, runtime.id = %held, reason = why, "sandbox destroyed");
        }
        self.holdings.gone(sandbox_id).await
    }

    /// The sandbox that a call names. Waits for one that is being created.
    pub async fn find(&self, target: &Target) -> Result<Held, NodeError> {
        if !target.provider.trim().is_empty() {
            self.providers.get(&target.provider)?;
        } else if self.providers.is_empty() {
            return Err(NodeError::NoProviders);
        }
        let sandbox_id = match (target.sandbox_id.trim(), target.runtime_id.trim()) {
            ("", "") => return Err(NodeError::Invalid("name a sandbox_id or a runtime_id".to_owned())),
            ("", runtime_id) => self
                .holdings
                .sandbox_of(runtime_id)
                .ok_or_else(|| NodeError::NotFound(format!("this worker has no runtime {runtime_id:?}")))?,
            (sandbox_id, _) => sandbox_id.to_owned(),
        };
        self.check_runtime_of(&Target { sandbox_id: sandbox_id.clone(), ..target.clone() })?;
        let mut entry = self.holdings.entry(&sandbox_id).unwrap_or_default();
        if let Stage::Intended { .. } = entry.stage {
            let lock = self.lock_of(&sandbox_id);
            let _guard = lock.lock().await;
            entry = self.holdings.entry(&sandbox_id).unwrap_or_default();
        }
        let is_other =
            entry.runtime_id().is_some_and(|held| !target.runtime_id.is_empty() && held.0 != target.runtime_id);
        match &entry.stage {
            _ if is_other => Err(NodeError::NotFound(format!(
                "sandbox {sandbox_id:?} does not have the runtime {:?}",
                target.runtime_id
            ))),
            Stage::Absent | Stage::Intended { .. } => {
                Err(NodeError::NotFound(format!("this worker has no sandbox {sandbox_id:?}")))
            }
            // A destroy that came before any spawn leaves a mark, and nothing that was destroyed.
            Stage::Gone { runtime_id: None, .. } => {
                Err(NodeError::NotFound(format!("this worker has no sandbox {sandbox_id:?}")))
            }
            Stage::Gone { .. } => Err(NodeError::Destroyed(sandbox_id)),
            Stage::Held { order, .. } => {
                let asked = target.provider.trim();
                if !asked.is_empty() && self.providers.get(asked)?.name() != self.providers.get(&order.provider)?.name()
                {
                    let problem = format!("sandbox {sandbox_id:?} is not of the provider {asked:?}");
                    return Err(NodeError::NotFound(problem));
                }
                self.held(&sandbox_id, entry)
            }
        }
    }

    /// A runtime of another sandbox is not found.
    fn check_runtime_of(&self, target: &Target) -> Result<(), NodeError> {
        match self.holdings.sandbox_of(target.runtime_id.trim()) {
            Some(sandbox_id) if sandbox_id != target.sandbox_id => Err(NodeError::NotFound(format!(
                "runtime {:?} does not belong to sandbox {:?}",
                target.runtime_id, target.sandbox_id
            ))),
            _ => Ok(()),
        }
    }

    fn held(&self, sandbox_id: &str, entry: Entry) -> Result<Held, NodeError> {
        let Stage::Held { order, runtime_id, metadata, created_at } = entry.stage else {
            return Err(NodeError::NotFound(format!("this worker has no sandbox {sandbox_id:?}")));
        };
        Ok(Held {
            sandbox_id: sandbox_id.to_owned(),
            runtime_id,
            provider: Arc::clone(self.providers.get(&order.provider)?),
            provider_name: order.provider,
            owner_id: order.owner_id,
            metadata,
            generation: entry.generation,
            frozen: entry.frozen || (self.holdings.lease_renewal() && entry.held_until.has_passed()),
            created_at,
        })
    }

    /// All sandboxes that are held, by id.
    pub fn all(&self) -> Vec<Held> {
        let present = self.holdings.present().into_iter();
        present.filter_map(|(sandbox_id, entry)| self.held(&sandbox_id, entry).ok()).collect()
    }

    /// Renews a lease at the control plane, and thaws the sandbox if it is frozen. The lease was checked before.
    pub async fn renew(&self, lease: &Lease, ttl: Duration) -> Result<Lease, NodeError> {
        let plane = self.plane.as_ref();
        let plane = plane.ok_or_else(|| NodeError::Unreachable("no control plane is configured".to_owned()))?;
        self.holdings.admit(lease, &lease.resource_id).await?;
        let renewed = plane.renew(self.worker_id(), &lease.resource_id, ttl).await?;
        let lease = renewed.lease.clone();
        self.apply(renewed).await?;
        Ok(lease)
    }

    /// Takes over what a renewal granted.
    pub(super) async fn apply(&self, renewed: Renewed) -> Result<(), NodeError> {
        let sandbox_id = renewed.lease.resource_id.as_str();
        self.holdings.raise(&renewed.lease, renewed.held_until).await?;
        if let Some((expires, expires_at)) = renewed.sandbox_expires {
            self.holdings.expire_at(sandbox_id, Some(expires), Some(expires_at));
        }
        let Some(entry) = self.holdings.entry(sandbox_id) else { return Ok(()) };
        if !matches!(entry.stage, Stage::Held { .. }) {
            return Ok(());
        }
        let lock = self.lock_of(sandbox_id);
        let _guard = lock.lock().await;
        // The deadlines come first: those that have passed would freeze it again.
        self.hand_over_deadlines(sandbox_id).await;
        self.thaw(sandbox_id).await
    }

    pub(super) async fn thaw_locked(&self, sandbox_id: &str) -> Result<(), NodeError> {
        let lock = self.lock_of(sandbox_id);
        let _guard = lock.lock().await;
        self.thaw(sandbox_id).await
    }

    async fn thaw(&self, sandbox_id: &str) -> Result<(), NodeError> {
        let entry = self.holdings.entry(sandbox_id).unwrap_or_default();
        let (true, Stage::Held { order, runtime_id, .. }) = (entry.frozen, &entry.stage) else { return Ok(()) };
        let provider = self.providers.get(&order.provider)?;
        if provider.capabilities().freeze {
            provider.thaw(runtime_id).await?;
        }
        self.holdings.update(sandbox_id, |entry| entry.frozen = false);
        tracing::info!(sandbox.id = sandbox_id, "lease renewed, sandbox thawed");
        Ok(())
    }

    /// The sandbox's own supervisor keeps them when this process is gone.
    pub(super) async fn hand_over_deadlines(&self, sandbox_id: &str) {
        let Some(entry) = self.holdings.entry(sandbox_id) else { return };
        let Stage::Held { order, runtime_id, .. } = &entry.stage else { return };
        let Ok(provider) = self.providers.get(&order.provider) else { return };
        if let Err(error) = provider.set_deadlines(runtime_id, self.deadlines(&entry)).await {
            tracing::warn!(sandbox.id = sandbox_id, runtime.id = %runtime_id, "the deadlines of a sandbox could not be set: {error}");
        }
    }

    /// None apply under a control plane that knows nothing of renewals.
    fn deadlines(&self, entry: &Entry) -> Deadlines {
        if !self.holdings.lease_renewal() {
            return Deadlines::default();
        }
        Deadlines { freeze_after: Some(entry.held_until.left()), destroy_after: Some(self.destroyed_at(entry).left()) }
    }

    /// When a sandbox has to be gone: after the grace of its lease, or of its time to live.
    pub(super) fn destroyed_at(&self, entry: &Entry) -> Moment {
        let lapsed = entry.held_until.after(self.settings.lease_grace);
        entry.expires.map_or(lapsed, |expires| expires.after(self.settings.ttl_grace).min(lapsed))
    }

    pub(super) fn lock_of(&self, sandbox_id: &str) -> SandboxLock {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(sandbox_id).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = SandboxLock::default();
        locks.insert(sandbox_id.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// Runs to its end even if nobody waits for it any more: a half-done spawn would leave a sandbox that nobody knows.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, NodeError>> + Send + 'static,
) -> Result<T, NodeError> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(NodeError::Internal(format!("the call failed: {error}"))),
    }
}
