//! DAGs: deploy them, look at them, make versions active, fire their manual sources.

pub mod show;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tenure_contract::dags::{
    CutoverRequest, DagDeployed, DagProblem, DagSwitched, JobTriggered, RepointedDataset, TriggerRequest,
};
use tenure_contract::suggest;
use tenure_core::dag::deployment::{Refused, VersionState};
use tenure_core::limits;
use tenure_engine::dags::{DagProblem as Problem, DeployError, Deployed, NewVersion, Switched, TriggerError, View};
use tenure_engine::random_bits;

use super::{query, respond, respond_with};
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::audit;
use crate::dispatch::DispatchFault;
use crate::error::{BadRequest, Fault};
use crate::request::{self, Raw, RequestId};
use crate::state::App;
use crate::validate;

/// The text of a DAG.
const YAML_BYTES: usize = 1 << 20;
/// Any other body here: a trigger's input and what surrounds it.
pub const BODY_BYTES: usize = 1 << 20;
/// What a trigger gives its task: it goes to a function of a cloud too, where everything together may have 256 KiB.
const INPUT_BYTES: usize = 128 << 10;
/// A request's name for itself.
const REQUEST_ID_BYTES: usize = 128;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/dags", post(deploy).get(show::list))
        .route("/api/v1/dags/{name}", get(show::show))
        .route("/api/v1/dags/{name}/versions", get(show::versions))
        .route("/api/v1/dags/{name}/cutover", post(cutover))
        .route("/api/v1/dags/{name}/rollback", post(rollback))
        .route("/api/v1/dags/{name}/jobs/{job}/trigger", post(trigger))
}

/// How a DAG is deployed
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeployQuery {
    /// Check and plan, and write nothing
    dry_run: Option<bool>,
    /// `manual`: the version becomes active only by a cutover. Default `auto`: as soon as it is ready
    #[param(pattern = "^(auto|manual)$")]
    cutover: Option<String>,
}

/// Deploy a DAG
///
/// The body is the YAML, at most 1 MiB. A version whose text is known is not made again; one that is no longer active is
/// staged again under its number.
#[utoipa::path(post, path = "/api/v1/dags", operation_id = "deploy_dag", tag = "dags", params(DeployQuery), security(("api_key" = ["api"])),
    request_body(content = String, content_type = "application/yaml", description = "The DAG as YAML"),
    responses((status = 201, body = DagDeployed, description = "A new version"),
        (status = 200, body = DagDeployed, description = "The text is known, or it was a dry run")))]
pub async fn deploy(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> Response {
    let mut dry_run = false;
    let answer = async {
        let asked: DeployQuery = query(&uri)?;
        dry_run = asked.dry_run == Some(true);
        let manual = match asked.cutover.as_deref() {
            None | Some("auto") => false,
            Some("manual") => true,
            Some(_) => return Err(Fault::invalid("cutover", "must be auto or manual")),
        };
        let raw = read(&headers, body, YAML_BYTES).await?;
        let not_text = || Fault::malformed("the body is not UTF-8: send the DAG as YAML");
        let yaml = std::str::from_utf8(&raw.bytes).map_err(|_| not_text())?;
        let org = caller.home();
        let deployed = app.dispatch.dags.deploy(NewVersion { org: &org, yaml, manual, dry_run }).await?;
        if let (false, Ok(buffers)) = (dry_run, app.dispatch.buffers()) {
            buffers.ensure_tables(&org).await?;
        }
        Ok(deployed)
    };
    let answer = answer.await;
    let name = answer.as_ref().map_or_else(|_| String::new(), |deployed| deployed.dag.to_string());
    // A dry run changes nothing.
    let answer = if dry_run { answer } else { audit::operation(&app, &caller, &id, "dag.deploy", &name, answer).await };
    match answer {
        Ok(deployed) => {
            let is_new = deployed.planned.is_new && !dry_run;
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            (status, Json(rendered(&deployed, dry_run))).into_response()
        }
        Err(fault) => refuse(fault, &id),
    }
}

fn rendered(deployed: &Deployed, dry_run: bool) -> DagDeployed {
    let planned = &deployed.planned;
    let names = |list: &[Arc<str>]| list.iter().map(ToString::to_string).collect();
    DagDeployed {
        name: deployed.dag.to_string(),
        version: planned.number,
        // A version that was only planned has no id by which anybody could ask for it.
        dag_version_id: (!dry_run || !planned.is_new).then(|| planned.id.to_string()),
        yaml_hash: deployed.yaml_hash.to_string(),
        state: deployed.state().as_str().to_owned(),
        changed_jobs: names(&planned.changed),
        rebuild_jobs: names(&planned.rebuild),
        kept_jobs: names(&planned.kept),
        removed_jobs: names(&planned.removed),
        warnings: deployed.warnings.iter().map(problem).collect(),
        dry_run,
    }
}

fn problem(problem: &Problem) -> DagProblem {
    DagProblem {
        line: problem.line,
        column: problem.column,
        job: problem.job.as_deref().map(ToOwned::to_owned),
        field: problem.field.clone(),
        code: problem.code.as_str().to_owned(),
        message: problem.message.clone(),
    }
}

/// Make a version active
///
/// All datasets point at it at once. Queued tasks of jobs that it replaces are canceled, running ones may finish. A version
/// that is active already stays so.
#[utoipa::path(post, path = "/api/v1/dags/{name}/cutover", operation_id = "cut_over_dag", tag = "dags", params(("name" = String, Path)), request_body = CutoverRequest, security(("api_key" = ["api"])),
    responses((status = 200, body = DagSwitched, description = "The version is active")))]
pub async fn cutover(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let asked: CutoverRequest = read(&headers, body, BODY_BYTES).await?.decode()?;
        let org = caller.home();
        let switched = app.dispatch.dags.cut_over(&org, &name, asked.version).await;
        match switched {
            Ok(switched) => Ok(switch(&switched)),
            Err(error) => Err(not_switched(&app, &org, &name, error).await),
        }
    };
    let answer = answer.await;
    respond(audit::operation(&app, &caller, &id, "dag.cutover", &name, answer).await, &id)
}

/// Go back to the version that was active before
///
/// All datasets point at it at once. Queued and running tasks of the version that is given up are canceled.
#[utoipa::path(post, path = "/api/v1/dags/{name}/rollback", operation_id = "roll_back_dag", tag = "dags", params(("name" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 200, body = DagSwitched, description = "The version before is active")))]
pub async fn rollback(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = async {
        let org = caller.home();
        match app.dispatch.dags.roll_back(&org, &name).await {
            Ok(switched) => Ok(switch(&switched)),
            Err(error) => Err(not_switched(&app, &org, &name, error).await),
        }
    };
    let answer = answer.await;
    respond(audit::operation(&app, &caller, &id, "dag.rollback", &name, answer).await, &id)
}

fn switch(switched: &Switched) -> DagSwitched {
    let datasets = switched.switch.datasets.iter().map(|it| RepointedDataset {
        dataset_uuid: it.dataset.to_string(),
        from: it.from.map(|version| version.to_string()),
        to: it.to.map(|version| version.to_string()),
    });
    DagSwitched {
        active_version: switched.switch.active,
        previous_version: switched.switch.previous,
        datasets: datasets.collect(),
        canceled_tasks: switched.canceled_tasks,
    }
}

/// Says what can be done instead.
async fn not_switched(app: &App, org: &str, name: &str, error: DeployError) -> Fault {
    match error {
        DeployError::Refused(Refused::UnknownDag) => match app.dispatch.dags.view(org).await {
            Ok(view) => not_found(&view, name),
            Err(error) => error.into(),
        },
        DeployError::Refused(Refused::UnknownVersion) => {
            let message = format!("DAG {name} has no such version: see GET /api/v1/dags/{name}/versions");
            DispatchFault::fault("version_not_found", message)
        }
        DeployError::Refused(Refused::NotReady { state }) => {
            let advice = match state {
                VersionState::Abandoned => "deploy its YAML again",
                _ => "wait until its rebuild is done: see GET /api/v1/dags/{name}/versions",
            };
            let message = format!("the version is {}: {advice}", state.as_str()).replace("{name}", name);
            DispatchFault::fault("version_not_ready", message)
        }
        other => other.into(),
    }
}

/// Fire a manual source
#[utoipa::path(post, path = "/api/v1/dags/{name}/jobs/{job}/trigger", operation_id = "trigger_job", tag = "dags",
    params(("name" = String, Path), ("job" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "In place of `request_id`")),
    security(("api_key" = ["api"])), request_body(content = TriggerRequest, description = "Optional."),
    responses((status = 202, body = JobTriggered, description = "The task that was created, or that the same request had created")))]
pub async fn trigger(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path((name, job)): Path<(String, String)>,
    body: Body,
) -> Response {
    let answer = async {
        let raw = read(&headers, body, BODY_BYTES).await?;
        let asked: TriggerRequest = if raw.bytes.is_empty() { TriggerRequest::default() } else { raw.decode()? };
        let request = named(asked.request_id.as_deref(), &headers)?;
        let request = request.unwrap_or_else(|| format!("{:032x}", random_bits()).into());
        if asked.input.as_ref().is_some_and(|input| input.len() > INPUT_BYTES) {
            return Err(Fault::invalid("input", &format!("may have at most {INPUT_BYTES} bytes")));
        }
        let org = caller.home();
        let input = asked.input.map(|input| input.text());
        match app.dispatch.dags.trigger(&org, &name, &job, &request, input).await {
            Ok(made) => Ok(JobTriggered { task_id: made.task.to_string(), created: made.created }),
            Err(error) => Err(not_triggered(&app, &org, &name, &job, error).await),
        }
    };
    let answer = answer.await;
    let resource = format!("{name}/{job}");
    let answer = audit::operation(&app, &caller, &id, "dag.trigger", &resource, answer).await;
    respond_with(StatusCode::ACCEPTED, answer, &id)
}

/// The name that a request gave itself, in its body or its head.
pub fn named(field: Option<&str>, headers: &HeaderMap) -> Result<Option<Arc<str>>, Fault> {
    let mut sent = headers.get_all("idempotency-key").iter();
    let key = match (sent.next(), sent.next()) {
        (None, _) => None,
        (Some(_), Some(_)) => return Err(Fault::malformed("Idempotency-Key was sent more than once")),
        (Some(key), None) => {
            let key = key.to_str().map_err(|_| Fault::malformed("Idempotency-Key is not plain text"))?;
            Some(validate::words(key, "Idempotency-Key", REQUEST_ID_BYTES)?)
        }
    };
    let field = field.map(|field| validate::words(field, "request_id", REQUEST_ID_BYTES)).transpose()?;
    match (field, key) {
        (Some(field), Some(key)) if field != key => {
            Err(Fault::invalid("request_id", "differs from the header Idempotency-Key: send one of them"))
        }
        (field, key) => Ok(field.or(key)),
    }
}

async fn not_triggered(app: &App, org: &str, name: &str, job: &str, error: TriggerError) -> Fault {
    let view = match app.dispatch.dags.view(org).await {
        Ok(view) => view,
        Err(error) => return error.into(),
    };
    match error {
        TriggerError::UnknownDag if view.deployment.dags.contains_key(name) => {
            let message = format!("no version of DAG {name} is active: cut one over first");
            DispatchFault::fault("version_not_ready", message)
        }
        TriggerError::UnknownDag => not_found(&view, name),
        TriggerError::UnknownJob => {
            let jobs = view.deployment.active(name).into_iter().flat_map(|version| version.jobs.keys());
            let near = suggest::meant(suggest::nearest(job, jobs.map(|job| &**job)));
            DispatchFault::fault("job_not_found", format!("the active version of DAG {name} has no such job{near}"))
        }
        TriggerError::NotManual => {
            let message = format!("job {job} is not a source of kind manual: only those can be triggered");
            DispatchFault::fault("not_a_manual_source", message)
        }
        TriggerError::Engine(error) => error.into(),
    }
}

/// No DAG that the caller can see has this name.
pub fn not_found(view: &View, name: &str) -> Fault {
    let near = suggest::nearest(name, view.deployment.dags.keys().map(|dag| &**dag));
    DispatchFault::fault("dag_not_found", format!("no such DAG{}", suggest::meant(near)))
}

/// Reads a body of any type, in the words of the dispatch contract.
pub async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Raw, Fault> {
    match request::read_any(headers, body, limit.min(limits::BODY_BYTES)).await {
        Err(Fault::Request(BadRequest::BodyTooLarge { limit })) => {
            Err(DispatchFault::fault("body_too_large", format!("the body may have at most {limit} bytes")))
        }
        read => read,
    }
}

impl From<DeployError> for Fault {
    fn from(error: DeployError) -> Self {
        match error {
            DeployError::Invalid(problems) => DispatchFault::invalid_dag(problems.iter().map(problem).collect()),
            DeployError::Refused(Refused::UnknownDag) => DispatchFault::fault("dag_not_found", "no such DAG"),
            DeployError::Refused(Refused::UnknownVersion) => {
                DispatchFault::fault("version_not_found", "no such version")
            }
            DeployError::Refused(Refused::NotReady { state }) => {
                DispatchFault::fault("version_not_ready", format!("the version is {}", state.as_str()))
            }
            DeployError::Refused(Refused::NoPrevious) => DispatchFault::fault(
                "no_previous_version",
                "no version was active before the active one: deploy another one, or cut one over",
            ),
            DeployError::Refused(refused @ Refused::Retired) => {
                DispatchFault::fault("version_not_ready", refused.to_string())
            }
            DeployError::Engine(error) => error.into(),
        }
    }
}
