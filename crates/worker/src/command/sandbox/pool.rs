use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_sandbox::{Provider, Result, Runtime, RuntimeId};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::settings::{SandboxSettings, Sandboxes};

/// The pools of a worker: one for each kind of sandbox that its operators ask for.
#[derive(Debug, Default)]
pub(crate) struct Pools(Vec<Arc<Pool>>);

impl Pools {
    /// The pool for these settings. Operators with the same settings share it.
    pub(crate) fn pool(&mut self, settings: &SandboxSettings, sandboxes: &Sandboxes) -> Arc<Pool> {
        if let Some(pool) = self.0.iter().find(|pool| pool.shared.settings.is_same_kind(settings)) {
            return Arc::clone(pool);
        }
        let pool = Arc::new(Pool::new(settings.clone(), sandboxes));
        self.0.push(Arc::clone(&pool));
        pool
    }

    pub(crate) fn fill(&self) {
        self.0.iter().for_each(|pool| pool.fill());
    }

    /// Removes the sandboxes that wait.
    pub(crate) async fn close(self) {
        for pool in self.0 {
            pool.close().await;
        }
    }
}

/// Sandboxes that are ready before a task asks for one. Each is used by one task.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// What goes on in the background: sandboxes made and removed.
    background: TaskTracker,
}

#[derive(Debug)]
struct Shared {
    provider: Arc<dyn Provider>,
    settings: SandboxSettings,
    warm: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Runtime>,
    /// Sandboxes that are being made for `ready`.
    coming: usize,
    closed: bool,
}

impl Pool {
    fn new(settings: SandboxSettings, sandboxes: &Sandboxes) -> Self {
        let shared = Shared {
            provider: Arc::clone(&sandboxes.provider),
            settings,
            warm: sandboxes.warm,
            state: Mutex::default(),
        };
        Self { shared: Arc::new(shared), background: TaskTracker::new() }
    }

    pub(crate) fn provider(&self) -> &Arc<dyn Provider> {
        &self.shared.provider
    }

    /// Makes sandboxes until enough are ready.
    fn fill(&self) {
        while self.shared.expect_one() {
            let shared = Arc::clone(&self.shared);
            self.background.spawn(async move { shared.add_one().await });
        }
    }

    /// A sandbox that nobody has used.
    pub(crate) async fn take(&self) -> Result<Taken> {
        let ready = self.shared.state().ready.pop_front();
        self.fill();
        let runtime = match ready {
            // One whose first process died while it waited is of no use.
            Some(runtime) if self.provider().status(&runtime.id).await.is_ok() => runtime,
            Some(runtime) => {
                self.remove(runtime);
                self.shared.spawn().await?
            }
            None => self.shared.spawn().await?,
        };
        Ok(Taken { runtime, shared: Arc::clone(&self.shared), background: self.background.clone(), destroyed: false })
    }

    fn remove(&self, runtime: Runtime) {
        let shared = Arc::clone(&self.shared);
        self.background.spawn(async move { shared.destroy(&runtime).await });
    }

    async fn close(&self) {
        let ready = {
            let mut state = self.shared.state();
            state.closed = true;
            std::mem::take(&mut state.ready)
        };
        ready.into_iter().for_each(|runtime| self.remove(runtime));
        self.background.close();
        self.background.wait().await;
    }

    #[cfg(test)]
    pub(crate) fn ready(&self) -> usize {
        self.shared.state().ready.len()
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect_one(&self) -> bool {
        let mut state = self.state();
        let wanted = !state.closed && state.ready.len() + state.coming < self.warm;
        state.coming += usize::from(wanted);
        wanted
    }

    async fn add_one(&self) {
        let spawned = self.spawn().await;
        if let Some(runtime) = self.keep(spawned) {
            self.destroy(&runtime).await;
        }
    }

    /// Returns a sandbox that came too late.
    fn keep(&self, spawned: Result<Runtime>) -> Option<Runtime> {
        let mut state = self.state();
        state.coming -= 1;
        match spawned {
            Ok(runtime) if state.closed => return Some(runtime),
            Ok(runtime) => state.ready.push_back(runtime),
            // The next task tries again, and reports the failure if there still is one.
            Err(error) => tracing::warn!(%error, sandbox.image = self.settings.image, "cannot keep a sandbox ready"),
        }
        None
    }

    async fn spawn(&self) -> Result<Runtime> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.provider.spawn(self.settings.spec(format!("task-{}-{number}", std::process::id()))).await
    }

    async fn destroy(&self, runtime: &Runtime) {
        if let Err(error) = self.provider.destroy(&runtime.id).await {
            tracing::warn!(runtime.id = %runtime.id, %error, "cannot remove a sandbox");
        }
    }
}

/// The sandbox of one task. It is removed when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    runtime: Runtime,
    shared: Arc<Shared>,
    background: TaskTracker,
    destroyed: bool,
}

impl Taken {
    pub(crate) fn id(&self) -> &RuntimeId {
        &self.runtime.id
    }

    pub(crate) async fn destroy(mut self) {
        self.shared.destroy(&self.runtime).await;
        self.destroyed = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and the sandbox ends with it.
        if !self.destroyed
            && let Ok(handle) = Handle::try_current()
        {
            let (shared, runtime) = (Arc::clone(&self.shared), self.runtime.clone());
            self.background.spawn_on(async move { shared.destroy(&runtime).await }, &handle);
        }
    }
}
