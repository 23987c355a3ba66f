//! Worker tokens: issued to admins and to workers with a bootstrap key, and revoked.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tenure_auth::worker::{Audience, BOOTSTRAP_SCOPES, MintError, MintRequest, Minted, Scope, Scopes, TTL_DEFAULT};
use tenure_contract::admin::{BootstrapRequest, Revocation, Revocations, WorkerToken, WorkerTokenRequest};
use tenure_contract::duration;
use tenure_contract::error::UserError;
use tenure_core::{Timestamp, limits};

use crate::access::guard::{User, unix_now};
use crate::api::errors::refuse;
use crate::api::respond;
use crate::error::{BadRequest, Fault, Setting};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::tenants::unavailable;
use crate::{audit, validate};

const TTL_MAX: Duration = Duration::from_secs(15 * 60);
const TOKEN_ID_BYTES: usize = 256;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/admin/worker-tokens", post(issue))
        .route("/api/v1/admin/worker-tokens/revocations", post(revoke).get(revocations))
        .route("/api/v1/worker/{id}/token", post(bootstrap))
}

/// Issue a signed worker token
#[utoipa::path(post, path = "/api/v1/admin/worker-tokens", operation_id = "issue_worker_token", tag = "admin", request_body = WorkerTokenRequest, security(("api_key" = ["admin"])),
    responses((status = 200, body = WorkerToken, description = "The token"),
              (status = 503, body = UserError, description = "no signing key is configured")))]
pub async fn issue(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let asked: WorkerTokenRequest = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        let audience = asked.audience.as_deref().map_or(Some(Audience::ControlPlane), Audience::parse);
        let audience = audience.ok_or_else(|| Fault::bad("audience", "must be worker:control-plane or worker:rpc"))?;
        let scopes = match &asked.scopes {
            None => None,
            Some(names) => Some(scopes(names)?),
        };
        let minted = mint(&app, &asked.worker_id, asked.ttl.as_deref(), scopes, audience)?;
        Ok(issued(&app, &caller.actor, &id, minted).await)
    };
    respond(answer.await, &id)
}

fn scopes(names: &[String]) -> Result<Scopes, Fault> {
    if let Some(index) = names.iter().position(|name| Scope::parse(name).is_none()) {
        return Err(Fault::bad(format!("scopes[{index}]"), "is not a worker scope"));
    }
    if names.is_empty() {
        return Err(Fault::bad("scopes", "an empty list grants nothing: omit it for all scopes"));
    }
    Ok(Scopes::of_claim(Some(names)))
}

/// Issue a worker its own token
///
/// For the worker that the bootstrap key belongs to, good for heartbeats and leases.
#[utoipa::path(post, path = "/api/v1/worker/{id}/token", operation_id = "issue_own_worker_token", tag = "worker identity", params(("id" = String, Path)),
    request_body(content = BootstrapRequest, description = "Optional."), security(("bootstrap_key" = [])),
    responses((status = 200, body = WorkerToken, description = "The token"),
              (status = 503, body = UserError, description = "no signing key is configured")))]
pub async fn bootstrap(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Path(worker): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read_any(&headers, body, limits::BODY_BYTES).await?;
        let asked: BootstrapRequest = if raw.bytes.is_empty() { BootstrapRequest::default() } else { raw.decode()? };
        let scopes = BOOTSTRAP_SCOPES.into_iter().collect();
        let minted = mint(&app, &worker, asked.ttl.as_deref(), Some(scopes), Audience::ControlPlane)?;
        Ok(issued(&app, "bootstrap key", &id, minted).await)
    };
    respond(answer.await, &id)
}

fn mint(
    app: &App,
    worker: &str,
    ttl: Option<&str>,
    scopes: Option<Scopes>,
    audience: Audience,
) -> Result<Minted, Fault> {
    let worker = worker.trim();
    validate::text_of(worker, "worker_id", limits::WORKER_ID_BYTES).map_err(as_bad)?;
    let ttl = ttl.map_or(Some(TTL_DEFAULT), duration::parse).filter(|ttl| !ttl.is_zero() && *ttl <= TTL_MAX);
    let ttl = ttl.ok_or_else(|| Fault::bad("ttl", "must be a duration above zero and at most 15m"))?;
    let access = app.access.get();
    // Both formats are good on every route of the control plane; a worker that knows only the older one holds an HMAC key.
    let request = MintRequest { ttl, scopes, ed25519: true, ..MintRequest::new(worker, audience, unix_now()) };
    access.workers.keys.mint(&request).map_err(|error| match error {
        MintError::NoKey => Fault::NotConfigured(Setting::SigningKey),
        MintError::Ttl => Fault::bad("ttl", "must be a duration from 1s to 15m"),
        other => Fault::bad("worker_id", &other.to_string()),
    })
}

async fn issued(app: &App, actor: &str, id: &RequestId, minted: Minted) -> WorkerToken {
    audit::issued(app, actor, id, &minted.worker_id, &minted.token_id).await;
    WorkerToken {
        token: minted.token.reveal().to_owned(),
        worker_id: minted.worker_id,
        expires_at: Timestamp::from_millis(minted.expires_at.saturating_mul(1000)).to_string(),
    }
}

/// The issuer answers 400, where the rest of the API says 422.
fn as_bad(fault: Fault) -> Fault {
    match fault {
        Fault::Request(BadRequest::Invalid { field, message }) => Fault::bad(field, &message),
        other => other,
    }
}

/// Revoke a signed worker token
///
/// It is refused here at once and on other replicas within seconds.
#[utoipa::path(post, path = "/api/v1/admin/worker-tokens/revocations", operation_id = "revoke_worker_token", tag = "admin", request_body = Revocation, security(("api_key" = ["admin"])),
    responses((status = 204, description = "revoked")))]
pub async fn revoke(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let asked: Revocation = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        let token_id = validate::text_of(asked.token_id.trim(), "token_id", TOKEN_ID_BYTES).map_err(as_bad)?;
        app.identity.revocations().add(&token_id, &caller.actor).await.map_err(unavailable)
    };
    match answer.await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(fault) => refuse(fault, &id),
    }
}

/// List revoked worker tokens that have not expired by themselves
#[utoipa::path(get, path = "/api/v1/admin/worker-tokens/revocations", operation_id = "list_worker_token_revocations", tag = "admin", security(("api_key" = ["admin"])),
    responses((status = 200, body = Revocations, description = "The ids of revoked tokens")))]
pub async fn revocations(State(app): State<App>, Extension(id): Extension<RequestId>) -> Response {
    let answer = async {
        let mut items = app.engine.identity().revoked_worker_tokens().await.map_err(unavailable)?;
        items.sort();
        Ok(Revocations { items })
    };
    respond(answer.await, &id)
}
