//! SQL over the datasets of a task, for its code.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tenure_contract::dispatch::{Error, dialect};
use tenure_contract::query::{QueryAnswer, TaskQueryRequest};
use tenure_core::LeaseToken;
use tenure_core::id::Fence;
use tenure_core::objects::Prefix;
use tenure_core::task::Place;
use tenure_engine::store::Asker;
use uuid::Uuid;

use super::who::Seen;
use super::{BODY_BYTES, Capability, errors, task_id};
use crate::access::task_token::{Presented, TaskBearer};
use crate::dispatch::DispatchFault;
use crate::dispatch::render::AttemptNumber;
use crate::error::Fault;
use crate::query::{self, Question, of_task};
use crate::request::{self, RequestId};
use crate::state::App;

/// `POST /v1/task/query`
#[utoipa::path(post, path = "/v1/task/query", operation_id = "dispatch_query", tag = "dispatch contract",
    request_body = TaskQueryRequest, security(("capability_token" = [])),
    responses((status = 200, body = QueryAnswer), (status = "4XX", body = Error), (status = 500, body = Error),
        (status = 503, body = Error)))]
pub async fn query(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(&app, &presented, &headers, body).await.unwrap_or_else(|fault| errors::refuse(fault, &id))
}

async fn ask(app: &App, presented: &Presented<Capability>, headers: &HeaderMap, body: Body) -> Result<Response, Fault> {
    let raw = request::read_any(headers, body, BODY_BYTES).await?;
    let sent = dialect::query(&raw.bytes)?;
    let token = bearer(presented, &sent)?;
    let seen = Seen::of(app, token.task).await?;
    let (attempt, fence) = (token.verified.claims.attempt, Fence(token.verified.claims.fence));
    if let Some(lease) = &sent.lease_token {
        held(app, &seen, attempt, lease).await?;
    }
    let at = AttemptNumber { attempt, fence };
    let datasets = of_task(&app.queries, &seen.task, &token, at, sent.query.dataset_id.as_deref()).await?;
    let question = Question {
        org: seen.task.org.clone(),
        asker: Asker::Task(token.task.to_string(), attempt),
        timeout: app.queries.config.task_timeout,
        exports: scratch(app, &token),
        with_url: false,
        request: sent.query,
        datasets,
    };
    query::answer(&app.queries, question).await
}

/// The token names the task; what the body says is compared.
fn bearer(presented: &Presented<Capability>, sent: &TaskQueryRequest) -> Result<TaskBearer<Capability>, Fault> {
    let mismatch = || {
        let message = "the capability token is for another task or attempt";
        DispatchFault::fault("capability_mismatch", message)
    };
    let named = match &sent.task_id {
        Some(text) => task_id(text)?,
        None => presented.named(),
    };
    let bearer = presented.for_task(named).ok_or_else(mismatch)?;
    if sent.attempt.is_some_and(|attempt| attempt != bearer.verified.claims.attempt) {
        return Err(mismatch());
    }
    Ok(bearer)
}

/// A lease token that is sent must be that of the attempt, and the lease must live.
async fn held(app: &App, seen: &Seen, attempt: u32, sent: &str) -> Result<(), Fault> {
    let sent = LeaseToken::from_u128(Uuid::try_parse(sent).map_or(0, |uuid| uuid.as_u128()));
    let refuse = |code, message: &str| Err(DispatchFault::fault(code, message));
    match &seen.view.place {
        Place::Running(running) if running.attempt == attempt => {
            if running.lease.token != sent {
                return refuse("stale_lease", "the lease token does not match the attempt");
            }
            if running.lease.expires_at <= app.engine.now().await? {
                return refuse("lease_expired", "the lease has expired");
            }
            Ok(())
        }
        place if place.attempt() != attempt => refuse("stale_attempt", "a newer attempt is current"),
        _ => refuse("attempt_closed", "the attempt has ended"),
    }
}

/// Where results go: below the scratch prefix of the attempt.
fn scratch(app: &App, token: &Capability) -> Option<Prefix> {
    let objects = app.dispatch.config.objects.as_ref()?;
    let scratch = objects.layout().scratch(Uuid::from_u128(token.task.as_u128()), token.verified.claims.attempt);
    scratch.ok()?.below("results").ok()
}
