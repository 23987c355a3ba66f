use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tenure_auth::{UserAuth, WorkerAuth};
use tenure_engine::Engine;
use tokio::sync::Semaphore;

use crate::limits;

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    pub worker_auth: WorkerAuth,
    pub user_auth: UserAuth,
    pub max_connections: usize,
    /// How long open requests may take to finish once the server is told to stop.
    pub drain_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            worker_auth: WorkerAuth::default(),
            user_auth: UserAuth::default(),
            max_connections: limits::MAX_CONNECTIONS_DEFAULT,
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
    pub worker_auth: WorkerAuth,
    pub user_auth: UserAuth,
    pub metrics: PrometheusHandle,
    pub event_streams: Arc<Semaphore>,
}

impl App {
    pub fn new(engine: Engine, config: &ServerConfig, metrics: PrometheusHandle) -> Self {
        Self(Arc::new(Inner {
            engine,
            worker_auth: config.worker_auth.clone(),
            user_auth: config.user_auth.clone(),
            metrics,
            event_streams: Arc::new(Semaphore::new(limits::EVENT_STREAMS)),
        }))
    }
}

impl std::ops::Deref for App {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}
