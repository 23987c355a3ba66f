//! Runs: submit, list, look at, cancel, repeat.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tenure_contract::run::{RerunRequest, Run, RunCanceled, RunPage, RunSubmission};
use tenure_contract::user::{CancelRequest, Page};
use tenure_contract::words::RunState;
use tenure_core::command::run::{CancelRun, NewRun, RunSubmitted, SubmitRun};
use tenure_core::command::{Reach, Rejection};
use tenure_core::run::plan;
use tenure_core::{RunId, limits};
use tenure_engine::store::{RunFilter, RunView, RunWeight};

use super::tasks::{admit, cancel_request, cursor, narrowed};
use super::{query, respond, words};
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::api::render;
use crate::error::{Fault, Unavailable};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::{audit, run_plan, validate};

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/runs", post(submit).get(list))
        .route("/api/v1/runs/{id}", get(show))
        .route("/api/v1/runs/{id}/cancel", post(cancel))
        .route("/api/v1/runs/{id}/rerun", post(rerun))
}

/// Submit a run: all its tasks and what they wait for, or nothing
#[utoipa::path(post, path = "/api/v1/runs", operation_id = "submit_run", tag = "runs", request_body = RunSubmission, security(("api_key" = ["api"])),
    responses((status = 201, body = Run, description = "new"),
              (status = 200, body = Run, description = "the same run_key and content as before")))]
pub async fn submit(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, limits::BATCH_BODY_BYTES).await?;
        let submission: run_plan::Submission = raw.decode()?;
        let minted = app.engine.mint(submission.ids()?).await?;
        let run = submission.plan(&minted, &caller)?;
        start(&app, run, raw.bytes.len()).await
    };
    created(answer.await, &id)
}

/// Holds a run against the limits of its tenant, submits it, and shows what came of it.
async fn start(app: &App, plan: SubmitRun, bytes: usize) -> Result<(RunView, bool), Fault> {
    match admit(app, plan.tasks.iter().filter(|one| one.carried.is_none()).map(|one| &one.task)).await {
        // A submit that is sent again brings nothing new: it is answered even if the first one used up what is allowed.
        Err(Fault::Unavailable(Unavailable::TenantLimit { .. })) if key_is_known(app, &plan.run).await? => {}
        admitted => admitted?,
    }
    let RunSubmitted { id, created } = app.engine.submit_run(plan, bytes).await??;
    // Whoever may submit it may see it: a key of another owner was refused.
    let view = app.engine.run_view(id, &Reach::All).await?;
    Ok((view.ok_or(Fault::Internal)?, created))
}

async fn key_is_known(app: &App, run: &NewRun) -> Result<bool, Fault> {
    let Some(key) = &run.key else { return Ok(false) };
    let filter = RunFilter {
        run_key: Some(key.to_string()),
        workspace: Some(run.workspace.to_string()),
        reach: Reach::Tenant(Arc::clone(&run.tenant)),
        limit: 1,
        ..RunFilter::default()
    };
    Ok(!app.engine.runs(&filter).await?.items.is_empty())
}

fn created(answer: Result<(RunView, bool), Fault>, id: &RequestId) -> Response {
    match answer {
        Ok((view, created)) => {
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            (status, Json(Run { created: Some(created), ..render::whole_run(&view) })).into_response()
        }
        Err(fault) => refuse(fault, id),
    }
}

/// Filters of a list of runs
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// In any case
    #[param(value_type = Option<RunState>)]
    state: Option<String>,
    /// `name:value`
    label: Option<String>,
    run_key: Option<String>,
    /// The first digits of an id, at least 4, in any form; the newest 100,000 runs are searched
    id_prefix: Option<String>,
    tenant: Option<String>,
    workspace: Option<String>,
    /// Created at or after
    #[param(format = DateTime)]
    created_after: Option<String>,
    /// Created before
    #[param(format = DateTime)]
    created_before: Option<String>,
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List runs, newest first, without their tasks
#[utoipa::path(get, path = "/api/v1/runs", operation_id = "list_runs", tag = "runs", params(ListQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = RunPage, description = "A page of runs, without their tasks")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ListQuery = query(&uri)?;
        let state = asked.state.as_deref().map(words::run_filter).transpose()?;
        let label = match asked.label.as_deref() {
            None => None,
            Some(text) => Some(text.split_once(':').ok_or_else(|| Fault::invalid("label", "must be name:value"))?),
        };
        let time = |text: Option<&str>, field: &str| text.map(|text| validate::time(text, field)).transpose();
        let (after, until) = (
            time(asked.created_after.as_deref(), "created_after")?,
            time(asked.created_before.as_deref(), "created_before")?,
        );
        let limit = validate::page_limit(asked.limit)?;
        let Some(reach) = narrowed(caller.reach(), asked.tenant.as_deref()) else {
            return Ok(Page { items: Vec::new(), next_cursor: None });
        };
        let filter = RunFilter {
            state,
            label: label.map(|(name, value)| (name.to_owned(), value.to_owned())),
            run_key: asked.run_key,
            workspace: asked.workspace,
            id_prefix: asked.id_prefix.map(|text| validate::id_prefix(&text, "run_")).transpose()?,
            after,
            until,
            reach,
            before: asked.cursor.as_deref().map(cursor).transpose()?,
            limit,
        };
        let page = app.engine.runs(&filter).await?;
        Ok(Page { items: page.items.iter().map(render::run).collect(), next_cursor: page.next })
    };
    respond(answer.await, &id)
}

async fn found(app: &App, id: RunId, reach: &Reach) -> Result<RunView, Fault> {
    app.engine.run_view(id, reach).await?.ok_or(Fault::Refused(Rejection::RunNotFound))
}

/// Show a run with its tasks
#[utoipa::path(get, path = "/api/v1/runs/{id}", operation_id = "get_run", tag = "runs", params(("id" = String, Path, description = "UUID, run_<ULID> or ULID")), security(("api_key" = ["read"])),
    responses((status = 200, body = Run, description = "The run and its tasks")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(run): Path<String>,
) -> Response {
    let answer = async {
        let view = found(&app, validate::run_id(&run, "id")?, &caller.reach()).await?;
        Ok(render::whole_run(&view))
    };
    respond(answer.await, &id)
}

/// Cancel a run: what has not started ends, what runs is asked to stop
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", operation_id = "cancel_run", tag = "runs", params(("id" = String, Path, description = "UUID, run_<ULID> or ULID")), security(("api_key" = ["api"])),
    request_body(content = CancelRequest, description = "Optional."),
    responses((status = 200, body = RunCanceled, description = "The run is canceled, or its workers are asked to stop")))]
pub async fn cancel(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(run): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let (reason, mode) = cancel_request(&headers, body).await?;
        let command = CancelRun { run: validate::run_id(&run, "id")?, reason, mode, reach: caller.reach() };
        let run = command.run;
        let canceled = app.engine.cancel_run(command).await??;
        Ok(RunCanceled {
            run_id: run.to_string(),
            state: words::run(found(&app, run, &caller.reach()).await?.run.state()),
            cancel_requested: true,
            cancel_reason: canceled.reason.to_string(),
        })
    };
    let answer = audit::operation(&app, &caller, &id, "run.cancel", &run, answer.await).await;
    respond(answer, &id)
}

/// Repeat a run that failed or was canceled: what succeeded is carried over, all else runs anew
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", operation_id = "rerun_run", tag = "runs", params(("id" = String, Path, description = "UUID, run_<ULID> or ULID")), security(("api_key" = ["api"])),
    request_body(content = RerunRequest, description = "Optional."),
    responses((status = 201, body = Run, description = "new"),
              (status = 200, body = Run, description = "the same run_key for the same run as before")))]
pub async fn rerun(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(run): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read_any(&headers, body, limits::BODY_BYTES).await?;
        let asked: RerunRequest = if raw.bytes.is_empty() { RerunRequest::default() } else { raw.decode()? };
        if asked.mode.as_deref().is_some_and(|mode| mode != "from_failure") {
            return Err(Fault::invalid("mode", "must be from_failure"));
        }
        let (run, reach) = (validate::run_id(&run, "id")?, caller.reach());
        let weight = app.engine.run_weight(run, &reach).await?;
        let RunWeight { run: parent, bytes } = weight.ok_or(Fault::Refused(Rejection::RunNotFound))?;
        plan::check_rerun(&parent).map_err(Fault::Refused)?;
        // A run that has ended does not grow any more: its size is checked before it is read.
        if bytes > limits::CARRIED_BYTES as u64 {
            let (has, limit) = (bytes >> 20, limits::CARRIED_BYTES >> 20);
            let message =
                format!("the outputs to carry over have {has} MiB, the maximum is {limit} MiB: submit a new run");
            return Err(Fault::invalid("id", &message));
        }
        let material = app.engine.run_material(run, &reach).await?;
        let material = material.ok_or(Fault::Refused(Rejection::RunNotFound))?;
        let minted = app.engine.mint(material.tasks.len() + 1).await?;
        let now = app.engine.now().await?;
        let again = run_plan::rerun(&material, &minted, asked.run_key.as_deref(), &caller, now)?;
        let held = again.tasks.iter().map(|one| {
            let result = one.carried.as_ref().and_then(|carried| carried.result.as_deref());
            one.task.payload.len() + result.map_or(0, str::len)
        });
        let bytes = held.sum();
        start(&app, again, bytes).await
    };
    let answer = audit::operation(&app, &caller, &id, "run.rerun", &run, answer.await).await;
    created(answer, &id)
}
