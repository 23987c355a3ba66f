//! Figures for Prometheus.

use std::fmt::Write as _;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tenure_core::limits;
use tenure_engine::store::QueueStats;

use crate::access::guard::User;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new().route("/metrics", get(metrics_at_root)).route("/api/v1/metrics/prometheus", get(metrics))
}

/// The same, where scrapers look first
#[utoipa::path(get, path = "/metrics", operation_id = "get_metrics_at_root", tag = "health", security(("api_key" = ["operator"])),
    responses((status = 200, description = "Prometheus text format", content_type = "text/plain")))]
pub async fn metrics_at_root(state: State<App>, caller: User) -> Response {
    metrics(state, caller).await
}

/// Figures for Prometheus
#[utoipa::path(get, path = "/api/v1/metrics/prometheus", operation_id = "get_metrics", tag = "health", security(("api_key" = ["operator"])),
    responses((status = 200, description = "Prometheus text format", content_type = "text/plain")))]
pub async fn metrics(State(app): State<App>, Extension(caller): User) -> Response {
    let mut text = app.metrics.render();
    // Depths are read when asked for: they are the store's, not this process's. Queues have names, so an operator of
    // one tenant sees those of its own; other figures name nobody.
    match app.engine.queues(caller.queues_of(), None, limits::LIST_LIMIT_MAX).await {
        Ok(page) => queue_depths(&mut text, &page.items),
        Err(error) => tracing::warn!(%error, "cannot read the queue counts for the metrics"),
    }
    text.push_str("# HELP tenure_rate_limit_active_buckets Callers being counted by the rate limit.\n");
    text.push_str("# TYPE tenure_rate_limit_active_buckets gauge\n");
    let _ = writeln!(text, "tenure_rate_limit_active_buckets {}", app.limiter.len());
    let (work, heartbeat) = app.engine.waiting();
    text.push_str("# HELP tenure_lane_waiting Requests waiting for the store.\n# TYPE tenure_lane_waiting gauge\n");
    let _ = writeln!(text, "tenure_lane_waiting{{lane=\"work\"}} {work}");
    let _ = writeln!(text, "tenure_lane_waiting{{lane=\"heartbeat\"}} {heartbeat}");
    let mut response = text.into_response();
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    response
}

fn queue_depths(text: &mut String, queues: &[QueueStats]) {
    text.push_str("# HELP tenure_queue_tasks Tasks of a queue by state.\n# TYPE tenure_queue_tasks gauge\n");
    for stats in queues {
        let counts = &stats.counts;
        for (state, count) in [
            ("scheduled", counts.scheduled),
            ("ready", counts.ready),
            ("running", counts.running),
            ("finished", counts.finished),
            ("dead_lettered", counts.dead_lettered),
        ] {
            let name = stats.queue.name.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(text, "tenure_queue_tasks{{queue=\"{name}\",state=\"{state}\"}} {count}");
        }
    }
}
