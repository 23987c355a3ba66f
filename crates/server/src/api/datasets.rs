//! Datasets: what DAGs produce, how far it was read, and what to do when it has changed.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use tenure_contract::dags::{
    Dataset, DatasetConsumer, DatasetCursor, DatasetPage, DatasetPartition, DatasetProducer, DatasetSummary,
    DatasetVersion, InvalidateRequest, Invalidated, Lineage as WireLineage, LineageEntry,
};
use tenure_contract::user::Page;
use tenure_contract::{Json, suggest};
use tenure_core::dag::data::{NewInvalidation, Scope};
use tenure_core::dag::deployment::{Dataset as DatasetRow, Published};
use tenure_core::dag::judge::{self, REASONS};
use tenure_core::dag::lineage::{Lineage, Related};
use tenure_core::dag::{DatasetId, Deployment, InvalidationId, JobId, VersionId, named_bits};
use tenure_engine::dags::View;
use tenure_engine::random_bits;
use tenure_engine::store::dags::{GenerationRow, PartitionRow};

use super::dags::show::cut;
use super::dags::{BODY_BYTES, named, read};
use super::{query, respond, respond_with};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::dispatch::DispatchFault;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;
use crate::{audit, validate};

/// Versions that a dataset shows.
const VERSIONS: usize = 100;
/// Entries of each direction of a lineage.
const LINEAGE: usize = 1_000;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/datasets", get(list))
        .route("/api/v1/datasets/{name}", get(show))
        .route("/api/v1/datasets/{name}/invalidate", post(invalidate))
}

/// Filters of a list of datasets
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Only those that this DAG produces
    dag: Option<String>,
    /// Only those that have a name
    published: Option<bool>,
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List datasets by DAG, job and output
#[utoipa::path(get, path = "/api/v1/datasets", operation_id = "list_datasets", tag = "datasets", params(ListQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = DatasetPage, description = "A page of datasets")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ListQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let view = app.dispatch.dags.view(&caller.home()).await?;
        let deployment = &view.deployment;
        let names = names(deployment);
        let mut found: Vec<(DatasetId, &DatasetRow)> = deployment
            .datasets
            .iter()
            .filter(|(_, row)| asked.dag.as_deref().is_none_or(|dag| *row.dag == *dag))
            .filter(|(id, _)| asked.published.is_none_or(|published| published == names.contains_key(*id)))
            .map(|(id, row)| (*id, row))
            .collect();
        found.sort_unstable_by_key(|(_, row)| place(row));
        if let Some(cursor) = &asked.cursor {
            let id = DatasetId::parse(cursor).ok().and_then(|id| deployment.datasets.get(&id));
            let last = id.ok_or_else(|| Fault::invalid("cursor", "must be the next_cursor of a page"))?;
            found.retain(|(_, row)| place(row) > place(last));
        }
        found.truncate(limit + 1);
        let current: Vec<VersionId> = found.iter().filter_map(|(_, row)| row.current).collect();
        let generations = generations(&app, &current).await?;
        let items = found.into_iter().map(|(id, row)| {
            let cursor = row.current.and_then(|current| generations.get(&current)?.cursor);
            summary(id, row, names.get(&id).copied(), cursor)
        });
        Ok(cut(items.collect(), limit, |dataset| dataset.dataset_uuid.clone()))
    };
    respond(answer.await, &id)
}

/// Where a dataset stands in a list.
fn place(row: &DatasetRow) -> (&str, &str, u32) {
    (&row.dag, &row.job, row.output)
}

/// The names under which active versions publish datasets.
fn names(deployment: &Deployment) -> HashMap<DatasetId, (&Arc<str>, &Published)> {
    let active = deployment.dags.keys().filter_map(|dag| deployment.active(dag));
    let published = active.flat_map(|version| &version.published);
    published.map(|(name, published)| (published.dataset, (name, published))).collect()
}

async fn generations(app: &App, versions: &[VersionId]) -> Result<HashMap<VersionId, GenerationRow>, Fault> {
    let found = app.dispatch.dags.generations(versions).await?;
    Ok(found.into_iter().map(|row| (row.version, row)).collect())
}

fn summary(
    id: DatasetId,
    row: &DatasetRow,
    published: Option<(&Arc<str>, &Published)>,
    cursor: Option<i64>,
) -> DatasetSummary {
    let (name, published) = published.unzip();
    DatasetSummary {
        dataset_uuid: id.to_string(),
        name: name.map(ToString::to_string),
        storage: published.and_then(|it| it.storage).map(|storage| storage.as_str().to_owned()),
        write_mode: published.map(|it| it.write_mode).unwrap_or_default().as_str().to_owned(),
        current_version: row.current.map(|version| version.to_string()),
        cursor,
        producer: DatasetProducer { dag: row.dag.to_string(), job: row.job.to_string(), output_index: row.output },
    }
}

/// Which partitions are shown
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ShowQuery {
    /// Partitions of this version; default the current one
    version: Option<String>,
    /// Partitions of a page: 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `partitions.next_cursor` of the page before
    cursor: Option<String>,
}

/// Show a dataset with its schema, versions, cursors, partitions and lineage
#[utoipa::path(get, path = "/api/v1/datasets/{name}", operation_id = "get_dataset", tag = "datasets", params(("name" = String, Path, description = "Name, or dataset_uuid"), ShowQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = Dataset, description = "The dataset")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ShowQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let view = app.dispatch.dags.view(&caller.home()).await?;
        let (id, row) = found(&view, &name)?;
        let version = match &asked.version {
            None => row.current,
            Some(text) => Some(version_of(row, text)?),
        };
        let partitions = match version {
            Some(version) => app.dispatch.dags.partitions(version, asked.cursor.as_deref(), limit).await?,
            None => tenure_engine::store::Page { items: Vec::new(), next: None },
        };
        let partitions =
            Page { items: partitions.items.into_iter().map(partition).collect(), next_cursor: partitions.next };
        whole(&app, &view, id, row, partitions).await
    };
    respond(answer.await, &id)
}

/// A dataset by name or id, if it is one of the caller's organisation.
fn found<'a>(view: &'a View, name: &str) -> Result<(DatasetId, &'a DatasetRow), Fault> {
    let deployment = &view.deployment;
    let id = deployment.dataset_named(name).or_else(|| DatasetId::parse(name).ok());
    if let Some((id, row)) = id.and_then(|id| Some((id, deployment.datasets.get(&id)?))) {
        return Ok((id, row));
    }
    let active = deployment.dags.keys().filter_map(|dag| deployment.active(dag));
    let known = active.flat_map(|version| version.published.keys()).map(|name| &**name);
    let near = suggest::meant(suggest::nearest(name, known));
    Err(DispatchFault::fault("dataset_not_found", format!("no such dataset{near}")))
}

fn version_of(row: &DatasetRow, text: &str) -> Result<VersionId, Fault> {
    let version = VersionId::parse(text).ok().filter(|version| row.versions.contains(version));
    version.ok_or_else(|| DispatchFault::fault("unknown_dataset_version", "the dataset never had such a version"))
}

async fn whole(
    app: &App,
    view: &View,
    id: DatasetId,
    row: &DatasetRow,
    partitions: Page<DatasetPartition>,
) -> Result<Dataset, Fault> {
    let deployment = &view.deployment;
    let names = names(deployment);
    let newest: Vec<VersionId> = row.versions.iter().rev().take(VERSIONS).copied().collect();
    let asked: Vec<VersionId> = newest.iter().copied().chain(row.current).collect();
    let generations = generations(app, &asked).await?;
    let versions = newest.iter().filter_map(|version| {
        let generation = generations.get(version)?;
        Some(DatasetVersion {
            dataset_version: version.to_string(),
            current: row.current == Some(*version),
            generation: generation.generation,
            cursor: generation.cursor,
            created_at: generation.created_at.to_string(),
        })
    });
    let lineage = Lineage::of(deployment);
    let cursor = DatasetCursor {
        produced: row.current.and_then(|current| generations.get(&current)?.cursor),
        consumers: consumers(app, &lineage, id, row).await?,
    };
    let entry = |related: Related| entry(related, &names);
    let published = names.get(&id).copied();
    let summary = summary(id, row, published, None);
    Ok(Dataset {
        dataset_uuid: summary.dataset_uuid,
        name: summary.name,
        storage: summary.storage,
        write_mode: summary.write_mode,
        current_version: summary.current_version,
        producer: summary.producer,
        schema: published.and_then(|(_, it)| it.schema.clone()).map(Json::from_trusted),
        versions: versions.collect(),
        cursor,
        partitions,
        lineage: WireLineage {
            upstream: lineage.upstream(id, LINEAGE).into_iter().map(entry).collect(),
            downstream: lineage.downstream(id, LINEAGE).into_iter().map(entry).collect(),
        },
    })
}

/// How far jobs have read what is current.
async fn consumers(
    app: &App,
    lineage: &Lineage<'_>,
    id: DatasetId,
    row: &DatasetRow,
) -> Result<Vec<DatasetConsumer>, Fault> {
    let consumers: Vec<_> = lineage.consumers(id).collect();
    let jobs: Vec<JobId> = consumers.iter().map(|(job, _)| *job).collect();
    let cursors = app.dispatch.dags.cursors(&jobs).await?;
    let read: HashMap<JobId, i64> = cursors
        .into_iter()
        .filter(|(_, version, _)| row.current == Some(*version))
        .map(|(job, _, value)| (job, value))
        .collect();
    let shown = consumers.iter().map(|(id, job)| DatasetConsumer {
        dag: job.dag.to_string(),
        job: job.name.to_string(),
        value: read.get(id).copied(),
    });
    Ok(shown.collect())
}

fn entry(related: Related, names: &HashMap<DatasetId, (&Arc<str>, &Published)>) -> LineageEntry {
    let (output_index, dataset) = related.output.unzip();
    LineageEntry {
        dag: related.dag.to_string(),
        job: related.job.to_string(),
        output_index,
        dataset_uuid: dataset.map(|dataset| dataset.to_string()),
        name: dataset.and_then(|dataset| names.get(&dataset)).map(|(name, _)| name.to_string()),
        distance: related.distance,
        reads: related.reads.iter().map(ToString::to_string).collect(),
    }
}

fn partition(row: PartitionRow) -> DatasetPartition {
    let (start, end) = row.ends.unzip();
    DatasetPartition {
        partition_key: row.key.to_string(),
        start,
        end,
        generation: row.generation,
        location: row.location.map(|location| location.to_string()),
        row_count: row.row_count,
        bytes: row.bytes,
        materialized_at: row.materialized_at.map(|at| at.to_string()),
    }
}

/// Invalidate data of a dataset: jobs that read it run again
///
/// To compute a dataset itself again, invalidate what it is made from.
#[utoipa::path(post, path = "/api/v1/datasets/{name}/invalidate", operation_id = "invalidate_dataset", tag = "datasets",
    params(("name" = String, Path, description = "Name, or dataset_uuid"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same one again is the same invalidation")),
    request_body = InvalidateRequest, security(("api_key" = ["api"])),
    responses((status = 202, body = Invalidated, description = "Tasks of dependent jobs are created")))]
pub async fn invalidate(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let asked: InvalidateRequest = read(&headers, body, BODY_BYTES).await?.decode()?;
        let request = named(None, &headers)?;
        let scope = scope(&asked)?;
        let reason = reason(&asked)?;
        let view = app.dispatch.dags.view(&caller.home()).await?;
        let (dataset, row) = found(&view, &name)?;
        let version = row.current.ok_or_else(|| {
            let message = "no active version of a DAG writes this dataset: there is nothing to invalidate";
            DispatchFault::fault("unknown_dataset_version", message)
        })?;
        let id = invalidation_id(&caller, dataset, request.as_deref());
        let new = NewInvalidation { id, dataset, version, scope, reason };
        let row = app.dispatch.dags.invalidate(&caller.home(), &new).await?;
        let dependents = app.dispatch.dags.dependents(&view, &row);
        Ok(Invalidated { invalidation_id: row.id.to_string(), generation: row.generation, dependents })
    };
    let answer = answer.await;
    let answer = audit::operation(&app, &caller, &id, "dataset.invalidate", &name, answer).await;
    respond_with(StatusCode::ACCEPTED, answer, &id)
}

fn scope(asked: &InvalidateRequest) -> Result<Scope, Fault> {
    let scope = match (asked.scope.as_str(), &asked.partition_key, &asked.row_filter) {
        ("partition", Some(key), None) => Scope::Partition { partition_key: key.as_str().into() },
        ("row_range", None, Some(filter)) => Scope::RowRange { row_filter: filter.text() },
        ("partition", None, _) => return Err(Fault::invalid("partition_key", "is required with scope partition")),
        ("row_range", _, None) => return Err(Fault::invalid("row_filter", "is required with scope row_range")),
        ("partition", ..) => return Err(Fault::invalid("row_filter", "goes with scope row_range")),
        ("row_range", ..) => return Err(Fault::invalid("partition_key", "goes with scope partition")),
        _ => return Err(Fault::invalid("scope", "must be partition or row_range")),
    };
    judge::check_scope(&scope, "scope")?;
    Ok(scope)
}

fn reason(asked: &InvalidateRequest) -> Result<Arc<str>, Fault> {
    let reason = asked.reason.as_deref().unwrap_or("manual");
    if REASONS.contains(&reason) {
        Ok(reason.into())
    } else {
        Err(Fault::invalid("reason", "must be reorg, correction, manual or schema_change"))
    }
}

/// The same request has the same id.
fn invalidation_id(caller: &Caller, dataset: DatasetId, request: Option<&str>) -> InvalidationId {
    let request = request.map_or_else(|| random_bits().to_string(), |request| format!("request {request}"));
    InvalidationId::from_u128(named_bits(&format!("{}\n{dataset}\n{request}", caller.home())))
}
