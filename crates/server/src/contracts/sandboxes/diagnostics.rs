//! Figures and the state of the whole, as JSON without secrets.

use std::time::Instant;

use axum::Router;
use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::get;
use serde_json::{Value, json};
use tenure_contract::duration;
use tenure_contract::sandboxes::SystemStats;
use tenure_core::Timestamp;
use tenure_core::sandbox::State as SandboxState;
use tenure_engine::sandboxes::SandboxCounts;

use super::fleet::{all_workers, provider_records};
use super::{render, respond};
use crate::error::Fault;
use crate::request::RequestId;
use crate::sandboxes::machine;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/diagnostics", get(diagnostics))
        .route("/api/v1/metrics", get(metrics))
        .route("/api/v1/system/stats", get(system))
        .route("/api/v1/admin/diagnostics", get(admin_diagnostics))
        .route("/api/v1/admin/metrics", get(admin_metrics))
}

/// Show how busy the machine of the control plane is
#[utoipa::path(get, path = "/api/v1/system/stats", operation_id = "get_system_stats", tag = "health", security(("api_key" = ["operator"])),
    responses((status = 200, body = SystemStats, description = "The figures")))]
pub async fn system(Extension(id): Extension<RequestId>) -> Response {
    respond(Ok(machine::stats().await), &id)
}

/// Show the figures of sandboxes as JSON
#[utoipa::path(get, path = "/api/v1/metrics", operation_id = "get_sandbox_metrics", tag = "health", security(("api_key" = ["operator"])),
    responses((status = 200, description = "The figures")))]
pub async fn metrics(State(app): State<App>, Extension(id): Extension<RequestId>) -> Response {
    respond(figures(&app).await, &id)
}

/// Show the figures of sandboxes as JSON, for admins
#[utoipa::path(get, path = "/api/v1/admin/metrics", operation_id = "admin_get_sandbox_metrics", tag = "health", security(("api_key" = ["admin"])),
    responses((status = 200, description = "The figures")))]
pub async fn admin_metrics(app: State<App>, id: Extension<RequestId>) -> Response {
    metrics(app, id).await
}

async fn figures(app: &App) -> Result<Value, Fault> {
    let counts = app.sandboxes()?.manager.counts().await?;
    let providers = provider_records(app).await?;
    let (in_use, asked_for) = machine::own_memory().await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    Ok(json!({
        "uptime": duration::canonical(app.started.elapsed()),
        // The names are those of the contract; this server has tasks, and no collector.
        "goroutines": tasks,
        "memory_alloc": in_use,
        "memory_sys": asked_for,
        "memory_heap_alloc": in_use,
        "gc_cycles": 0,
        "sandboxes": sandboxes(&counts),
        "providers": {
            "total": providers.len(),
            "healthy": providers.iter().filter(|provider| provider.healthy).count(),
            "items": providers,
        },
        "workers": counts.workers,
        "leases": leases(&counts),
        "events": events(&counts),
        "operations": {},
        "scheduler": scheduler(app, &counts)?,
        "quotas": quotas(&counts),
        "rate_limit": rate_limit(app),
    }))
}

fn sandboxes(counts: &SandboxCounts) -> Value {
    let live = |state: &SandboxState| *state != SandboxState::Destroyed;
    let by_state: serde_json::Map<String, Value> = counts
        .by_state
        .iter()
        .filter(|(state, _)| live(state))
        .map(|(state, count)| (state.as_str().to_owned(), json!(count)))
        .collect();
    let total: u64 = counts.by_state.iter().filter(|(state, _)| live(state)).map(|(_, count)| count).sum();
    let active: u64 = counts.by_state.iter().filter(|(state, _)| state.counts()).map(|(_, count)| count).sum();
    let by_worker: serde_json::Map<String, Value> =
        counts.by_worker.iter().map(|(worker, count)| (worker.to_string(), json!(count))).collect();
    json!({"total": total, "active": active, "by_state": by_state, "by_provider": counts.by_provider, "by_worker": by_worker})
}

fn leases(counts: &SandboxCounts) -> Value {
    json!({"active": counts.leases.active, "expired": counts.leases.expired, "total": counts.leases.active + counts.leases.expired})
}

fn events(counts: &SandboxCounts) -> Value {
    let (first, last) = counts.events;
    json!({"first_id": first, "last_id": last, "history_size": if last == 0 { 0 } else { last - first + 1 }})
}

fn quotas(counts: &SandboxCounts) -> Value {
    json!({
        "total": counts.quotas,
        "with_max_sandboxes": counts.quotas_with_max_sandboxes,
        "with_max_ttl": counts.quotas_with_max_ttl,
        "with_max_exec_timeout": counts.quotas_with_max_exec_timeout,
    })
}

fn scheduler(app: &App, counts: &SandboxCounts) -> Result<Value, Fault> {
    let settings = app.sandboxes()?.manager.settings();
    let (memory, vcpus, count) = settings.weights;
    Ok(json!({
        "queue_depth": counts.queue_depth,
        "queue_capacity": counts.queue_capacity,
        "spawning": counts.spawning,
        "freshness": render::canonical(settings.freshness_ms),
        "weights": {"memory": memory, "vcpus": vcpus, "count": count},
    }))
}

fn rate_limit(app: &App) -> Value {
    match app.access.get().rate_limit {
        None => json!({"enabled": false}),
        Some(limit) => json!({
            "enabled": true,
            "requests_per_minute": limit.requests_per_minute,
            "burst": limit.burst,
            "active_buckets": app.limiter.len(),
        }),
    }
}

/// Show the state of the whole, without secrets
#[utoipa::path(get, path = "/api/v1/diagnostics", operation_id = "get_diagnostics", tag = "health", security(("api_key" = ["operator"])),
    responses((status = 200, description = "The state")))]
pub async fn diagnostics(State(app): State<App>, Extension(id): Extension<RequestId>) -> Response {
    respond(state(&app).await, &id)
}

/// Show the state of the whole, for admins
#[utoipa::path(get, path = "/api/v1/admin/diagnostics", operation_id = "admin_get_diagnostics", tag = "health", security(("api_key" = ["admin"])),
    responses((status = 200, description = "The state")))]
pub async fn admin_diagnostics(app: State<App>, id: Extension<RequestId>) -> Response {
    diagnostics(app, id).await
}

async fn state(app: &App) -> Result<Value, Fault> {
    let asked = Instant::now();
    let now: Timestamp = app.engine.now().await?;
    let latency_ms = u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
    let counts = app.sandboxes()?.manager.counts().await?;
    let settings = app.sandboxes()?.manager.settings();
    let providers = provider_records(app).await?;
    let workers = all_workers(app).await?;
    let (in_use, _) = machine::own_memory().await;
    let unhealthy = counts.by_state.get(&SandboxState::Unhealthy).copied().unwrap_or_default();
    let stale = workers.iter().filter(|worker| worker.stale).map(|worker| worker.id.as_str()).collect::<Vec<_>>();
    Ok(json!({
        "generated_at": now.to_string(),
        "build": {"version": env!("CARGO_PKG_VERSION"), "os": std::env::consts::OS, "arch": std::env::consts::ARCH},
        "process": {
            "uptime": duration::canonical(app.started.elapsed()),
            "memory_bytes": in_use,
            "tasks": tokio::runtime::Handle::current().metrics().num_alive_tasks(),
        },
        "store": {"healthy": true, "latency_ms": latency_ms, "kind": app.engine.store_kind()},
        "limits": {
            "max_sandboxes": settings.max_sandboxes,
            "max_sandboxes_per_owner": settings.max_sandboxes_per_owner,
            "max_ttl": render::canonical(settings.max_ttl_ms),
            "max_exec_timeout": render::canonical(settings.max_exec_timeout_ms),
            "max_spawn_queue": settings.max_spawn_queue,
        },
        "scheduler": scheduler(app, &counts)?,
        "quotas": quotas(&counts),
        "rate_limit": rate_limit(app),
        "providers": providers,
        "workers": {"by_status": counts.workers, "items": workers},
        "leases": leases(&counts),
        "sandboxes": sandboxes(&counts),
        "events": events(&counts),
        "operations": [],
        "remediation": remediation(&stale, unhealthy, providers.iter().any(|provider| provider.healthy)),
        "redactions": ["credentials", "environment of sandboxes", "commands", "secrets of templates"],
    }))
}

/// What an operator should look at, by what is wrong.
fn remediation(stale: &[&str], unhealthy: u64, has_provider: bool) -> Value {
    let mut advice = serde_json::Map::new();
    if !has_provider {
        advice.insert("providers".into(), json!("no online worker has a provider: start `tenure worker --listen`"));
    }
    if !stale.is_empty() {
        let text = format!("no heartbeat from {}: check these workers and their way to the server", stale.join(", "));
        advice.insert("workers".into(), json!(text));
    }
    if unhealthy > 0 {
        let text = format!("{unhealthy} sandboxes are unhealthy: their workers do not answer for them");
        advice.insert("sandboxes".into(), json!(text));
    }
    Value::Object(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_about_what_is_wrong() {
        assert_eq!(remediation(&[], 0, true), json!({}));
        let advice = remediation(&["w-1"], 2, false);
        assert!(advice["workers"].as_str().unwrap().contains("w-1"));
        assert_eq!(advice.as_object().unwrap().len(), 3);
    }
}
