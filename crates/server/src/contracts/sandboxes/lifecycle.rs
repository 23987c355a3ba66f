//! Sandboxes: created, listed, shown, extended, destroyed.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use tenure_contract::sandboxes::{Admission, ExtendRequest, Outcome, Pruned, Sandbox, SandboxWrite};
use tenure_core::sandbox::{self, State as SandboxState};
use tenure_core::{Timestamp, limits};
use tenure_engine::sandboxes::{Caller as Asker, Created, Ended, Request};
use tenure_engine::store::{RequestKey, SandboxFilter};

use super::errors::refuse;
use super::{NEXT_CURSOR, Params, params, render, respond, respond_whole, respond_with};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::{Fault, Forbidden, SandboxFault, SandboxFaultKind};
use crate::request::RequestId;
use crate::sandboxes::calls::known;
use crate::sandboxes::duration_ms;
use crate::state::App;
use crate::validate;

/// Without a limit a list is complete up to here.
const LIST_MAX: usize = 10_000;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/sandboxes", post(create).get(list).delete(prune))
        .route("/api/v1/sandboxes/admission", post(admission))
        .route("/api/v1/sandboxes/{id}", get(show).delete(destroy))
        .route("/api/v1/sandboxes/{id}/extend", post(extend))
}

/// Who asks, for the manager.
pub fn asker(caller: &Caller, id: &RequestId) -> Asker {
    Asker {
        tenant: caller.home(),
        owner: caller.subject.clone(),
        reach: caller.reach(),
        actor: Arc::clone(&caller.actor),
        request_id: Some(id.0.as_str().into()),
    }
}

/// The same for something new, whose owner and tenant the body may name: `X-User-ID` takes precedence, and a key with an
/// owner refuses another.
fn asker_for(caller: &Caller, id: &RequestId, headers: &HeaderMap, asked: &SandboxWrite) -> Result<Asker, Fault> {
    let tenant = caller.tenant_for(asked.tenant_id.as_deref(), "tenant_id")?;
    let owner = match (&caller.subject, asked.owner_id.as_deref()) {
        (Some(own), Some(asked)) if **own != *asked && !headers.contains_key("x-user-id") => {
            return Err(Forbidden::Owner.into());
        }
        (Some(own), _) => Some(Arc::clone(own)),
        (None, Some(asked)) => Some(validate::owner(asked, "owner_id")?),
        (None, None) => None,
    };
    Ok(Asker { tenant, owner, ..asker(caller, id) })
}

/// What a body asks for.
pub fn request(asked: SandboxWrite) -> Result<Request, Fault> {
    Ok(Request {
        image: asked.image,
        provider: asked.provider,
        memory_mb: asked.memory_mb,
        vcpus: asked.vcpus,
        disk_mb: asked.disk_size_mb,
        pids_limit: asked.pids_limit,
        ttl_ms: asked.ttl.as_deref().map(|ttl| duration_ms(ttl, "ttl")).transpose()?,
        template: asked.template,
        snapshot: asked.snapshot,
        env: asked.env,
        allowed_hosts: asked.allowed_hosts,
        read_only_root: asked.read_only_root,
        metadata: asked.metadata,
        labels: Vec::new(),
    })
}

/// A sandbox as it is shown, with the domain below which its ports are.
pub async fn shown(app: &App, row: &sandbox::Sandbox) -> Result<Sandbox, Fault> {
    let part = app.sandboxes()?;
    Ok(render::sandbox(row, Some(part.preview_domain(row.worker.as_deref()).await)))
}

/// Create a sandbox
///
/// Waits until it runs, unless `wait=false`. An `Idempotency-Key` makes the request safe to repeat for 24 hours.
#[utoipa::path(post, path = "/api/v1/sandboxes", operation_id = "create_sandbox", tag = "sandboxes", request_body = SandboxWrite,
    params(("wait" = Option<bool>, Query, description = "default true"), ("Idempotency-Key" = Option<String>, Header)), security(("api_key" = ["api"])),
    responses((status = 201, body = Sandbox, description = "It runs"), (status = 202, body = Sandbox, description = "It is being created, or waits for room")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let wait = Params::of(&uri)?.flag("wait")?.unwrap_or(true);
        let (asked, _room): (SandboxWrite, _) = params::read(&app, &caller, &headers, body).await?;
        let asker = asker_for(&caller, &id, &headers, &asked)?;
        let key = key(&headers, &asked)?;
        let created = app.sandboxes()?.manager.create(&request(asked)?, &asker, key, wait).await?;
        created_answer(&app, created, wait).await
    };
    respond_created(answer.await, &id)
}

pub async fn created_answer(app: &App, created: Created, wait: bool) -> Result<(StatusCode, Sandbox), Fault> {
    let is_there = created.row.state != SandboxState::Creating;
    let status = if wait || is_there { StatusCode::CREATED } else { StatusCode::ACCEPTED };
    Ok((status, shown(app, &created.row).await?))
}

pub fn respond_created(answer: Result<(StatusCode, Sandbox), Fault>, id: &RequestId) -> Response {
    match answer {
        Ok((status, sandbox)) => respond_with(status, Ok(sandbox), id),
        Err(fault) => refuse(fault, id),
    }
}

/// The idempotency key of a request, with a digest of what it asks for.
fn key(headers: &HeaderMap, asked: &SandboxWrite) -> Result<Option<RequestKey>, Fault> {
    let Some(key) = headers.get("idempotency-key").filter(|key| !key.is_empty()) else { return Ok(None) };
    let key = key.to_str().map_err(|_| Fault::malformed("Idempotency-Key is not plain text"))?;
    let key = validate::words(key, "Idempotency-Key", limits::IDEMPOTENCY_KEY_BYTES)?;
    let body = serde_json::to_vec(asked).map_err(|_| Fault::Internal)?;
    // Keys are those of an owner in a tenant, so the rest of the request is all that can differ.
    Ok(Some((key, crate::sandboxes::sha256(&body))))
}

/// Say whether a sandbox would be created now
#[utoipa::path(post, path = "/api/v1/sandboxes/admission", operation_id = "check_sandbox_admission", tag = "sandboxes", request_body = SandboxWrite,
    params(("explain" = Option<bool>, Query, description = "adds which workers are eligible")), security(("api_key" = ["read"])),
    responses((status = 200, body = Admission, description = "The decision")))]
pub async fn admission(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let explain = Params::of(&uri)?.flag("explain")?.unwrap_or_default();
        let (asked, _room): (SandboxWrite, _) = params::read(&app, &caller, &headers, body).await?;
        let asker = asker_for(&caller, &id, &headers, &asked)?;
        let decision = app.sandboxes()?.manager.admission(&request(asked)?, &asker).await?;
        let eligible = decision.eligible_workers.len() as u64;
        Ok(Admission {
            allowed: decision.allowed,
            queueable: decision.queueable,
            reason: decision.reason.map(ToOwned::to_owned),
            active_sandboxes: decision.active_sandboxes,
            max_sandboxes: decision.max_sandboxes,
            active_owner_sandboxes: decision.active_owner_sandboxes,
            max_owner_sandboxes: decision.max_owner_sandboxes,
            max_ttl: decision.max_ttl_ms.map(render::canonical),
            selected_worker_id: decision.selected_worker.filter(|_| explain).map(|worker| worker.to_string()),
            eligible_workers: explain.then_some(eligible),
            worker_reason: decision.worker_reason.filter(|_| explain).map(ToOwned::to_owned),
        })
    };
    respond(answer.await, &id)
}

/// List sandboxes, newest first
///
/// Destroyed ones are left out, and warm ones unless `state=idle`. `X-Next-Cursor` names where a longer list goes on.
#[utoipa::path(get, path = "/api/v1/sandboxes", operation_id = "list_sandboxes", tag = "sandboxes",
    params(("state" = Option<String>, Query), ("limit" = Option<u32>, Query), ("cursor" = Option<String>, Query)), security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<Sandbox>, description = "The sandboxes")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let params = Params::of(&uri)?;
        let filter = SandboxFilter {
            reach: caller.reach(),
            states: states(params.text("state"))?,
            after: params.text("cursor").map(cursor).transpose()?,
            limit: limit(params.number("limit")?)?,
            ..SandboxFilter::default()
        };
        let part = app.sandboxes()?;
        let page = part.manager.list(filter).await?;
        let domains = part.preview_domains().await;
        let next = page.next.is_some().then(|| page.items.last().map(cursor_of)).flatten();
        let items: Vec<Sandbox> =
            page.items.iter().map(|row| render::sandbox(row, Some(domains.of(row.worker.as_deref())))).collect();
        Ok((items, next))
    };
    match answer.await {
        Err(fault) => refuse(fault, &id),
        Ok((items, next)) => {
            let mut response = respond_whole(&app, &caller, Ok(items), &id).await;
            if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
                response.headers_mut().insert(NEXT_CURSOR, next);
            }
            response
        }
    }
}

fn states(text: Option<&str>) -> Result<Vec<SandboxState>, Fault> {
    let words = text.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|word| !word.is_empty());
    let parse = |word: &str| {
        let known = SandboxState::parse(&word.to_ascii_lowercase()).filter(|state| *state != SandboxState::Destroyed);
        known.ok_or_else(|| Fault::bad("state", "state must be creating, running, idle, unhealthy, error or expired"))
    };
    words.map(parse).collect()
}

fn limit(asked: Option<i64>) -> Result<usize, Fault> {
    match asked {
        None | Some(0) => Ok(LIST_MAX),
        Some(asked) => usize::try_from(asked)
            .map(|limit| limit.min(LIST_MAX))
            .map_err(|_| Fault::bad("limit", "limit must not be negative")),
    }
}

/// Where a list goes on: time and id of the last one that was shown.
fn cursor_of(row: &sandbox::Sandbox) -> String {
    format!("{}.{}", row.created_at.as_millis(), row.id)
}

fn cursor(text: &str) -> Result<(Timestamp, Arc<str>), Fault> {
    let wrong = || Fault::bad("cursor", "cursor must be that of a former answer, unchanged");
    let (millis, sandbox) = text.split_once('.').ok_or_else(wrong)?;
    let millis = millis.parse::<i64>().map_err(|_| wrong())?;
    if !crate::sandboxes::is_sandbox_id(sandbox) {
        return Err(wrong());
    }
    Ok((Timestamp::from_millis(millis), sandbox.into()))
}

/// Remove expired sandboxes
#[utoipa::path(delete, path = "/api/v1/sandboxes", operation_id = "prune_sandboxes", tag = "sandboxes", security(("api_key" = ["api"])),
    responses((status = 200, body = Pruned, description = "How many were removed")))]
pub async fn prune(State(app): State<App>, Extension(id): Extension<RequestId>, Extension(caller): User) -> Response {
    let answer = async {
        let pruned = app.sandboxes()?.manager.prune(&asker(&caller, &id)).await?;
        Ok(Pruned { pruned: pruned as u64 })
    };
    respond(answer.await, &id)
}

/// Show a sandbox
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}", operation_id = "get_sandbox", tag = "sandboxes", params(("id" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = Sandbox, description = "The sandbox")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
) -> Response {
    let answer = async {
        known(&sandbox)?;
        let row = app.sandboxes()?.manager.get(&sandbox, &asker(&caller, &id)).await?;
        shown(&app, &row).await
    };
    respond(answer.await, &id)
}

/// Destroy a sandbox
#[utoipa::path(delete, path = "/api/v1/sandboxes/{id}", operation_id = "destroy_sandbox", tag = "sandboxes", params(("id" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "destroyed"), (status = 202, body = Outcome, description = "destroying: its worker cannot be reached now")))]
pub async fn destroy(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
) -> Response {
    let answer = async {
        known(&sandbox)?;
        Ok(app.sandboxes()?.manager.destroy(&sandbox, &asker(&caller, &id)).await?)
    };
    match answer.await {
        Ok(Ended::Destroyed) => respond(Ok(Outcome::new("destroyed")), &id),
        Ok(Ended::Destroying) => respond_with(StatusCode::ACCEPTED, Ok(Outcome::new("destroying")), &id),
        Err(fault) => refuse(fault, &id),
    }
}

/// Give a sandbox more time
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/extend", operation_id = "extend_sandbox", tag = "sandboxes", params(("id" = String, Path)), request_body = ExtendRequest, security(("api_key" = ["api"])),
    responses((status = 200, body = Sandbox, description = "The sandbox with its new end")))]
pub async fn extend(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let (asked, _room): (ExtendRequest, _) = params::read(&app, &caller, &headers, body).await?;
        known(&sandbox)?;
        let ttl_ms = duration_ms(&asked.ttl, "ttl")?;
        if ttl_ms <= 0 {
            return Err(SandboxFault::fault(
                SandboxFaultKind::Invalid,
                "ttl must be a duration above zero, such as 1h",
            ));
        }
        let row = app.sandboxes()?.manager.extend(&sandbox, ttl_ms, &asker(&caller, &id)).await?;
        shown(&app, &row).await
    };
    respond(answer.await, &id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_and_filters_are_read() {
        let (at, id) = cursor("1700000000123.sb-0a1b2c3d").unwrap();
        assert_eq!((at.as_millis(), &*id), (1_700_000_000_123, "sb-0a1b2c3d"));
        for text in ["", "1", "x.sb-0a1b2c3d", "1.sb-x", "1.sb-0a1b2c3d.2"] {
            assert!(cursor(text).is_err(), "{text}");
        }
        assert_eq!(states(Some("Running, idle")).unwrap(), [SandboxState::Running, SandboxState::Idle]);
        assert!(states(Some("destroyed")).is_err() && states(Some("news")).is_err());
        assert_eq!((limit(None).unwrap(), limit(Some(20_000)).unwrap(), limit(Some(5)).unwrap()), (10_000, 10_000, 5));
        assert!(limit(Some(-1)).is_err());
    }
}
