//! The metrics of a worker process, for Prometheus.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

use crate::rpc;

/// From a call that only looks something up to one that runs a command for minutes.
const SECONDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 120.0, 600.0];

/// Serves `GET /metrics` at an address of its own, without authentication.
#[derive(Debug)]
pub struct Exporter {
    listener: TcpListener,
    handle: PrometheusHandle,
}

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    #[error("metrics cannot be served at {address}")]
    Listen {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("metrics cannot be recorded")]
    Build(#[source] BuildError),
    #[error("metrics of this process are recorded already")]
    Taken,
}

impl Exporter {
    /// Records the metrics of this process from now on. Can be done once.
    pub async fn bind(address: &str) -> Result<Self, ExporterError> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| ExporterError::Listen { address: address.to_owned(), source })?;
        let times = Matcher::Suffix("_seconds".to_owned());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(times, &SECONDS).map_err(ExporterError::Build)?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| ExporterError::Taken)?;
        Ok(Self { listener, handle })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let handle = self.handle;
        let render = move || async move { text(&handle) };
        rpc::run_aside(self.listener, Router::new().route("/metrics", get(render)), shutdown).await;
    }
}

fn text(handle: &PrometheusHandle) -> Response {
    handle.run_upkeep();
    let mut response = handle.render().into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
