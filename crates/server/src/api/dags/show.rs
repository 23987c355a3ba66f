//! What people look at.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Deserialize;
use tenure_contract::Json;
use tenure_contract::dags::{
    Dag, DagFrom, DagInput, DagJob, DagOutput, DagPage, DagSummary, DagVersion, DagVersionPage, JobTasks,
    RebuildProgress,
};
use tenure_contract::user::Page;
use tenure_core::batch::Counts;
use tenure_core::dag::definition::{ExecutionStrategy, Source, Upstream};
use tenure_core::dag::deployment::{Dag as DagRow, DagVersion as VersionRow, Job, VersionState};
use tenure_core::dag::{Deployment, JobId};
use tenure_core::{Timestamp, limits};
use tenure_engine::dags::{JobOf, View};
use tenure_engine::store::dags::TaskCounts;

use super::not_found;
use crate::access::guard::User;
use crate::api::queues::PageQuery;
use crate::api::{query, respond};
use crate::dispatch::DispatchFault;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;
use crate::validate;

/// List DAGs by name
#[utoipa::path(get, path = "/api/v1/dags", operation_id = "list_dags", tag = "dags", params(PageQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = DagPage, description = "A page of DAGs")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: PageQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let view = app.dispatch.dags.view(&caller.home()).await?;
        let from = asked.cursor.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let found = view.deployment.dags.range::<str, _>((from, Bound::Unbounded));
        let items: Vec<DagSummary> =
            found.take(limit + 1).filter_map(|(name, dag)| summary(&view.deployment, name, dag)).collect();
        Ok(cut(items, limit, |dag| dag.name.clone()))
    };
    respond(answer.await, &id)
}

/// A page of so many, and where the next one starts.
pub fn cut<T>(mut items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Page<T> {
    let more = items.len() > limit;
    items.truncate(limit);
    Page { next_cursor: items.last().filter(|_| more).map(cursor), items }
}

fn summary(deployment: &Deployment, name: &Arc<str>, dag: &DagRow) -> Option<DagSummary> {
    let (latest, version) = dag.versions.last_key_value()?;
    let waits = deployment.staged(name).map(|(_, version)| version);
    Some(DagSummary {
        name: name.to_string(),
        active_version: dag.active,
        latest_version: *latest,
        state: waits.unwrap_or(version).state.as_str().to_owned(),
        updated_at: updated_at(dag, version).to_string(),
    })
}

fn updated_at(dag: &DagRow, latest: &VersionRow) -> Timestamp {
    dag.updated_at.unwrap_or(latest.created_at)
}

/// Which version is shown
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ShowQuery {
    /// Default: the active version, or the latest one if none is active
    version: Option<i64>,
}

/// Show a DAG with its YAML, jobs and counts of tasks
#[utoipa::path(get, path = "/api/v1/dags/{name}", operation_id = "get_dag", tag = "dags", params(("name" = String, Path), ShowQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = Dag, description = "The DAG")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ShowQuery = query(&uri)?;
        let org = caller.home();
        let view = app.dispatch.dags.view(&org).await?;
        let dag = view.deployment.dags.get(&*name).ok_or_else(|| not_found(&view, &name))?;
        let (latest, newest) = dag.versions.last_key_value().ok_or_else(|| not_found(&view, &name))?;
        let number = asked.version.or(dag.active).unwrap_or(*latest);
        let version = dag.versions.get(&number).ok_or_else(|| {
            let message = format!("DAG {name} has no version {number}; the latest one is {latest}");
            DispatchFault::fault("version_not_found", message)
        })?;
        let yaml = app.dispatch.dags.yaml(&org, version.id).await?.ok_or_else(|| {
            let message = format!(
                "the text of version {number} of DAG {name} is not kept any more: see GET /api/v1/dags/{name}/versions"
            );
            DispatchFault::fault("version_not_found", message)
        })?;
        Ok(Dag {
            active_version: dag.active,
            latest_version: *latest,
            version: number,
            state: version.state.as_str().to_owned(),
            updated_at: updated_at(dag, newest).to_string(),
            yaml: yaml.to_string(),
            jobs: jobs(&app, &view, version).await?,
            name: name.clone(),
        })
    };
    respond(answer.await, &id)
}

async fn jobs(app: &App, view: &View, version: &VersionRow) -> Result<Vec<DagJob>, Fault> {
    let ids: Vec<JobId> = version.jobs.values().copied().collect();
    let counts = app.dispatch.dags.task_counts(&ids).await?;
    let definitions = app.dispatch.dags.jobs(&ids).await?;
    let definitions: BTreeMap<JobId, &JobOf> = definitions.iter().map(|job| (job.id, &**job)).collect();
    let names: BTreeMap<_, _> = version.published.iter().map(|(name, it)| (it.dataset, name)).collect();
    let shown = ids.iter().zip(counts).filter_map(|(id, counts)| {
        let (job, row) = (definitions.get(id)?, view.deployment.jobs.get(id)?);
        let outputs = row.outputs.iter().zip(0_u32..).map(|(output, output_index)| DagOutput {
            output_index,
            dataset_uuid: output.dataset.to_string(),
            dataset_name: names.get(&output.dataset).map(ToString::to_string),
            dataset_version: output.version.to_string(),
        });
        Some(DagJob {
            name: row.name.to_string(),
            activation: if row.execution.is_some() { "reactive" } else { "source" }.to_owned(),
            runtime: job.definition.runtime.as_str().to_owned(),
            operator: job.definition.operator.to_string(),
            source: job.definition.source().map(|source| source_kind(source).to_owned()),
            execution_strategy: row.execution.map(|execution| strategy(execution).to_owned()),
            queue: job.queue.to_string(),
            inputs: inputs(&view.deployment, row, job),
            outputs: outputs.collect(),
            tasks: tasks(&counts),
        })
    });
    Ok(shown.collect())
}

fn inputs(deployment: &Deployment, row: &Job, job: &JobOf) -> Vec<DagInput> {
    let inputs = row.inputs.iter().zip(job.definition.inputs()).enumerate();
    let shown = inputs.map(|(input_index, (input, defined))| DagInput {
        input_index,
        alias: defined.alias.to_string(),
        from: match &defined.from {
            Upstream::Job(output) => {
                DagFrom { job: Some(output.job.to_string()), output: Some(output.output), dataset: None }
            }
            Upstream::Dataset(name) => DagFrom { dataset: Some(name.to_string()), ..DagFrom::default() },
        },
        dataset_uuid: input.dataset.to_string(),
        dataset_name: deployment.name_of(input.dataset).map(ToString::to_string),
        dataset_version: deployment.reads(input).map(|version| version.to_string()),
        condition: defined.filter.as_ref().map(|filter| Json::from(filter.written.clone())),
    });
    shown.collect()
}

const fn source_kind(source: &Source) -> &'static str {
    match source {
        Source::Cron { .. } => "cron",
        Source::Webhook { .. } => "webhook",
        Source::Manual => "manual",
        Source::AlwaysOn => "always_on",
    }
}

const fn strategy(execution: ExecutionStrategy) -> &'static str {
    match execution {
        ExecutionStrategy::PerUpdate => "PerUpdate",
        ExecutionStrategy::PerPartition => "PerPartition",
    }
}

fn tasks(counts: &Counts) -> JobTasks {
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    JobTasks {
        queued: count(counts.blocked + counts.scheduled + counts.ready),
        running: count(counts.running),
        failed: count(counts.dead_lettered),
    }
}

/// List the versions of a DAG, newest first
#[utoipa::path(get, path = "/api/v1/dags/{name}/versions", operation_id = "list_dag_versions", tag = "dags", params(("name" = String, Path), PageQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = DagVersionPage, description = "A page of versions")))]
pub async fn versions(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: PageQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let before = asked.cursor.as_deref().map_or(Ok(i64::MAX), str::parse);
        let before = before.map_err(|_| Fault::invalid("cursor", "must be the next_cursor of a page"))?;
        let org = caller.home();
        let view = app.dispatch.dags.view(&org).await?;
        let dag = view.deployment.dags.get(&*name).ok_or_else(|| not_found(&view, &name))?;
        let mut items = Vec::new();
        for (number, version) in dag.versions.range(..before).rev().take(limit.min(limits::LIST_LIMIT_MAX) + 1) {
            let rebuild = match version.state {
                VersionState::Staging => app.dispatch.dags.rebuild_counts(&org, &name, *number).await?,
                _ => TaskCounts { total: version.rebuilt, succeeded: version.rebuilt, failed: 0 },
            };
            items.push(DagVersion {
                version: *number,
                dag_version_id: version.id.to_string(),
                yaml_hash: version.yaml_hash.to_string(),
                state: version.state.as_str().to_owned(),
                previous_version: version.previous,
                created_at: version.created_at.to_string(),
                rebuild: RebuildProgress { total: rebuild.total, done: rebuild.succeeded, failed: rebuild.failed },
            });
        }
        Ok(cut(items, limit, |version| version.version.to_string()))
    };
    respond(answer.await, &id)
}
