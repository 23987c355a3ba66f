//! Figures for Prometheus.

use std::fmt::Write as _;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tenure_contract::sandboxes::ProviderHealth;
use tenure_core::{Timestamp, limits};
use tenure_engine::store::{QueueStats, WorkerRecord};

use super::{metric_help as help, process_metrics as process};
use crate::access::guard::User;
use crate::contracts::sandboxes::paths::fleet::provider_records;
use crate::sandboxes::machine;
use crate::state::App;

/// A worker that has not called for this long is counted as offline.
const WORKER_GONE_MS: i64 = 120_000;

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
    let queues = app.engine.queues(caller.queues_of(), None, limits::LIST_LIMIT_MAX).await;
    let queues = queues.map(|page| page.items).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the queue counts for the metrics");
        Vec::new()
    });
    if caller.queues_of().is_some() {
        text = without_others(&text, &queues);
    }
    queue_depths(&mut text, &queues);
    match app.engine.now().await {
        Ok(now) => oldest(&mut text, &queues, now),
        Err(error) => tracing::warn!(%error, "cannot read the time for the metrics"),
    }
    if let Ok(page) = app.engine.worker_records("", limits::LIST_LIMIT_MAX).await {
        of_workers(&mut text, &page.items, app.engine.now().await.ok());
    }
    of_build(&mut text);
    process::write(&mut text);
    text.push_str("# HELP tenure_rate_limit_active_buckets Callers being counted by the rate limit.\n");
    text.push_str("# TYPE tenure_rate_limit_active_buckets gauge\n");
    let _ = writeln!(text, "tenure_rate_limit_active_buckets {}", app.limiter.len());
    let (work, heartbeat) = app.engine.waiting();
    text.push_str("# HELP tenure_lane_waiting Requests waiting for the store.\n# TYPE tenure_lane_waiting gauge\n");
    let _ = writeln!(text, "tenure_lane_waiting{{lane=\"work\"}} {work}");
    let _ = writeln!(text, "tenure_lane_waiting{{lane=\"heartbeat\"}} {heartbeat}");
    let held = app.memory.in_use() as u64;
    gauge(&mut text, "tenure_request_memory_bytes", "Memory of bodies and pages.", held);
    text.push_str("# HELP tenure_clock_offset_seconds How far the wall clock is ahead of the clock of the store.\n");
    text.push_str("# TYPE tenure_clock_offset_seconds gauge\n");
    let _ = writeln!(text, "tenure_clock_offset_seconds {}", app.engine.wall_ahead_ms() as f64 / 1_000.0);
    gauge(&mut text, "tenure_event_streams", "Open event streams.", app.event_streams.open() as u64);
    if let Ok(part) = app.sandboxes() {
        of_process(&mut text, &app).await;
        let held = part.bounds.memory_in_use() as u64;
        gauge(&mut text, "tenure_sandbox_request_memory_bytes", "Memory of bodies and answers of sandboxes.", held);
        if let Ok(providers) = provider_records(&app).await {
            of_providers(&mut text, &providers);
        }
        if part.offer().legacy_metrics {
            let former = former_names(&text);
            text.push_str(&former);
        }
    }
    let mut response = help::with_help(&text).into_response();
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    response
}

/// Without the figures of queues that the caller cannot see.
fn without_others(text: &str, queues: &[QueueStats]) -> String {
    let own: Vec<String> = queues.iter().map(|stats| format!("queue=\"{}\"", label(&stats.queue.name))).collect();
    let is_own = |line: &&str| !line.contains("queue=\"") || own.iter().any(|own| line.contains(own.as_str()));
    text.lines().filter(is_own).fold(String::with_capacity(text.len()), |text, line| text + line + "\n")
}

fn oldest(text: &mut String, queues: &[QueueStats], now: Timestamp) {
    text.push_str("# TYPE tenure_queue_oldest_ready_seconds gauge\n");
    for stats in queues {
        let age = stats.oldest_ready_at.map_or(0, |at| now.since(at).max(0)) as f64 / 1_000.0;
        let _ = writeln!(text, "tenure_queue_oldest_ready_seconds{{queue=\"{}\"}} {age}", label(&stats.queue.name));
    }
}

fn of_workers(text: &mut String, records: &[WorkerRecord], now: Option<Timestamp>) {
    let is_here = |record: &&WorkerRecord| now.is_none_or(|now| now.since(record.seen_at) <= WORKER_GONE_MS);
    let here: Vec<&WorkerRecord> = records.iter().filter(is_here).collect();
    let drained = here.iter().filter(|record| record.drained_at.is_some()).count();
    text.push_str("# TYPE tenure_task_workers gauge\n");
    let _ = writeln!(text, "tenure_task_workers{{status=\"online\"}} {}", here.len() - drained);
    let _ = writeln!(text, "tenure_task_workers{{status=\"draining\"}} {drained}");
    let _ = writeln!(text, "tenure_task_workers{{status=\"offline\"}} {}", records.len() - here.len());
    let slots: u64 = here.iter().filter_map(|record| record.details.slots).map(u64::from).sum();
    let held: u64 = here.iter().map(|record| record.held).sum();
    let _ = write!(text, "# TYPE tenure_task_worker_slots gauge\ntenure_task_worker_slots {slots}\n");
    let _ = write!(text, "# TYPE tenure_task_worker_held gauge\ntenure_task_worker_held {held}\n");
}

fn of_build(text: &mut String) {
    let version = env!("CARGO_PKG_VERSION");
    let _ = write!(text, "# TYPE tenure_build_info gauge\ntenure_build_info{{version=\"{version}\"}} 1\n");
}

fn gauge(text: &mut String, name: &str, help: &str, value: u64) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
}

async fn of_process(text: &mut String, app: &App) {
    let (in_use, asked_for) = machine::own_memory().await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    gauge(text, "tenure_uptime_seconds", "Seconds since the start.", app.started.elapsed().as_secs());
    gauge(text, "tenure_runtime_memory_alloc_bytes", "Memory in use.", in_use);
    gauge(text, "tenure_runtime_memory_sys_bytes", "Memory that was asked for.", asked_for);
    gauge(text, "tenure_runtime_tasks", "Tasks of the runtime.", tasks as u64);
}

fn of_providers(text: &mut String, providers: &[ProviderHealth]) {
    text.push_str("# HELP tenure_provider_healthy Whether an online worker has the provider.\n# TYPE tenure_provider_healthy gauge\n");
    for provider in providers {
        let healthy = u8::from(provider.healthy);
        let _ = writeln!(text, "tenure_provider_healthy{{provider=\"{}\"}} {healthy}", label(&provider.name));
    }
    text.push_str("# HELP tenure_provider_runtime_sandboxes Sandboxes of a provider.\n# TYPE tenure_provider_runtime_sandboxes gauge\n");
    for provider in providers {
        let count = provider.runtime_count.unwrap_or_default();
        let _ = writeln!(text, "tenure_provider_runtime_sandboxes{{provider=\"{}\"}} {count}", label(&provider.name));
    }
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}

/// Beginnings of the figures that have another name elsewhere.
const FORMER: [&str; 17] = [
    "uptime_seconds",
    "sandboxes_",
    "provider_",
    "workers_total",
    "leases_total",
    "events_total",
    "event_subscribers",
    "event_history_size",
    "spawn_queue_",
    "owner_quota",
    "rate_limit_",
    "operation_success_total",
    "operation_failure_total",
    "operation_latency_milliseconds",
    "runtime_memory_",
    "runtime_goroutines",
    "runtime_tasks",
];

/// The same figures under the names that `metrics.legacy_names` asks for.
fn former_names(text: &str) -> String {
    let of_line = |line: &str| {
        let (head, name) = match line.strip_prefix("# ") {
            Some(rest) => {
                let (kind, rest) = rest.split_once(' ')?;
                (format!("# {kind} "), rest)
            }
            None => (String::new(), line),
        };
        let name = name.strip_prefix("tenure_")?;
        let known = FORMER.iter().any(|beginning| name.starts_with(beginning));
        let name = name.replacen("runtime_tasks", "runtime_goroutines", 1);
        known.then(|| format!("{head}stacyvm_{name}\n"))
    };
    text.lines().filter_map(of_line).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_names_are_those_of_sandboxes_only() {
        let text = "# HELP tenure_sandboxes_total S.\n# TYPE tenure_sandboxes_total gauge\ntenure_sandboxes_total{state=\"running\"} 1\ntenure_queue_tasks 2\ntenure_runtime_tasks 3\n";
        assert_eq!(
            former_names(text),
            "# HELP stacyvm_sandboxes_total S.\n# TYPE stacyvm_sandboxes_total gauge\nstacyvm_sandboxes_total{state=\"running\"} 1\nstacyvm_runtime_goroutines 3\n"
        );
        assert_eq!(label("a\"b\\c"), "a\\\"b\\\\c");
    }
}
