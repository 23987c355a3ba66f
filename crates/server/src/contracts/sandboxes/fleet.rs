//! Workers that hold sandboxes, the providers that they have, and warm pools.

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{delete, get, post};
use serde_json::json;
use tenure_contract::sandboxes::{
    Outcome, PoolStatus, ProviderHealth, ProviderInfo, SandboxError, WarmPool, WorkerInfo,
};
use tenure_core::limits;
use tenure_core::sandbox::placement::{Usage, Worker, same_provider};

use super::{render, respond};
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::request::RequestId;
use crate::state::App;
use crate::validate;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/admin/workers/{id}", delete(remove))
        .route("/api/v1/providers", get(providers))
        .route("/api/v1/providers/test", post(test_providers))
        .route("/api/v1/providers/{name}", get(provider))
        .route("/api/v1/providers/{name}/health", get(provider_health))
        .route("/api/v1/admin/providers", get(admin_providers))
        .route("/api/v1/pool/status", get(pool))
}

pub fn named(id: &str) -> Result<&str, Fault> {
    let fits = validate::text_of(id, "worker", limits::WORKER_ID_BYTES).is_ok();
    if fits { Ok(id) } else { Err(SandboxFault::fault(SandboxFaultKind::NotFound, "no such worker")) }
}

pub async fn all_workers(app: &App) -> Result<Vec<WorkerInfo>, Fault> {
    let manager = &app.sandboxes()?.manager;
    let (found, now, freshness_ms) =
        (manager.sandbox_workers().await?, app.engine.now().await?, manager.settings().freshness_ms);
    let usage = manager.usage_of(&found).await?;
    let shown =
        |(worker, used): (&Worker, Usage)| render::worker(worker, worker.is_stale(freshness_ms, now), Some(used));
    Ok(found.iter().zip(usage).map(shown).collect())
}

/// Forget a worker that holds sandboxes; a live one returns with its next heartbeat
#[utoipa::path(delete, path = "/api/v1/admin/workers/{id}", operation_id = "remove_sandbox_worker", tag = "workers", params(("id" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = Outcome, description = "deleted")))]
pub async fn remove(State(app): State<App>, Extension(id): Extension<RequestId>, Path(name): Path<String>) -> Response {
    let answer = async {
        app.sandboxes()?.manager.remove_worker(named(&name)?).await?;
        Ok(Outcome::new("deleted"))
    };
    respond(answer.await, &id)
}

/// The providers that workers have told of, and how they are.
pub async fn provider_records(app: &App) -> Result<Vec<ProviderHealth>, Fault> {
    let counts = app.sandboxes()?.manager.counts().await?;
    records(app, Some(&counts.by_provider)).await
}

/// The same without how many sandboxes they have, which takes longer to find out.
pub async fn provider_states(app: &App) -> Result<Vec<ProviderHealth>, Fault> {
    records(app, None).await
}

async fn records(app: &App, counts: Option<&BTreeMap<String, u64>>) -> Result<Vec<ProviderHealth>, Fault> {
    let part = app.sandboxes()?;
    let workers = part.manager.sandbox_workers().await?;
    let now = app.engine.now().await?;
    let settings = part.manager.settings();
    let is_fresh = |worker: &&Worker| {
        worker.status == "online" && !worker.is_barred && !worker.is_stale(settings.freshness_ms, now)
    };
    let fresh: Vec<&Worker> = workers.iter().filter(is_fresh).collect();
    let default = settings.defaults.provider.clone();
    let mut names: BTreeSet<&str> =
        workers.iter().flat_map(|worker| worker.providers.iter().map(String::as_str)).collect();
    if !default.is_empty() {
        names.insert(&default);
    }
    let records = names.into_iter().map(|name| {
        let has = |worker: &&&Worker| worker.providers.iter().any(|own| same_provider(own, name));
        let on: Vec<_> = fresh.iter().filter(has).collect();
        let capabilities: BTreeSet<String> = on.iter().flat_map(|worker| worker.capabilities.clone()).collect();
        let count = |(known, count): (&String, &u64)| if same_provider(known, name) { *count } else { 0 };
        ProviderHealth {
            name: name.to_owned(),
            healthy: !on.is_empty(),
            default: same_provider(name, &default),
            latency_ms: 0,
            last_checked: render::whole_seconds(
                workers.iter().filter(|worker| has(&worker)).map(|worker| worker.last_heartbeat).max().unwrap_or(now),
            ),
            error: on.is_empty().then(|| "no online worker has this provider".to_owned()),
            capabilities: capabilities.into_iter().collect(),
            runtime_count: counts.map(|counts| counts.iter().map(count).sum()),
        }
    });
    Ok(records.collect())
}

async fn record(app: &App, name: &str) -> Result<ProviderHealth, Fault> {
    let found = provider_records(app).await?.into_iter().find(|record| same_provider(&record.name, name));
    let record = found.ok_or_else(|| SandboxFault::fault(SandboxFaultKind::NotFound, "no such provider"))?;
    Ok(ProviderHealth { name: name.to_owned(), ..record })
}

/// List providers
#[utoipa::path(get, path = "/api/v1/providers", operation_id = "list_providers", tag = "workers", security(("api_key" = ["operator"])),
    responses((status = 200, body = Vec<ProviderHealth>, description = "The providers of all workers, by name")))]
pub async fn providers(State(app): State<App>, Extension(id): Extension<RequestId>) -> Response {
    respond(provider_records(&app).await, &id)
}

/// List providers, for admins
#[utoipa::path(get, path = "/api/v1/admin/providers", operation_id = "admin_list_providers", tag = "workers", security(("api_key" = ["admin"])),
    responses((status = 200, body = Vec<ProviderHealth>, description = "The providers of all workers, by name")))]
pub async fn admin_providers(app: State<App>, id: Extension<RequestId>) -> Response {
    providers(app, id).await
}

/// Show a provider
#[utoipa::path(get, path = "/api/v1/providers/{name}", operation_id = "get_provider", tag = "workers", params(("name" = String, Path)), security(("api_key" = ["operator"])),
    responses((status = 200, body = ProviderInfo, description = "The provider"), (status = 404, body = SandboxError, description = "no such provider")))]
pub async fn provider(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
) -> Response {
    let answer = async {
        let health = record(&app, &name).await?;
        Ok(ProviderInfo {
            name: health.name.clone(),
            healthy: health.healthy,
            default: health.default,
            sandbox_count: health.runtime_count.unwrap_or_default(),
            health,
            // Settings of providers are those of their workers.
            config: json!({}),
        })
    };
    respond(answer.await, &id)
}

/// Show the health of a provider
#[utoipa::path(get, path = "/api/v1/providers/{name}/health", operation_id = "get_provider_health", tag = "workers", params(("name" = String, Path)), security(("api_key" = ["operator"])),
    responses((status = 200, body = ProviderHealth, description = "Its health")))]
pub async fn provider_health(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
) -> Response {
    respond(record(&app, &name).await, &id)
}

/// Say which providers work
#[utoipa::path(post, path = "/api/v1/providers/test", operation_id = "test_providers", tag = "workers", security(("api_key" = ["operator"])),
    responses((status = 200, description = "Whether each provider works, by name")))]
pub async fn test_providers(State(app): State<App>, Extension(id): Extension<RequestId>, _: Uri) -> Response {
    let records = provider_records(&app).await;
    let tested = records.map(|records| {
        records.into_iter().map(|record| (record.name, record.healthy)).collect::<BTreeMap<String, bool>>()
    });
    respond(tested, &id)
}

/// Show warm pools
#[utoipa::path(get, path = "/api/v1/pool/status", operation_id = "get_pool_status", tag = "templates", security(("api_key" = ["read"])),
    responses((status = 200, body = PoolStatus, description = "How many warm sandboxes there are")))]
pub async fn pool(State(app): State<App>, Extension(id): Extension<RequestId>, Extension(caller): User) -> Response {
    let answer = async {
        let status = app.sandboxes()?.manager.pool_status(Some(&caller.home())).await?;
        if !status.is_enabled {
            return Ok(PoolStatus::default());
        }
        Ok(PoolStatus {
            enabled: true,
            vms: Some(status.warm.iter().map(|pool| pool.ready).sum()),
            max_vms: Some(status.warm.iter().map(|pool| pool.target).sum()),
            total_users: Some(0),
            max_users_per_vm: Some(1),
            warm: status
                .warm
                .into_iter()
                .map(|pool| WarmPool { template: pool.template.to_string(), ready: pool.ready, target: pool.target })
                .collect(),
        })
    };
    respond(answer.await, &id)
}
