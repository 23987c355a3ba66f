use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use tenure_engine::Engine;
use tenure_engine::delivery::{Courier, Deliveries};
use tenure_outbound::Outbound;
use tenure_tls::LiveServer;

use crate::access::Access;
use crate::access::limiter::Limiter;
use crate::dispatch::{self, DispatchConfig, LambdaCourier};
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::identity::Identity;
use crate::identity::task_keys::SharedTaskKeys;
use crate::limits;
use crate::live::Live;
use crate::memory::Memory;
use crate::push::{HttpCourier, PushTargets};
use crate::query::{Queries, QueryConfig, QueryCourier};
use crate::sandboxes::{Part, SandboxConfig};
use crate::schedules::Templates;
use crate::tenants::Admission;
use crate::transports::Transports;
use crate::watchers::Watchers;

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Who is let in. What is set later holds from the next request on.
    pub access: Live<Access>,
    /// With it connections are TLS; certificates are replaced through it.
    pub tls: Option<Arc<LiveServer>>,
    /// The keys of task and capability tokens.
    pub task_keys: Option<Arc<SharedTaskKeys>>,
    /// For addresses that others chose; without one they are not called.
    pub outbound: Option<Outbound>,
    /// What queues may be set to.
    pub transports: Transports,
    /// For tasks that are pushed; without it no queue pushes. What is set later holds from the next push on.
    pub push: Option<Live<PushTargets>>,
    /// For sandboxes; without it their routes answer 503.
    pub sandboxes: Option<SandboxConfig>,
    /// For DAGs and the dispatch contract.
    pub dispatch: DispatchConfig,
    /// Who runs queries.
    pub query: QueryConfig,
    /// The S3 endpoint over a local folder.
    pub s3: Option<tenure_s3::Service>,
    pub max_connections: usize,
    /// Connections of one address. Trusted proxies speak for many and have no such limit.
    pub max_connections_per_address: usize,
    /// A client that reads nothing of its answer for this long is disconnected.
    pub write_timeout: Duration,
    /// For bodies and pages that are whole in memory, all together.
    pub request_memory_bytes: usize,
    /// How long open requests may take to finish once the server is told to stop.
    pub drain_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            access: Live::default(),
            tls: None,
            task_keys: None,
            outbound: None,
            transports: Transports::default(),
            push: None,
            sandboxes: None,
            dispatch: DispatchConfig::default(),
            query: QueryConfig::default(),
            s3: None,
            max_connections: limits::MAX_CONNECTIONS_DEFAULT,
            max_connections_per_address: limits::MAX_CONNECTIONS_PER_ADDRESS_DEFAULT,
            write_timeout: limits::WRITE_STALL,
            request_memory_bytes: limits::REQUEST_MEMORY_BYTES,
            drain_timeout: limits::DRAIN_TIMEOUT_DEFAULT,
        }
    }
}

/// What every handler has.
#[derive(Debug, Clone)]
pub struct App(Arc<Inner>);

#[derive(Debug)]
pub struct Inner {
    pub engine: Engine,
    pub access: Live<Access>,
    pub identity: Arc<Identity>,
    pub admission: Admission,
    pub transports: Transports,
    pub push: Option<Live<PushTargets>>,
    /// Deliveries of tasks that are pushed.
    pub delivery: Deliveries,
    /// Calls of users.
    pub limiter: Limiter,
    /// Temporary keys by task and by organisation.
    pub credentials: Limiter,
    /// Failed authentications by address.
    pub failures: Limiter,
    pub metrics: PrometheusHandle,
    /// For bodies and pages that are whole in memory.
    pub memory: Arc<Memory>,
    pub event_streams: Arc<Watchers>,
    pub started: Instant,
    pub dispatch: Arc<dispatch::Part>,
    pub queries: Arc<Queries>,
    sandboxes: Option<Part>,
}

impl App {
    /// Begins to fire schedules and to route events of DAGs, and to push and to run tasks in sandboxes if the configuration has what that takes.
    pub async fn start(engine: Engine, config: &ServerConfig, metrics: PrometheusHandle) -> Self {
        let sandboxes = config.sandboxes.as_ref().map(|config| Part::start(&engine, config));
        let dispatch = Arc::new(dispatch::Part::start(&engine, &config.dispatch));
        let queries = Arc::new(Queries::start(&engine, &config.query, &dispatch));
        let mut couriers: Vec<Arc<dyn Courier>> = vec![
            dispatch.dags.builtin(),
            Arc::new(QueryCourier::new(&queries)),
            Arc::new(LambdaCourier::new(Arc::clone(&dispatch), config.task_keys.clone())),
        ];
        couriers.extend(sandboxes.as_ref().map(|part| part.manager.courier(&engine)));
        if let Some(keys) = &config.task_keys {
            // Other control planes must know the key before a worker shows them a token of it.
            keys.refresh().await;
        }
        let mut pushes = false;
        if let (Some(targets), Some(keys)) = (&config.push, &config.task_keys) {
            couriers.push(Arc::new(HttpCourier::new(targets.clone(), Arc::clone(keys))));
            pushes = true;
        }
        let delivery = engine.deliver(couriers);
        let app = Self(Arc::new(Inner {
            queries,
            sandboxes,
            dispatch,
            started: Instant::now(),
            access: config.access.clone(),
            identity: Arc::new(Identity::new(&engine, config.outbound.clone(), config.task_keys.clone())),
            admission: Admission::new(&engine),
            transports: config.transports.clone(),
            push: config.push.clone().filter(|_| pushes),
            delivery,
            limiter: Limiter::new(limits::RATE_BUCKETS),
            credentials: Limiter::new(limits::RATE_BUCKETS),
            failures: Limiter::new(limits::RATE_BUCKETS),
            engine,
            metrics,
            memory: Memory::new(config.request_memory_bytes),
            event_streams: Watchers::new(limits::EVENT_STREAMS),
        }));
        app.engine.fire_schedules(Arc::new(Templates(app.clone())));
        app
    }
}

impl Inner {
    /// What handlers of sandboxes need, on a server that offers them.
    pub fn sandboxes(&self) -> Result<&Part, Fault> {
        self.sandboxes.as_ref().ok_or_else(|| {
            let message = "this server offers no sandboxes";
            SandboxFault::with_reason(SandboxFaultKind::Unavailable, message, "sandboxes_off")
        })
    }
}

impl std::ops::Deref for App {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}
