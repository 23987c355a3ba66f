//! Tasks: submit, list, look at, cancel, retry.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tenure_contract::user::{
    AttemptPage, BatchItem, BatchSubmission, BatchSubmitted, CancelRequest, Canceled, Retried, Submitted, Task,
    TaskPage, TaskSubmission,
};
use tenure_contract::words::TaskState;
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::retry::Retry;
use tenure_core::command::submit::{NewTask, Submit};
use tenure_core::command::{Reach, Rejection};
use tenure_core::tenant::Wanted;
use tenure_core::{Seq, limits};
use tenure_engine::store::{AttemptRange, AttemptView, TaskFilter, TaskView};

use super::{query, queues, respond, task_logs, why, words};
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::api::render;
use crate::error::Fault;
use crate::request::{self, RequestId};
use crate::state::App;
use crate::validate::{self, At};
use crate::{audit, page};

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/tasks", post(submit_one).get(list))
        .route("/api/v1/tasks/batch", post(submit_batch))
        .route("/api/v1/tasks/{id}", get(show))
        .route("/api/v1/tasks/{id}/attempts", get(attempts))
        .route("/api/v1/tasks/{id}/why", get(why::why))
        .route("/api/v1/tasks/{id}/logs", get(task_logs::logs))
        .route("/api/v1/tasks/{id}/cancel", post(cancel))
        .route("/api/v1/tasks/{id}/retry", post(retry))
}

/// Submit a task
#[utoipa::path(post, path = "/api/v1/tasks", operation_id = "submit_task", tag = "tasks", request_body = TaskSubmission, security(("api_key" = ["api"])),
    responses((status = 201, body = Submitted, description = "new"),
              (status = 200, body = Submitted, description = "the same idempotency key and content as before")))]
pub async fn submit_one(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, limits::BODY_BYTES).await?;
        let task: TaskSubmission = raw.decode()?;
        let minted = app.engine.mint(1).await?;
        let task = validate::submission(task, minted[0], &caller, At(None))?;
        admit(&app, [&task]).await?;
        let submit = Submit { tasks: vec![task], maker: caller.queues_of().map(Into::into) };
        let submitted = app.engine.submit(submit, raw.bytes.len()).await??;
        submitted.into_iter().next().ok_or(Fault::Internal)
    };
    match answer.await {
        Ok(task) => {
            let status = if task.created { StatusCode::CREATED } else { StatusCode::OK };
            let state = words::task(task.state);
            (status, Json(Submitted { task_id: task.id.to_string(), state, created: task.created })).into_response()
        }
        Err(fault) => refuse(fault.of_one(), &id),
    }
}

/// Submit many tasks, all or nothing
#[utoipa::path(post, path = "/api/v1/tasks/batch", operation_id = "submit_tasks", tag = "tasks", request_body = BatchSubmission, security(("api_key" = ["api"])),
    responses((status = 200, body = BatchSubmitted, description = "All tasks, in the order of the request")))]
pub async fn submit_batch(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, limits::BATCH_BODY_BYTES).await?;
        let batch: BatchSubmission = raw.decode()?;
        if batch.tasks.is_empty() || batch.tasks.len() > limits::BATCH_TASKS {
            return Err(Fault::invalid("tasks", &format!("must have 1 to {} tasks", limits::BATCH_TASKS)));
        }
        let minted = app.engine.mint(batch.tasks.len()).await?;
        let tasks = batch.tasks.into_iter().zip(minted).enumerate();
        let tasks = tasks.map(|(index, (task, id))| validate::submission(task, id, &caller, At(Some(index))));
        let tasks: Vec<NewTask> = tasks.collect::<Result<_, _>>()?;
        admit(&app, &tasks).await?;
        let submit = Submit { tasks, maker: caller.queues_of().map(Into::into) };
        let submitted = app.engine.submit(submit, raw.bytes.len()).await??;
        Ok(BatchSubmitted {
            created: submitted.iter().filter(|task| task.created).count(),
            tasks: submitted
                .into_iter()
                .enumerate()
                .map(|(index, task)| BatchItem {
                    index,
                    task_id: task.id.to_string(),
                    state: words::task(task.state),
                    created: task.created,
                })
                .collect(),
        })
    };
    respond(answer.await, &id)
}

/// Holds a submission against the limits of its tenants.
pub async fn admit<'a>(app: &App, tasks: impl IntoIterator<Item = &'a NewTask>) -> Result<(), Fault> {
    let mut wanted: BTreeMap<&str, Wanted> = BTreeMap::new();
    for task in tasks {
        let wanted = wanted.entry(&task.tenant).or_default();
        wanted.tasks += 1;
        wanted.bytes += task.payload.len() as u64;
    }
    let defaults = app.access.get().tenant_limits;
    for (tenant, wanted) in wanted {
        app.admission.admit(tenant, defaults, wanted).await?;
    }
    Ok(())
}

/// Filters of a list of tasks
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    queue: Option<String>,
    /// In any case
    #[param(value_type = Option<TaskState>)]
    state: Option<String>,
    operator: Option<String>,
    tenant: Option<String>,
    workspace: Option<String>,
    /// `name:value`
    tag: Option<String>,
    /// The first digits of an id, at least 4, in any form; the newest 100,000 tasks are searched
    id_prefix: Option<String>,
    /// Id of the run that the task belongs to
    run: Option<String>,
    idempotency_key: Option<String>,
    /// Worker of the task's newest attempt
    worker: Option<String>,
    /// Error code of a task that failed
    error_code: Option<String>,
    /// Credential that the task was submitted with, as audits name it: `key:<id>`, `oidc:<subject>`, `schedule:<name>`, `auth.api_key`
    submitted_by: Option<String>,
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

/// List tasks, newest first
///
/// A page has at most 4 MiB of payloads and results, unless one task alone has more. It then has fewer tasks than `limit`, and a `next_cursor`.
#[utoipa::path(get, path = "/api/v1/tasks", operation_id = "list_tasks", tag = "tasks", params(ListQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = TaskPage, description = "A page of tasks")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ListQuery = query(&uri)?;
        let state = asked.state.as_deref().map(words::task_filter).transpose()?;
        let tag = match asked.tag.as_deref() {
            None => None,
            Some(text) => Some(text.split_once(':').ok_or_else(|| Fault::invalid("tag", "must be name:value"))?),
        };
        let limit = validate::page_limit(asked.limit)?;
        let Some(reach) = narrowed(caller.reach(), asked.tenant.as_deref()) else {
            return Ok(page::Counted::empty());
        };
        let filter = TaskFilter {
            queue: asked.queue,
            state,
            operator: asked.operator,
            workspace: asked.workspace,
            tag: tag.map(|(name, value)| (name.to_owned(), value.to_owned())),
            id_prefix: asked.id_prefix.map(|text| validate::id_prefix(&text, "task_")).transpose()?,
            run: asked.run.map(|text| validate::run_id(&text, "run")).transpose()?,
            idempotency_key: asked.idempotency_key,
            worker: asked.worker,
            error_code: asked.error_code,
            submitted_by: asked.submitted_by,
            after: asked.created_after.map(|text| validate::time(&text, "created_after")).transpose()?,
            until: asked.created_before.map(|text| validate::time(&text, "created_before")).transpose()?,
            reach,
            before: asked.cursor.as_deref().map(cursor).transpose()?,
            limit,
        };
        let page = page::counted(app.engine.tasks(&filter), TaskView::bytes).await?;
        if let (true, Some(queue)) = (page.is_empty(), &filter.queue) {
            queues::found(&app, &caller, queue).await?;
        }
        Ok(page)
    };
    page::respond(answer.await, |view| Some(render::task(view)), &id)
}

/// A tenant that was asked for, within what the caller can see. `None` if it lies outside.
pub fn narrowed(reach: Reach, tenant: Option<&str>) -> Option<Reach> {
    match (tenant, reach.tenant()) {
        (None, _) => Some(reach),
        (Some(asked), None) => Some(Reach::Tenant(asked.into())),
        (Some(asked), Some(own)) => (asked == own).then_some(reach),
    }
}

pub fn cursor(text: &str) -> Result<Seq, Fault> {
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.map(Seq).ok_or_else(|| Fault::invalid("cursor", "must be next_cursor of the previous page, unchanged"))
}

/// Show a task
#[utoipa::path(get, path = "/api/v1/tasks/{id}", operation_id = "get_task", tag = "tasks", params(("id" = String, Path, description = "UUID, task_<ULID> or ULID")), security(("api_key" = ["read"])),
    responses((status = 200, body = Task, description = "The task")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(task): Path<String>,
) -> Response {
    let answer = async {
        let view = app.engine.task(validate::task_id(&task, "id")?, &caller.reach()).await?;
        view.as_ref().map(render::task).ok_or(Fault::Refused(Rejection::NotFound))
    };
    respond(answer.await, &id)
}

/// A page of attempts
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AttemptQuery {
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Attempts of a task, oldest first
///
/// A page has at most 4 MiB of errors and outputs, unless one attempt alone has more.
#[utoipa::path(get, path = "/api/v1/tasks/{id}/attempts", operation_id = "list_task_attempts", tag = "tasks", params(("id" = String, Path, description = "UUID, task_<ULID> or ULID"), AttemptQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = AttemptPage, description = "A page of attempts")))]
pub async fn attempts(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(task): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: AttemptQuery = query(&uri)?;
        let after = asked.cursor.as_deref().map(cursor).transpose()?.unwrap_or(Seq(0));
        let range = AttemptRange {
            after: i32::try_from(after.0).unwrap_or(i32::MAX).unsigned_abs(),
            limit: validate::page_limit(asked.limit)?,
        };
        let task = validate::task_id(&task, "id")?;
        let reach = caller.reach();
        let found = async {
            let found = app.engine.attempts_page(task, &reach, range).await?;
            found.ok_or(Fault::Refused(Rejection::NotFound))
        };
        page::counted(found, AttemptView::bytes).await
    };
    page::respond(answer.await, |view| Some(render::attempt(view)), &id)
}

/// What is asked of a cancel: why, and how.
pub async fn cancel_request(headers: &HeaderMap, body: Body) -> Result<(Arc<str>, Mode), Fault> {
    let raw = request::read_any(headers, body, limits::BODY_BYTES).await?;
    let asked: CancelRequest = if raw.bytes.is_empty() { CancelRequest::default() } else { raw.decode()? };
    let reason = asked.reason.as_deref().unwrap_or("user_requested");
    let mode = match asked.mode.as_deref() {
        None | Some("cooperative") => Mode::Cooperative,
        Some("immediate") => Mode::Immediate,
        Some(_) => return Err(Fault::invalid("mode", "must be cooperative or immediate")),
    };
    Ok((validate::words(reason, "reason", limits::CANCEL_REASON_BYTES)?, mode))
}

/// Cancel a task
#[utoipa::path(post, path = "/api/v1/tasks/{id}/cancel", operation_id = "cancel_task", tag = "tasks", params(("id" = String, Path, description = "UUID, task_<ULID> or ULID")), security(("api_key" = ["api"])),
    request_body(content = CancelRequest, description = "Optional."),
    responses((status = 200, body = Canceled, description = "The task is canceled, or its worker is asked to stop")))]
pub async fn cancel(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(task): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let (reason, mode) = cancel_request(&headers, body).await?;
        let command = Cancel { task: validate::task_id(&task, "id")?, reason, mode, reach: caller.reach() };
        let task_id = command.task.to_string();
        let canceled = app.engine.cancel(command).await??;
        Ok(Canceled {
            task_id,
            state: words::task(canceled.state),
            cancel_requested: true,
            cancel_reason: canceled.reason.to_string(),
        })
    };
    let answer = audit::operation(&app, &caller, &id, "task.cancel", &task, answer.await).await;
    respond(answer, &id)
}

/// Give a failed or canceled task another chance
#[utoipa::path(post, path = "/api/v1/tasks/{id}/retry", operation_id = "retry_task", tag = "tasks", params(("id" = String, Path, description = "UUID, task_<ULID> or ULID")), security(("api_key" = ["api"])),
    responses((status = 200, body = Retried, description = "The task is ready again")))]
pub async fn retry(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(task): Path<String>,
) -> Response {
    let answer = async {
        let command = Retry { task: validate::task_id(&task, "id")?, reach: caller.reach() };
        let task_id = command.task.to_string();
        let retried = app.engine.retry(command).await??;
        Ok(Retried { task_id, state: TaskState::Ready, attempt: retried.attempt, max_attempts: retried.max_attempts })
    };
    let answer = audit::operation(&app, &caller, &id, "task.retry", &task, answer.await).await;
    respond(answer, &id)
}
