//! Schedules: create, list, look at, change, pause, resume, trigger and delete them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tenure_contract::suggest;
use tenure_contract::user::{
    Page, Schedule, ScheduleChange, ScheduleDeleted, ScheduleFiring, SchedulePage, ScheduleSubmission, ScheduleTrigger,
    ScheduleTriggered,
};
use tenure_core::schedule::{Firing, ScheduleState, Work};
use tenure_core::{Timestamp, limits};
use tenure_engine::store::{NewSchedule, ScheduleFilter, ScheduleRow, ScheduleSetting, TemplateKind};
use tenure_engine::{FiringKey, ScheduleChange as Change, ScheduleRefusal, random_bits};

use super::tasks::narrowed;
use super::{query, queues, respond};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::error::{Fault, Unavailable};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::{audit, schedules, validate};

/// Slots that a schedule shows.
const NEXT_SLOTS: usize = 5;
/// How often a change is tried against firings of the same schedule.
const TRIES: usize = 20;
/// A trigger's name for itself.
const REQUEST_ID_BYTES: usize = 128;
/// Its template, and what surrounds it.
const BODY_BYTES: usize = limits::SCHEDULE_TEMPLATE_BYTES + (64 << 10);

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/schedules", post(create).get(list))
        .route("/api/v1/schedules/{name}", get(show).patch(change).delete(delete))
        .route("/api/v1/schedules/{name}/pause", post(pause))
        .route("/api/v1/schedules/{name}/resume", post(resume))
        .route("/api/v1/schedules/{name}/trigger", post(trigger))
}

/// Create a schedule
#[utoipa::path(post, path = "/api/v1/schedules", operation_id = "create_schedule", tag = "schedules", request_body = ScheduleSubmission, security(("api_key" = ["api"])),
    responses((status = 201, body = Schedule, description = "The schedule")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let mut name = String::new();
    let answer = async {
        let wire: ScheduleSubmission = request::read(&headers, body, BODY_BYTES).await?.decode()?;
        name.clone_from(&wire.name);
        let row = made(&app, &caller, wire).await?;
        whole(&app, &row).await
    };
    let answer = answer.await;
    match audit::operation(&app, &caller, &id, "schedule.create", &name, answer).await {
        Ok(schedule) => (StatusCode::CREATED, Json(schedule)).into_response(),
        Err(fault) => refuse(fault, &id),
    }
}

async fn made(app: &App, caller: &Caller, wire: ScheduleSubmission) -> Result<ScheduleRow, Fault> {
    let name = validate::name(&wire.name, "name")?;
    let tenant = caller.tenant_for(wire.tenant.as_deref(), "tenant")?;
    let definition = validate::schedule::definition(&wire, app.engine.now().await?)?;
    let template = validate::schedule::template(wire.task, wire.run)?;
    let (kind, template) = template.ok_or_else(|| Fault::invalid("task", "give either task or run"))?;
    check_template(app, caller, kind, template.as_str(), &tenant, &name).await?;
    let state = ScheduleState::default();
    let new = NewSchedule {
        id: uuid::Builder::from_random_bytes(random_bits().to_be_bytes()).into_uuid().to_string(),
        tenant: tenant.to_string(),
        name: name.to_string(),
        owner: caller.subject.as_deref().map(ToOwned::to_owned),
        maker: caller.queues_of().map(ToOwned::to_owned),
        setting: ScheduleSetting { kind, definition, state, paused: wire.paused == Some(true), due_at: None },
        template: template.as_str().to_owned(),
    };
    app.engine.create_schedule(new).await?.map_err(|refusal| match refusal {
        ScheduleRefusal::Exists => Fault::ScheduleExists,
        ScheduleRefusal::TooMany => {
            let message = format!("tenant {tenant} has {} schedules", limits::SCHEDULES_PER_TENANT);
            Unavailable::TenantLimit { limit: "schedules", message, retry_after: Duration::from_secs(60) }.into()
        }
    })
}

/// What its first firing would be refused for.
async fn check_template(
    app: &App,
    caller: &Caller,
    kind: TemplateKind,
    template: &str,
    tenant: &str,
    name: &str,
) -> Result<(), Fault> {
    let mut named = schedules::check(kind, template, caller, tenant, name)?;
    named.sort_unstable();
    named.dedup();
    for queue in named {
        let taken = queues::stats(app, &Caller::anybody(), &queue).await?;
        if taken.is_some_and(|stats| !stats.queue.takes(tenant)) {
            return Err(Fault::invalid(kind.as_str(), &format!("queue `{queue}` belongs to another tenant")));
        }
    }
    Ok(())
}

/// Filters of a list of schedules
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    tenant: Option<String>,
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List schedules by tenant and name, without their templates
#[utoipa::path(get, path = "/api/v1/schedules", operation_id = "list_schedules", tag = "schedules", params(ListQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = SchedulePage, description = "A page of schedules")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ListQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let Some(reach) = narrowed(caller.reach(), asked.tenant.as_deref()) else {
            return Ok(Page { items: Vec::new(), next_cursor: None });
        };
        let filter = ScheduleFilter {
            tenant: reach.tenant().map(ToOwned::to_owned),
            owner: reach.owner().map(ToOwned::to_owned),
            after: asked.cursor,
            limit,
        };
        let page = app.engine.schedules(&filter).await?;
        Ok(Page { items: page.items.iter().map(render).collect(), next_cursor: page.next })
    };
    respond(answer.await, &id)
}

/// Show a schedule with its next slots and its last firings
#[utoipa::path(get, path = "/api/v1/schedules/{name}", operation_id = "get_schedule", tag = "schedules", params(("name" = String, Path, description = "Name, or schedule_id")), security(("api_key" = ["read"])),
    responses((status = 200, body = Schedule, description = "The schedule")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = async { whole(&app, &found(&app, &caller, &name).await?).await };
    respond(answer.await, &id)
}

/// The schedule of this name or id, if the caller may see it.
async fn found(app: &App, caller: &Caller, name: &str) -> Result<ScheduleRow, Fault> {
    let reach = caller.reach();
    // No schedule can have another name, and not every store could be asked for it.
    if validate::name(name, "name").is_ok() {
        let named = app.engine.schedule_named(&caller.home(), name).await?;
        let row = match (named, name.len()) {
            (None, 36) => app.engine.schedule(name).await?,
            (named, _) => named,
        };
        if let Some(row) = row.filter(|row| reach.covers(&row.tenant, row.owner.as_deref())) {
            return Ok(row);
        }
    }
    let (tenant, owner) = (caller.home().to_string(), reach.owner().map(ToOwned::to_owned));
    let filter = ScheduleFilter { tenant: Some(tenant), owner, after: None, limit: limits::LIST_LIMIT_MAX };
    let page = app.engine.schedules(&filter).await?;
    let near = suggest::nearest(name, page.items.iter().map(|row| row.name.as_str()));
    Err(Fault::ScheduleNotFound { near: near.map(ToOwned::to_owned) })
}

/// Change a schedule
///
/// Only what is named changes. Slots are counted from now on if the times of the schedule change.
#[utoipa::path(patch, path = "/api/v1/schedules/{name}", operation_id = "change_schedule", tag = "schedules", params(("name" = String, Path, description = "Name, or schedule_id")), request_body = ScheduleChange, security(("api_key" = ["api"])),
    responses((status = 200, body = Schedule, description = "The schedule as it is now")))]
pub async fn change(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let wire: ScheduleChange = request::read(&headers, body, BODY_BYTES).await?.decode()?;
        let template = validate::schedule::template(wire.task.as_ref(), wire.run.as_ref())?;
        let now = app.engine.now().await?;
        if let Some((kind, template)) = template {
            let row = found(&app, &caller, &name).await?;
            // The firings are still those of whoever made the schedule.
            let maker = Caller { tenant: row.maker.as_deref().map(Into::into), ..caller.clone() };
            check_template(&app, &maker, kind, template.as_str(), &row.tenant, &row.name).await?;
        }
        let row = settle(&app, &caller, &name, |row| {
            Ok(Change {
                definition: Some(validate::schedule::changed(&wire, &row.setting.definition, now)?),
                paused: None,
                template: template.map(|(kind, text)| (kind, text.as_str().to_owned())),
            })
        });
        whole(&app, &row.await?).await
    };
    let answer = answer.await;
    respond(audit::operation(&app, &caller, &id, "schedule.change", &name, answer).await, &id)
}

/// Applies a change to the schedule as it is; firings may change it at the same time.
async fn settle(
    app: &App,
    caller: &Caller,
    name: &str,
    change: impl Fn(&ScheduleRow) -> Result<Change, Fault>,
) -> Result<ScheduleRow, Fault> {
    for _ in 0..TRIES {
        let row = found(app, caller, name).await?;
        if let Some(saved) = app.engine.change_schedule(&row, &change(&row)?).await? {
            return Ok(saved);
        }
    }
    Err(Unavailable::Busy { retry_after: Duration::from_secs(1) }.into())
}

/// Pause a schedule: slots that pass meanwhile are not fired
#[utoipa::path(post, path = "/api/v1/schedules/{name}/pause", operation_id = "pause_schedule", tag = "schedules", params(("name" = String, Path, description = "Name, or schedule_id")), security(("api_key" = ["api"])),
    responses((status = 200, body = Schedule, description = "The schedule is paused")))]
pub async fn pause(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = set_paused(&app, &caller, &name, true).await;
    respond(audit::operation(&app, &caller, &id, "schedule.pause", &name, answer).await, &id)
}

/// Resume a paused schedule: it goes on with the next slot
#[utoipa::path(post, path = "/api/v1/schedules/{name}/resume", operation_id = "resume_schedule", tag = "schedules", params(("name" = String, Path, description = "Name, or schedule_id")), security(("api_key" = ["api"])),
    responses((status = 200, body = Schedule, description = "The schedule is not paused")))]
pub async fn resume(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = set_paused(&app, &caller, &name, false).await;
    respond(audit::operation(&app, &caller, &id, "schedule.resume", &name, answer).await, &id)
}

async fn set_paused(app: &App, caller: &Caller, name: &str, paused: bool) -> Result<Schedule, Fault> {
    let change = Change { paused: Some(paused), ..Change::default() };
    let row = settle(app, caller, name, |_| Ok(change.clone())).await?;
    whole(app, &row).await
}

/// Submit the work of a schedule now, also of a paused one, whatever runs
#[utoipa::path(post, path = "/api/v1/schedules/{name}/trigger", operation_id = "trigger_schedule", tag = "schedules", params(("name" = String, Path, description = "Name, or schedule_id")), security(("api_key" = ["api"])),
    request_body(content = ScheduleTrigger, description = "Optional."),
    responses((status = 202, body = ScheduleTriggered, description = "The work that was submitted")))]
pub async fn trigger(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read_any(&headers, body, limits::BODY_BYTES).await?;
        let asked: ScheduleTrigger = if raw.bytes.is_empty() { ScheduleTrigger::default() } else { raw.decode()? };
        let request: Arc<str> = match &asked.request_id {
            Some(request) => validate::words(request, "request_id", REQUEST_ID_BYTES)?,
            None => format!("{:032x}", random_bits()).into(),
        };
        let row = found(&app, &caller, &name).await?;
        let gone = || Fault::ScheduleNotFound { near: None };
        let template = app.engine.schedule_template(&row.id).await?.ok_or_else(gone)?;
        let firing = FiringKey::of_trigger(&row.id, &request, app.engine.now().await?);
        let work = schedules::submit(&app, &row, &template, &firing).await?;
        app.engine.schedule_triggered(&row.id, work).await?;
        let (task_id, run_id) = ids(Some(work));
        Ok(ScheduleTriggered { schedule_id: row.id, name: row.name, task_id, run_id })
    };
    let answer = answer.await;
    match audit::operation(&app, &caller, &id, "schedule.trigger", &name, answer).await {
        Ok(triggered) => (StatusCode::ACCEPTED, Json(triggered)).into_response(),
        Err(fault) => refuse(fault, &id),
    }
}

/// Delete a schedule. Work that it has submitted goes on
#[utoipa::path(delete, path = "/api/v1/schedules/{name}", operation_id = "delete_schedule", tag = "schedules", params(("name" = String, Path, description = "Name, or schedule_id")), security(("api_key" = ["api"])),
    responses((status = 200, body = ScheduleDeleted, description = "The schedule is deleted")))]
pub async fn delete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = async {
        let row = found(&app, &caller, &name).await?;
        let deleted = app.engine.delete_schedule(&row.id).await?;
        Ok(ScheduleDeleted { schedule_id: row.id, name: row.name, deleted })
    };
    let answer = answer.await;
    respond(audit::operation(&app, &caller, &id, "schedule.delete", &name, answer).await, &id)
}

/// A schedule with everything.
async fn whole(app: &App, row: &ScheduleRow) -> Result<Schedule, Fault> {
    let gone = || Fault::ScheduleNotFound { near: None };
    let template = app.engine.schedule_template(&row.id).await?.ok_or_else(gone)?;
    let template = Some(tenure_contract::Json::from_trusted(template));
    let setting = &row.setting;
    let (task, run) = match setting.kind {
        TemplateKind::Task => (template, None),
        TemplateKind::Run => (None, template),
    };
    let after = match setting.state.next.filter(|_| !setting.paused) {
        Some(next) => next.plus(-1),
        None => app.engine.now().await?,
    };
    let slots = setting.definition.timing(0).map(|timing| timing.upcoming(after, NEXT_SLOTS)).unwrap_or_default();
    Ok(Schedule {
        next_slots: Some(slots.iter().map(Timestamp::to_string).collect()),
        firings: Some(setting.state.history.iter().map(firing).collect()),
        task,
        run,
        ..render(row)
    })
}

fn render(row: &ScheduleRow) -> Schedule {
    let ScheduleSetting { kind, definition, state, paused, .. } = &row.setting;
    Schedule {
        schedule_id: row.id.clone(),
        name: row.name.clone(),
        tenant: row.tenant.clone(),
        owner: row.owner.clone(),
        cron: definition.cron.clone(),
        interval_seconds: definition.interval_ms.map(|ms| ms / 1000),
        timezone: definition.timezone.clone(),
        catch_up: definition.catch_up.as_str().to_owned(),
        overlap: definition.overlap.as_str().to_owned(),
        jitter_seconds: definition.jitter_ms / 1000,
        paused: *paused,
        starts_at: definition.starts_at.map(|at| at.to_string()),
        ends_at: definition.ends_at.map(|at| at.to_string()),
        kind: kind.as_str().to_owned(),
        next_at: state.next.filter(|_| !paused).map(|at| at.to_string()),
        waiting: state.waiting.len() as u64,
        last_firing: state.history.first().map(firing),
        next_slots: None,
        firings: None,
        task: None,
        run: None,
        created_at: row.created_at.to_string(),
        updated_at: row.updated_at.to_string(),
    }
}

fn firing(firing: &Firing) -> ScheduleFiring {
    let (task_id, run_id) = ids(firing.work);
    ScheduleFiring {
        slot: firing.slot.to_string(),
        through: firing.through.map(|slot| slot.to_string()),
        outcome: firing.outcome.as_str().to_owned(),
        at: firing.at.to_string(),
        task_id,
        run_id,
        reason: firing.reason.clone(),
    }
}

fn ids(work: Option<Work>) -> (Option<String>, Option<String>) {
    match work {
        None => (None, None),
        Some(Work::Task(id)) => (Some(id.to_string()), None),
        Some(Work::Run(id)) => (None, Some(id.to_string())),
    }
}
