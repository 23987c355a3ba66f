//! What a caller may read, as lists of files and tables.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tenure_auth::{Access, DatasetGrant, S3Grant, StorageRef};
use tenure_contract::Json;
use tenure_contract::query::process::{
    Column, DataStore, Failed, Failure, FileRef, Place, Source, Table, View as WireView,
};
use tenure_core::dag::definition::Storage;
use tenure_core::dag::operators::{Extent, Plan};
use tenure_core::dag::task::InputAt;
use tenure_core::dag::{DatasetId, Schema, VersionId, org_id};
use tenure_core::objects::Prefix;
use tenure_data::{Access as DataAccess, Reading};
use tenure_engine::store::Page as StorePage;
use tenure_engine::store::dags::PartitionRow;
use tenure_objects::{File, ObjectError, Objects, Output, Reach};
use uuid::Uuid;

use super::Queries;
use crate::contracts::dispatch::Capability;
use crate::dispatch::render::{AttemptNumber, JobTask};
use crate::dispatch::{DispatchFault, NO_OBJECT_STORE};
use crate::error::Fault;

/// Partitions of one dataset that a query can read.
const PARTITIONS: usize = 20_000;
/// Files of all datasets of a query.
const FILES: usize = 20_000;
const PAGE: usize = 1_000;
/// Locations that are looked at at the same time.
const LOOKS: usize = 16;
/// Files whose names are remembered.
const REMEMBERED: usize = 200_000;
/// The name of the only dataset of a query, beside its own.
const ONLY: &str = "dataset";

/// A dataset that a query may read, and how much of it.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub id: DatasetId,
    pub names: Vec<String>,
    version: Option<VersionId>,
    readable: Readable,
    extent: Extent,
    columns: Vec<Column>,
    /// `where` of an input.
    condition: Option<Json>,
}

#[derive(Debug, Clone)]
pub enum Readable {
    /// All partitions, or those below these prefixes: others are refused.
    Files(Option<Vec<Prefix>>),
    Table,
    /// The caller may not read it after all.
    Refused(Failed),
}

fn refused(error: Failure, message: &str) -> Failed {
    Failed { error, message: message.to_owned() }
}

/// The datasets that a user can read: those that active versions publish, in their current generation.
pub async fn of_user(
    queries: &Queries,
    org: &Arc<str>,
    named: Option<&[String]>,
    only: Option<&str>,
) -> Result<Vec<Dataset>, Fault> {
    let view = queries.dispatch.dags.view(org).await?;
    let deployment = &view.deployment;
    let mut all = Vec::new();
    let active = deployment.dags.keys().filter_map(|dag| deployment.active(dag));
    for (name, published) in active.flat_map(|version| &version.published) {
        let readable = match published.storage {
            Some(Storage::Postgres) => Readable::Table,
            _ => Readable::Files(None),
        };
        all.push(Dataset {
            id: published.dataset,
            names: vec![name.to_string()],
            version: deployment.datasets.get(&published.dataset).and_then(|row| row.current),
            readable,
            extent: Extent::Whole,
            columns: published.schema.as_deref().map_or_else(Vec::new, columns),
            condition: None,
        });
    }
    if let Some(named) = named {
        let mut chosen = Vec::with_capacity(named.len());
        for name in named {
            let found = all.iter().find(|dataset| dataset.is_called(name)).ok_or_else(not_found)?;
            if !chosen.iter().any(|dataset: &Dataset| dataset.id == found.id) {
                chosen.push(found.clone());
            }
        }
        all = chosen;
    }
    name_only(&mut all, only, not_found)?;
    Ok(all)
}

fn not_found() -> Fault {
    DispatchFault::fault("dataset_not_found", "no published dataset of this name or id")
}

/// The datasets that the token of a task names. `where` of its inputs leaves out rows.
pub async fn of_task(
    queries: &Queries,
    task: &JobTask,
    token: &Capability,
    at: AttemptNumber,
    only: Option<&str>,
) -> Result<Vec<Dataset>, Fault> {
    let (grants, s3) = match &token.verified.claims.access {
        Access::Inline { datasets, s3 } => (datasets.clone(), s3.clone()),
        // They did not fit into the token, and follow from the task.
        Access::Stored { .. } => {
            let wire = queries.dispatch.wire(task, at).await?;
            let grants = queries.dispatch.grants(task, &wire, at.attempt);
            (grants.datasets, grants.s3)
        }
    };
    let inputs = task.job.definition.inputs();
    let mut all = Vec::new();
    for grant in &grants {
        let Ok(id) = DatasetId::parse(&grant.dataset_uuid) else { continue };
        let filter = inputs.iter().find(|input| *input.alias == *grant.alias).and_then(|input| input.filter.as_ref());
        all.push(Dataset {
            id,
            names: vec![grant.alias.clone()],
            version: VersionId::parse(&grant.dataset_version).ok(),
            readable: granted(grant, &s3),
            extent: Extent::Whole,
            columns: task.schema_of(id).as_deref().map_or_else(Vec::new, columns),
            condition: filter.and_then(|filter| Json::of(&filter.tree).ok()),
        });
    }
    let not_granted = || {
        let message = "the capability token does not name this dataset";
        DispatchFault::fault("dataset_not_granted", message)
    };
    name_only(&mut all, only, not_granted)?;
    Ok(all)
}

/// The inputs of a task that a query process runs, as far as it reads them.
pub fn of_job(task: &JobTask, plan: &Plan) -> Vec<Dataset> {
    let inputs = task.job.definition.inputs();
    let dataset = |(at, extent): (&InputAt, &Extent)| {
        let definition = inputs.get(at.input_index)?;
        Some(Dataset {
            id: at.dataset,
            names: vec![definition.alias.to_string()],
            version: Some(at.version),
            readable: if task.is_table(at.dataset) { Readable::Table } else { Readable::Files(None) },
            extent: extent.clone(),
            columns: task.schema_of(at.dataset).as_deref().map_or_else(Vec::new, columns),
            condition: definition.filter.as_ref().and_then(|filter| Json::of(&filter.tree).ok()),
        })
    };
    let mut all: Vec<Dataset> = task.input.inputs.iter().zip(&plan.extents).filter_map(dataset).collect();
    if let [only] = all.as_mut_slice()
        && !only.is_called(ONLY)
    {
        only.names.push(ONLY.to_owned());
    }
    all
}

/// What a grant of a token lets its holder read. What is missing or lies outside is refused when it is read.
fn granted(grant: &DatasetGrant, s3: &S3Grant) -> Readable {
    if grant.table.is_some() {
        return Readable::Table;
    }
    let text = match &grant.storage_ref {
        Some(StorageRef::S3 { bucket, prefix, .. }) => format!("s3://{bucket}/{prefix}"),
        Some(StorageRef::File { prefix, .. }) => format!("file://{prefix}"),
        None => {
            let message = "the capability token does not say where this dataset is";
            return Readable::Refused(refused(Failure::DatasetNotGranted, message));
        }
    };
    let read: Vec<Prefix> = s3.read_prefixes.iter().filter_map(|text| Prefix::parse(text, true).ok()).collect();
    match Prefix::parse(&text, true) {
        Ok(prefix) if read.iter().any(|granted| granted.covers(&prefix)) => Readable::Files(Some(read)),
        _ => Readable::Refused(outside()),
    }
}

fn outside() -> Failed {
    refused(Failure::PrefixNotGranted, "a file of the dataset is outside the read prefixes of the capability token")
}

fn columns(schema: &str) -> Vec<Column> {
    let schema: Option<Schema> = serde_json::from_str(schema).ok();
    let column = |column: &tenure_core::dag::Column| Column {
        name: column.name.to_string(),
        kind: column.kind.to_string(),
        nullable: column.nullable,
    };
    schema.map_or_else(Vec::new, |schema| schema.columns.iter().map(column).collect())
}

/// The only dataset, or the one that the request names, is called `dataset` too.
fn name_only(all: &mut [Dataset], named: Option<&str>, missing: impl Fn() -> Fault) -> Result<(), Fault> {
    let found = match named {
        Some(named) => Some(all.iter().position(|dataset| dataset.is_called(named)).ok_or_else(missing)?),
        None if all.len() == 1 => Some(0),
        None => None,
    };
    // A dataset whose own name it is keeps it.
    if let Some(at) = found.filter(|_| !all.iter().any(|dataset| dataset.is_called(ONLY))) {
        all[at].names.push(ONLY.to_owned());
    }
    Ok(())
}

impl Dataset {
    fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name) || self.id.to_string() == name
    }

    /// The rows of a table that it reads.
    fn narrow(&self, source: &Source) -> Source {
        match (source, &self.extent) {
            (Source::Table(table), Extent::Rows { after, upto }) => {
                Source::Table(Table { after: *after, upto: table.upto.min(*upto), ..table.clone() })
            }
            _ => source.clone(),
        }
    }

    /// Whether SQL can read it: its name must be in the text. A name that is written in another way is not known.
    fn is_in(&self, sql: &str) -> bool {
        self.names.iter().any(|name| sql.contains(name.as_str()))
    }
}

/// Lists of files that do not change any more, by location.
#[derive(Debug, Default)]
pub struct FileLists(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    lists: HashMap<String, Arc<[File]>>,
    files: usize,
}

impl FileLists {
    fn get(&self, location: &Prefix) -> Option<Arc<[File]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lists.get(&location.to_string()).cloned()
    }

    fn insert(&self, location: &Prefix, files: &Arc<[File]>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.files + files.len() > REMEMBERED {
            *known = Known::default();
        }
        known.files += files.len().max(1);
        known.lists.insert(location.to_string(), Arc::clone(files));
    }
}

/// Datasets as a query process is told of them. Only those that the SQL can read are looked up; others are named.
pub async fn views(
    queries: &Queries,
    org: &Arc<str>,
    sql: &str,
    datasets: &[Dataset],
    valid_for: Duration,
) -> Result<Vec<WireView>, Fault> {
    let sql = sql.to_lowercase();
    let tables: Vec<DatasetId> = datasets
        .iter()
        .filter(|dataset| matches!(dataset.readable, Readable::Table) && dataset.is_in(&sql))
        .map(|dataset| dataset.id)
        .collect();
    let readings = readings(queries, org, &tables).await?;
    let (mut views, mut left) = (Vec::with_capacity(datasets.len()), FILES);
    for dataset in datasets {
        let source = if !dataset.is_in(&sql) {
            Source::Refused(refused(Failure::QueryFailed, "the dataset was not looked up: write its name as it is"))
        } else {
            match &dataset.readable {
                Readable::Refused(failed) => Source::Refused(failed.clone()),
                Readable::Table => readings.get(&dataset.id).map(|table| dataset.narrow(table)).unwrap_or_else(|| {
                    Source::Refused(refused(
                        Failure::QueryFailed,
                        "the rows of this dataset are not kept by the server",
                    ))
                }),
                Readable::Files(granted) => files(queries, dataset, granted.as_deref(), &mut left, valid_for).await?,
            }
        };
        views.push(WireView { names: dataset.names.clone(), source, condition: dataset.condition.clone() });
    }
    Ok(views)
}

/// How to read tables, all as of one moment.
async fn readings(
    queries: &Queries,
    org: &Arc<str>,
    tables: &[DatasetId],
) -> Result<HashMap<DatasetId, Source>, Fault> {
    if tables.is_empty() {
        return Ok(HashMap::new());
    }
    let found = match queries.dispatch.buffers()?.readings(org, tables).await? {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(error = error.chain(), "tables cannot be read");
            let failed = refused(Failure::DataStoreUnavailable, "the data store cannot be read now: try again");
            return Ok(tables.iter().map(|id| (*id, Source::Refused(failed.clone()))).collect());
        }
    };
    let org = org_id(org).to_string();
    let table = |reading: Reading| {
        let store = match reading.access {
            DataAccess::Sqlite { path } => DataStore::Sqlite { path: path.to_string_lossy().into_owned() },
            DataAccess::Postgres { url, schema, .. } => {
                DataStore::Postgres { url: url.to_string(), schema: schema.to_owned() }
            }
        };
        let column = |column: &tenure_core::dag::Column| Column {
            name: column.name.to_string(),
            kind: column.kind.to_string(),
            nullable: column.nullable,
        };
        Source::Table(Table {
            store,
            name: reading.table,
            columns: reading.columns.iter().map(column).collect(),
            org_id: org.clone(),
            upto: reading.upto.unwrap_or(0),
            after: 0,
        })
    };
    let pairs = tables.iter().zip(found).filter_map(|(id, reading)| Some((*id, table(reading?))));
    Ok(pairs.collect())
}

/// The files of the partitions that are committed now.
async fn files(
    queries: &Queries,
    dataset: &Dataset,
    granted: Option<&[Prefix]>,
    left: &mut usize,
    valid_for: Duration,
) -> Result<Source, Fault> {
    let Some(objects) = &queries.dispatch.config.objects else {
        return Ok(Source::Refused(refused(Failure::ObjectStoreUnavailable, NO_OBJECT_STORE)));
    };
    let Some(version) = dataset.version else {
        let place = Place::Signed;
        return Ok(Source::Files { place, files: Vec::new(), columns: dataset.columns.clone() });
    };
    let mut locations = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = match &dataset.extent {
            Extent::Partition(key) => {
                let items = queries.dispatch.dags.partition(version, key).await?.into_iter().collect();
                StorePage { items, next: None }
            }
            _ => queries.dispatch.dags.partitions(version, after.as_deref(), PAGE).await?,
        };
        for row in &page.items {
            match location(objects, row) {
                Some(Ok(location)) => locations.push(location),
                Some(Err(error)) => return Ok(of_error(&error)),
                None => {}
            }
        }
        if locations.len() > PARTITIONS {
            let message = format!("the dataset has more than {PARTITIONS} partitions: compact it");
            return Ok(Source::Refused(refused(Failure::QueryFailed, &message)));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // Several partitions may be in one place.
    locations.sort_unstable_by_key(ToString::to_string);
    locations.dedup();
    let outside_grant = |location: &Prefix| granted.is_some_and(|all| !all.iter().any(|one| one.covers(location)));
    if locations.iter().any(outside_grant) {
        return Ok(Source::Refused(outside()));
    }
    let looks: Vec<_> = locations.iter().map(|location| listed(queries, objects, dataset.id, location)).collect();
    let lists: Result<Vec<Arc<[File]>>, ObjectError> = stream::iter(looks).buffered(LOOKS).try_collect().await;
    let lists = match lists {
        Ok(lists) => lists,
        Err(error) => return Ok(of_error(&error)),
    };
    let total: usize = lists.iter().map(|files| files.len()).sum();
    if total > *left {
        let message = format!("the datasets of the query have more than {FILES} files: compact them, or name fewer");
        return Ok(Source::Refused(refused(Failure::QueryFailed, &message)));
    }
    *left -= total;
    let place = match objects.reach() {
        Reach::Folder(path) => Place::Folder { path: path.to_string_lossy().into_owned() },
        Reach::Address => Place::Signed,
    };
    let mut found = Vec::with_capacity(total);
    for (location, files) in locations.iter().zip(&lists) {
        for file in files.iter() {
            match objects.reader_key(location, &file.name, valid_for).await {
                Ok(key) => found.push(FileRef { key, bytes: file.bytes }),
                Err(error) => return Ok(of_error(&error)),
            }
        }
    }
    Ok(Source::Files { place, files: found, columns: dataset.columns.clone() })
}

/// Where a partition is; `None` if it has no data.
fn location(objects: &Objects, row: &PartitionRow) -> Option<Result<Prefix, ObjectError>> {
    let text = row.location.as_deref()?;
    (text.starts_with("s3://") || text.starts_with("file:///")).then(|| objects.parse(text))
}

/// The Parquet files of a location that is committed.
async fn listed(
    queries: &Queries,
    objects: &Objects,
    dataset: DatasetId,
    location: &Prefix,
) -> Result<Arc<[File]>, ObjectError> {
    if let Some(known) = queries.files.get(location) {
        return Ok(known);
    }
    let output = Output { location, dataset: Uuid::from_u128(dataset.as_u128()), version: None };
    let finished = objects.finished(&output).await?;
    let files = finished.files.into_iter().filter(|file| file.name.ends_with(".parquet") && file.bytes > 0);
    let files: Arc<[File]> = files.collect();
    // A manifest fixes the list.
    if finished.has_manifest {
        queries.files.insert(location, &files);
    }
    Ok(files)
}

fn of_error(error: &ObjectError) -> Source {
    let failure = match error.code() {
        "object_store_unavailable" => {
            tracing::warn!(error = %error, reason = ?std::error::Error::source(error), "files of a dataset cannot be listed");
            Failure::ObjectStoreUnavailable
        }
        "manifest_too_large" => Failure::ManifestTooLarge,
        "prefix_not_granted" => Failure::PrefixNotGranted,
        _ => Failure::InvalidManifest,
    };
    Source::Refused(refused(failure, &error.to_string()))
}
