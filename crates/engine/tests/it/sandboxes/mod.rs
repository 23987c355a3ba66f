//! Sandboxes: the manager on a real store, with workers in this process.

mod calls;
mod crash;
mod farm;
mod limits;
mod pool;
mod queue;
mod reconcile;
mod replicas;
mod snapshots;
mod spawn;
mod tasks;

use std::sync::Arc;

use tenure_core::command::Reach;
use tenure_core::sandbox::template::Request;
use tenure_core::sandbox::{Sandbox, State};
use tenure_engine::sandboxes::{Caller, Created, SandboxError, SandboxSettings, Sandboxes};
use tenure_engine::store::{Clock, SandboxFilter};
use tenure_engine::{Engine, EngineConfig};
use tenure_testkit::wait_until;

use self::farm::Farm;
use crate::harness::{Home, SOON};

/// A control plane with its workers.
pub struct Plane {
    pub engine: Engine,
    pub sandboxes: Sandboxes,
    pub farm: Arc<Farm>,
    pub clock: Arc<Clock>,
}

/// What the tests ask for: any worker of the farm has the provider.
pub fn settings() -> SandboxSettings {
    let mut settings = SandboxSettings::default();
    settings.defaults.provider = "mock".to_owned();
    settings.spawn_timeout_ms = 30_000;
    settings
}

pub async fn start(home: &Home, farm: &Arc<Farm>, settings: SandboxSettings) -> Plane {
    start_after(home, farm, settings, 0).await
}

/// Starts when some time has passed.
pub async fn start_after(home: &Home, farm: &Arc<Farm>, settings: SandboxSettings, ms: i64) -> Plane {
    let clock: Arc<Clock> = Arc::default();
    clock.advance(ms);
    let config = EngineConfig { clock: Arc::clone(&clock), ..EngineConfig::default() };
    let engine = Engine::open_with(&home.url(), config).await.unwrap();
    let sandboxes = engine.sandboxes(settings, Arc::clone(farm) as _);
    farm.attach(&engine, &sandboxes);
    Plane { engine, sandboxes, farm: Arc::clone(farm), clock }
}

/// A control plane on a new store, with these workers. It has noticed them: nothing is reconciled by itself in the half
/// minute that follows, unless a worker comes or goes or the clock is moved.
pub async fn plane(home: &Home, workers: &[&str], settings: SandboxSettings) -> Plane {
    let plane = start(home, &Farm::new(), settings).await;
    for worker in workers {
        plane.farm.beat(worker).await;
    }
    plane.wait_for_reconciliation().await;
    plane
}

pub fn caller() -> Caller {
    caller_of("default", None)
}

pub fn caller_of(tenant: &str, owner: Option<&str>) -> Caller {
    let tenant: Arc<str> = tenant.into();
    Caller {
        tenant: Arc::clone(&tenant),
        owner: owner.map(Arc::from),
        reach: Reach::Tenant(tenant),
        actor: "tester".into(),
        request_id: None,
    }
}

impl Plane {
    /// Creates a sandbox with the defaults and waits for it.
    pub async fn create(&self) -> Result<Created, SandboxError> {
        self.sandboxes.create(&Request::default(), &caller(), None, true).await
    }

    pub async fn running(&self) -> Sandbox {
        let row = self.create().await.unwrap().row;
        assert_eq!(row.state, State::Running);
        row
    }

    /// Creates one in the background.
    pub fn creating(&self) -> tokio::task::JoinHandle<Result<Created, SandboxError>> {
        self.creating_for(caller())
    }

    pub fn creating_for(&self, caller: Caller) -> tokio::task::JoinHandle<Result<Created, SandboxError>> {
        let sandboxes = self.sandboxes.clone();
        tokio::spawn(async move { sandboxes.create(&Request::default(), &caller, None, true).await })
    }

    /// A row, destroyed or not.
    pub async fn row(&self, id: &str) -> Sandbox {
        self.engine.store().sandbox(id, &Reach::All).await.unwrap().unwrap()
    }

    /// All rows that are not destroyed.
    pub async fn rows(&self) -> Vec<Sandbox> {
        let filter = SandboxFilter { limit: 100, ..SandboxFilter::default() };
        self.engine.store().sandboxes(&filter).await.unwrap().items
    }

    pub async fn wait_for_state(&self, id: &str, state: State) {
        wait_until(&format!("{id} to be {}", state.as_str()), SOON, async || self.row(id).await.state == state).await;
    }

    /// Waits until this many calls to workers stand still.
    pub async fn wait_for_hanging(&self, count: u64) {
        use std::sync::atomic::Ordering;
        wait_until("a call to stand still", SOON, async || self.farm.hanging.load(Ordering::SeqCst) == count).await;
    }

    pub async fn wait_for_reconciliation(&self) {
        wait_until("a reconciliation", SOON, async || self.sandboxes.is_reconciled()).await;
    }

    /// Time passes, and the workers stay fresh.
    pub async fn pass(&self, ms: i64, workers: &[&str]) {
        self.clock.advance(ms);
        for worker in workers {
            self.farm.beat(worker).await;
        }
    }

    pub async fn stop(self) {
        self.farm.detach();
        self.engine.shutdown().await;
    }

    pub async fn events(&self) -> Vec<String> {
        let events = self.engine.store().sandbox_events(0, 1_000).await.unwrap();
        events.into_iter().map(|event| event.kind).collect()
    }
}
