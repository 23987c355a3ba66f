use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tenure_auth::WorkerAuth;
use tenure_tls::{ClientTls, LiveClient, TlsError};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::budget::Budget;
use crate::credentials::kinds;
use crate::pool::{Worker, lock};
use crate::{Error, Settings, Target};

/// How often connections and workers that nobody uses are looked for.
const SWEEP: Duration = Duration::from_secs(30);
/// How long a worker that is not called is remembered.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// Calls workers. Clones share connections and configuration.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    live: RwLock<Arc<Live>>,
    workers: Mutex<Workers>,
    pub budget: Budget,
    /// For `https` without any settings.
    default_tls: OnceCell<LiveClient>,
}

struct Workers {
    by_id: HashMap<String, Arc<Worker>>,
    swept: Instant,
}

/// The configuration of the moment. A call uses one to its end.
#[derive(Clone)]
pub(crate) struct Live {
    pub settings: Settings,
    pub auth: Arc<WorkerAuth>,
    pub auth_generation: u64,
    pub tls: Option<Arc<LiveClient>>,
    pub tls_generation: u64,
}

impl Client {
    /// `tls` is what `worker.rpc_tls` says for this side. Without it, `https` trusts the CAs of the system.
    pub fn new(settings: Settings, auth: Arc<WorkerAuth>, tls: Option<LiveClient>) -> Self {
        let budget = Budget::new(settings.memory_bytes);
        let live = Live { settings, auth, auth_generation: 0, tls: tls.map(Arc::new), tls_generation: 0 };
        let workers = Workers { by_id: HashMap::new(), swept: Instant::now() };
        let (live, workers) = (RwLock::new(Arc::new(live)), Mutex::new(workers));
        Self(Arc::new(Inner { live, workers, budget, default_tls: OnceCell::new() }))
    }

    /// Replaces tokens and keys. The next call uses them.
    pub fn replace_auth(&self, auth: Arc<WorkerAuth>) {
        self.change(|live| {
            live.auth = auth;
            live.auth_generation += 1;
        });
    }

    /// Replaces roots, certificate and rules of TLS. New calls go over new connections; running ones end in peace.
    pub fn replace_tls(&self, tls: Option<LiveClient>) {
        self.change(|live| {
            live.tls = tls.map(Arc::new);
            live.tls_generation += 1;
        });
    }

    /// Reads the certificate files again. `true` if something changed: new calls then go over new connections. On an
    /// error nothing changes.
    pub fn reload_tls(&self) -> Result<bool, TlsError> {
        let Some(tls) = self.live().tls.clone() else { return Ok(false) };
        let changed = tls.reload()?;
        if changed {
            self.change(|live| live.tls_generation += 1);
        }
        Ok(changed)
    }

    /// Replaces timeouts. The limits on numbers and memory stay as they were for workers that have been called.
    pub fn replace_settings(&self, settings: Settings) {
        self.change(|live| live.settings = settings);
    }

    /// Whether there is a credential for this worker. Without one it cannot be used: `remote_worker_rpc_unavailable`.
    pub fn can_authenticate(&self, target: &Target) -> bool {
        !kinds(&self.live().auth, &target.worker_id, target.capabilities).is_empty()
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.0.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&mut Live)) {
        let mut current = self.0.live.write().unwrap_or_else(PoisonError::into_inner);
        let mut live = Live::clone(&current);
        change(&mut live);
        *current = Arc::new(live);
    }

    /// The worker with its connections. One that moved gets new ones.
    pub(crate) fn worker(&self, target: &Target, live: &Live) -> Result<Arc<Worker>, Error> {
        let mut workers = lock(&self.0.workers);
        let Workers { by_id, swept } = &mut *workers;
        if swept.elapsed() > SWEEP {
            *swept = Instant::now();
            by_id.retain(|_, worker| {
                let lately = worker.sweep(live.tls_generation, live.settings.times.pooled, KEPT);
                lately || Arc::strong_count(worker) > 1
            });
        }
        if let Some(worker) = by_id.get(&target.worker_id).filter(|worker| worker.rpc_url == target.rpc_url) {
            return Ok(Arc::clone(worker));
        }
        let worker = Arc::new(Worker::new(&target.worker_id, &target.rpc_url, &live.settings)?);
        by_id.insert(target.worker_id.clone(), Arc::clone(&worker));
        Ok(worker)
    }

    /// TLS for a worker with `https`, or why it must not be called as its URL says.
    pub(crate) async fn tls<'a>(&'a self, worker: &Worker, live: &'a Live) -> Result<Option<&'a LiveClient>, Error> {
        if !worker.address.tls {
            let bound = live.tls.as_ref().is_some_and(|tls| tls.requires_binding());
            if bound && !worker.address.is_loopback() {
                return Err(Error::unsent(
                    "bind_worker_id is require and the worker's rpc_url is not https: only a certificate shows which \
                     worker answers",
                ));
            }
            return Ok(None);
        }
        if let Some(tls) = &live.tls {
            return Ok(Some(tls));
        }
        let load = || async {
            // The CAs of the system are many files.
            let loaded = tokio::task::spawn_blocking(|| ClientTls::default().load()).await;
            match loaded {
                Ok(Ok(tls)) => Ok(tls),
                Ok(Err(error)) => Err(Error::unsent(error.to_string())),
                Err(_) => Err(Error::unsent("the CAs of the system could not be loaded")),
            }
        };
        self.0.default_tls.get_or_try_init(load).await.map(Some)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
