//! The credential broker: temporary keys for the object store, for the code of a task.

use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::response::Response;
use axum::routing::post;
use serde_json::json;
use tenure_contract::dispatch::{CredentialsAnswer, CredentialsRequest, Error, dialect};
use tenure_core::command::live;
use tenure_core::dag::org_id;
use tenure_core::objects::{Prefix, Scope};
use tenure_engine::store::CredentialGrant;
use tenure_s3::Holder;

use super::who::Seen;
use super::{Capability, SMALL_BODY_BYTES, respond};
use crate::access::guard::unix_now;
use crate::access::limiter::Allowance;
use crate::access::task_token::{Presented, TaskBearer, TaskToken};
use crate::dispatch::render::AttemptNumber;
use crate::dispatch::{CredentialBroker, DispatchFault, NO_OBJECT_STORE, credentials};
use crate::error::{Fault, Unavailable};
use crate::request::{self, RequestId};
use crate::state::App;

/// The one thing that keys are for.
const PURPOSE: &str = "s3_data";
/// Keys in a minute.
const OF_TASK: Allowance = Allowance { per_minute: 10.0, burst: 10.0 };
const OF_ORG: Allowance = Allowance { per_minute: 600.0, burst: 600.0 };

pub fn router() -> Router<App> {
    Router::new().route("/v1/task/credentials", post(credentials))
}

/// `POST /v1/task/credentials`
#[utoipa::path(post, path = "/v1/task/credentials", operation_id = "dispatch_credentials", tag = "dispatch contract",
    request_body = CredentialsRequest, security(("capability_token" = [])),
    responses((status = 200, body = CredentialsAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn credentials(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(make(&app, &presented, &id, &headers, body).await, &id)
}

async fn make(
    app: &App,
    presented: &Presented<Capability>,
    id: &RequestId,
    headers: &HeaderMap,
    body: Body,
) -> Result<CredentialsAnswer, Fault> {
    let raw = request::read_any(headers, body, SMALL_BODY_BYTES).await?;
    let request = dialect::credentials(&raw.bytes)?;
    if request.purpose.as_deref().is_some_and(|purpose| purpose != PURPOSE) {
        return Err(Fault::malformed("purpose must be s3_data"));
    }
    // The token says which task and attempt it is.
    let bearer = presented.bearer();
    let claims = &bearer.verified.claims;
    let seen = Seen::of(app, bearer.task()).await?;
    live::check(&seen.view.place, claims.attempt, app.engine.now().await?)?;
    let broker = broker(app)?;
    let scope = credentials::narrowed(granted(app, &seen, &bearer).await?, request.want.as_ref())?;
    let org = &seen.task.org;
    limited(app, &bearer.task().to_string(), org)?;
    let holder = Holder { org: org.to_string(), task: bearer.task().to_string(), attempt: claims.attempt };
    let made = broker.make(holder, &scope, unix_now(), bearer.verified.expires_at_s).await?;
    let grant = CredentialGrant {
        org: org_id(org).to_string(),
        task: bearer.task(),
        attempt: claims.attempt,
        backend: broker.backend.name().to_owned(),
        access_key_id: made.answer.access_key_id.clone(),
        purpose: PURPOSE.to_owned(),
        scope: told(&scope),
        expires_at: made.expires_at,
        request_id: id.0.clone(),
    };
    // Keys that nobody knows of are not handed out.
    app.engine.identity().audit_credentials(&grant).await.map_err(|error| {
        metrics::counter!("tenure_audit_failures_total").increment(1);
        tracing::error!(error = error.chain(), "cannot write temporary keys to the audit log");
        Fault::from(Unavailable::STORE)
    })?;
    metrics::counter!("tenure_credential_grants_total", "backend" => broker.backend.name()).increment(1);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    Ok(CredentialsAnswer { endpoint_url: broker.endpoint_for(host), ..made.answer })
}

fn broker(app: &App) -> Result<&CredentialBroker, Fault> {
    app.dispatch.config.credentials.as_ref().ok_or_else(|| {
        let message = "this server makes no keys: with S3, set dispatch.sts.role_arn";
        DispatchFault::fault("object_store_unavailable", message)
    })
}

/// All that the token grants. One that was too large to hold its grants names a task that has them.
async fn granted(app: &App, seen: &Seen, bearer: &TaskBearer<Capability>) -> Result<Scope, Fault> {
    let objects = app
        .dispatch
        .config
        .objects
        .as_ref()
        .ok_or_else(|| DispatchFault::fault("object_store_unavailable", NO_OBJECT_STORE))?;
    let claims = &bearer.verified.claims;
    if let Some(grant) = credentials::held(&claims.access) {
        return Ok(credentials::granted(grant, objects));
    }
    let number = AttemptNumber { attempt: claims.attempt, fence: seen.view.place.fence() };
    let wire = app.dispatch.wire(&seen.task, number).await?;
    Ok(credentials::granted(&app.dispatch.grants(&seen.task, &wire, claims.attempt).s3, objects))
}

/// Keys are counted, refusals are not.
fn limited(app: &App, task: &str, org: &str) -> Result<(), Fault> {
    let now = Instant::now();
    for (name, allowance) in [(format!("task:{task}"), OF_TASK), (format!("org:{org}"), OF_ORG)] {
        let verdict = app.credentials.take(&name, allowance, now);
        if !verdict.allowed {
            metrics::counter!("tenure_rate_limit_blocked_total").increment(1);
            let limit = allowance.per_minute as u32;
            return Err(Unavailable::RateLimited { limit, retry_after: verdict.retry_after }.into());
        }
    }
    Ok(())
}

fn told(scope: &Scope) -> String {
    let texts = |prefixes: &[Prefix]| prefixes.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({"read": texts(&scope.read), "write": texts(&scope.write), "scratch": texts(&scope.scratch)}).to_string()
}
