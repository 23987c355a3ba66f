//! Buffered datasets: batches of rows that wait in the store until a sink has written them to the data store.
//!
//! A batch is recorded in the control plane's store, by the transaction that accepts it. A sink validates it as a whole,
//! writes its rows in one transaction of the data store, records the event of the dataset, and then marks the batch as
//! done. A crash in between is healed by the next try: rows that are there are left out, and an event is recorded once.
//! One control plane has the duty of all sinks. Should two work for a moment, the data store still writes one batch of a
//! dataset after the other.

mod intake;
mod sink;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_core::dag::buffer::{
    BATCH_BYTES, Batch, BatchError, Content, INLINE_BYTES, NewPublish, OutsideQueue, WAITING_BYTES, digest, message,
};
use tenure_core::dag::definition::{BUFFER_RECEIVES_DEFAULT, WriteMode};
use tenure_core::dag::deployment::{DagVersion, Published};
use tenure_core::dag::{DatasetId, Deployment, PublishId, Schema, VersionId};
use tenure_core::objects::Prefix;
use tenure_core::queue::Transport;
use tenure_core::time::DurationMs;
use tenure_data::{DataError, DataStore, Reading, Table};
use tenure_objects::{ObjectError, Objects};
use tenure_store::Page;
use tenure_store::buffers::PublishRow;
use tenure_transport::JOBS;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::background::Pacer;
use crate::dags::{Dags, lock};
use crate::duty::Duty;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::random::random_bits;

/// How long a count of waiting bytes is used.
const COUNTED_FOR: Duration = Duration::from_secs(1);
/// Organisations whose count is kept, and tables that are known to be there.
const REMEMBERED: usize = 10_000;
const DAY_MS: DurationMs = 24 * 3_600_000;
/// How long batches that are done are known, so that a repeat is told from a new one.
const DONE_KEPT_MS: DurationMs = 7 * DAY_MS;
const DEAD_KEPT_MS: DurationMs = 30 * DAY_MS;
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const PRUNE_ROWS: usize = 500;
/// The organisation whose queues have the names of its datasets. Names of others could be the same.
const DEFAULT_ORG: &str = "default";

/// The buffered datasets of a control plane. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct Buffers {
    inner: Arc<Inner>,
}

struct Inner {
    dags: Dags,
    data: Arc<dyn DataStore>,
    objects: Option<Arc<Objects>>,
    /// How much organisations have waiting, as of a moment ago.
    waiting: Mutex<HashMap<Arc<str>, (Instant, i64)>>,
    /// Tables that are as their schema says, by its hash.
    ensured: Mutex<HashMap<DatasetId, Arc<str>>>,
    /// Batches were recorded.
    work: Notify,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("data", &self.inner.data).finish_non_exhaustive()
    }
}

/// A buffered dataset as it is deployed.
#[derive(Debug, Clone)]
pub struct Buffered {
    pub org: Arc<str>,
    pub name: Arc<str>,
    pub table: Table,
    pub max_receives: u32,
    /// The generation that events of a batch without one belong to.
    pub version: Option<VersionId>,
    /// Hashes of all its schemas that are known. An earlier one may only lack nullable columns.
    hashes: Vec<String>,
}

/// A batch that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    pub id: PublishId,
    /// It had been taken before.
    pub duplicate: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("no buffered dataset of this name or id")]
    UnknownDataset,
    #[error("the schema of the dataset has another hash")]
    SchemaHash,
    #[error("the batch has more than {BATCH_BYTES} bytes: publish it in parts")]
    TooLarge,
    #[error("the same Idempotency-Key was used for another batch")]
    KeyReused,
    #[error("the organisation has {} MiB waiting to be written: try again later", WAITING_BYTES >> 20)]
    Full,
    #[error("the object store is not available: try again")]
    Objects(#[source] ObjectError),
    #[error("a batch of more than {INLINE_BYTES} bytes needs an object store: see dispatch.object_store.url")]
    NoObjects,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What a user publishes.
#[derive(Debug, Clone)]
pub enum Upload {
    /// A JSON array of objects.
    Records(Arc<str>),
    /// JSON lines.
    Lines(Bytes),
}

impl Dags {
    /// The buffered datasets of this control plane, with what writes their batches. To be called once.
    pub fn buffers(&self, data: Arc<dyn DataStore>, objects: Option<Arc<Objects>>) -> Buffers {
        let inner = Inner {
            dags: self.clone(),
            data,
            objects,
            waiting: Mutex::default(),
            ensured: Mutex::default(),
            work: Notify::new(),
        };
        let buffers = Buffers { inner: Arc::new(inner) };
        let tasks = &self.engine().deliveries;
        tasks.spawn(buffers.clone().keep_sinking());
        tasks.spawn(buffers.clone().keep_pruning());
        for (transport, service) in buffers.shared().config.transports.configured() {
            tasks.spawn(buffers.clone().keep_taking_in(transport, Arc::clone(service)));
        }
        buffers
    }
}

impl Buffered {
    pub fn knows_hash(&self, hash: &str) -> bool {
        self.hashes.iter().any(|known| known == hash)
    }

    /// What is deployed under a dataset that an active or staged version publishes.
    fn of(org: &Arc<str>, deployment: &Deployment, dataset: DatasetId) -> Option<Self> {
        let dag = deployment.dags.get(&deployment.datasets.get(&dataset)?.dag)?;
        let published = |version: &DagVersion| -> Option<(Arc<str>, Published)> {
            let mut named = version.published.iter();
            let is =
                |published: &Published| published.dataset == dataset && published.write_mode == WriteMode::Buffered;
            named.find(|(_, published)| is(published)).map(|(name, published)| (Arc::clone(name), published.clone()))
        };
        let active = dag.active.and_then(|active| dag.versions.get(&active));
        let live = active.into_iter().chain(dag.versions.values().filter(|version| version.state.is_staged()));
        let (name, chosen) = live.clone().find_map(published)?;
        let schema = |published: &Published| serde_json::from_str::<Schema>(published.schema.as_ref()?).ok();
        // A staged version may have brought columns, and rows for them.
        let newest = dag.versions.values().rev().filter_map(published).find_map(|(_, published)| schema(&published))?;
        let all = dag.versions.values().filter_map(published).filter_map(|(_, published)| schema(&published));
        Some(Self {
            org: Arc::clone(org),
            name,
            max_receives: chosen.max_receives.unwrap_or(BUFFER_RECEIVES_DEFAULT),
            version: deployment.datasets.get(&dataset).and_then(|dataset| dataset.current),
            hashes: all.map(|schema| schema.hash()).collect(),
            table: Table::new(dataset, Arc::new(newest)),
        })
    }

    /// The queue of the dataset, as transports know it.
    fn queue(&self) -> Arc<str> {
        let dataset = match &*self.org {
            DEFAULT_ORG => self.name.to_string(),
            _ => self.table.dataset.to_string(),
        };
        format!("{JOBS}buffer.{dataset}").into()
    }

    fn dead_queue(&self) -> Arc<str> {
        format!("{}.dead", self.queue()).into()
    }
}

/// The buffered datasets of an organisation.
fn buffered(org: &Arc<str>, deployment: &Deployment) -> Vec<Buffered> {
    let versions = deployment.dags.values().flat_map(|dag| dag.versions.values());
    let published = versions.flat_map(|version| version.published.values());
    let ids: BTreeSet<DatasetId> = published.map(|published| published.dataset).collect();
    ids.into_iter().filter_map(|dataset| Buffered::of(org, deployment, dataset)).collect()
}

impl Buffers {
    fn shared(&self) -> &Shared {
        self.inner.dags.shared()
    }

    /// The outside queue that new batches of a dataset go through.
    pub fn queue(&self, dataset: &Buffered) -> Option<OutsideQueue> {
        self.outside(dataset.queue())
    }

    /// The same for a dataset by its id.
    pub async fn queue_of(&self, org: &Arc<str>, dataset: DatasetId) -> Result<Option<OutsideQueue>, EngineError> {
        Ok(self.dataset(org, dataset).await?.and_then(|dataset| self.queue(&dataset)))
    }

    fn dead_queue(&self, dataset: &Buffered) -> Option<OutsideQueue> {
        self.outside(dataset.dead_queue())
    }

    fn outside(&self, name: Arc<str>) -> Option<OutsideQueue> {
        let transport = self.shared().config.default_transport;
        (transport != Transport::Embedded).then_some(OutsideQueue { transport, name })
    }

    /// A buffered dataset by its name or id.
    pub async fn find(&self, org: &Arc<str>, name_or_id: &str) -> Result<Option<Buffered>, EngineError> {
        let view = self.inner.dags.view(org).await?;
        let named = view.deployment.dataset_named(name_or_id);
        let Some(id) = named.or_else(|| DatasetId::parse(name_or_id).ok()) else { return Ok(None) };
        Ok(Buffered::of(org, &view.deployment, id))
    }

    async fn dataset(&self, org: &Arc<str>, id: DatasetId) -> Result<Option<Buffered>, EngineError> {
        Ok(Buffered::of(org, &self.inner.dags.view(org).await?.deployment, id))
    }

    /// Whether an organisation may have more waiting. The count is of a moment ago.
    pub async fn has_room(&self, org: &Arc<str>, bytes: i64) -> Result<bool, EngineError> {
        let known = lock(&self.inner.waiting).get(org).copied().filter(|(at, _)| at.elapsed() < COUNTED_FOR);
        let waiting = match known {
            Some((_, waiting)) => waiting,
            None => self.shared().store.buffered_bytes(org).await?,
        };
        let mut counts = lock(&self.inner.waiting);
        if counts.len() >= REMEMBERED {
            counts.clear();
        }
        let at = known.map_or_else(Instant::now, |(at, _)| at);
        let fits = waiting + bytes <= WAITING_BYTES;
        counts.insert(Arc::clone(org), (at, waiting + if fits { bytes } else { 0 }));
        Ok(fits)
    }

    /// A batch that was recorded before, if there is one with this id.
    pub async fn known(&self, id: PublishId) -> Result<Option<PublishRow>, EngineError> {
        Ok(self.shared().store.publishes(&[id]).await?.pop())
    }

    /// Batches were recorded: they are written soon.
    pub fn recorded(&self) {
        self.inner.work.notify_one();
    }

    /// Takes a batch of a user. The same key names the same batch.
    pub async fn publish(
        &self,
        org: &Arc<str>,
        dataset: &str,
        upload: Upload,
        schema_hash: Option<Arc<str>>,
        key: Option<&str>,
    ) -> Result<Accepted, PublishError> {
        let found = self.find(org, dataset).await?.ok_or(PublishError::UnknownDataset)?;
        if schema_hash.as_ref().is_some_and(|hash| !found.knows_hash(hash)) {
            return Err(PublishError::SchemaHash);
        }
        let id = found.table.dataset;
        let publish = match key {
            Some(key) => PublishId::of_key(id, key),
            None => PublishId::from_u128(random_bits()),
        };
        let (sent, bytes) = match &upload {
            Upload::Records(records) => (records.as_bytes(), records.len()),
            Upload::Lines(lines) => (&lines[..], lines.len()),
        };
        if bytes as u64 > BATCH_BYTES {
            return Err(PublishError::TooLarge);
        }
        let digest = digest(sent);
        if let Some(known) = self.known(publish).await? {
            return if known.digest == digest {
                Ok(Accepted { id: publish, duplicate: true })
            } else {
                Err(PublishError::KeyReused)
            };
        }
        if !self.has_room(org, bytes as i64).await? {
            return Err(PublishError::Full);
        }
        let content = match upload {
            Upload::Records(records) => Content::Records(records),
            Upload::Lines(lines) => self.store_lines(id, publish, lines).await?,
        };
        let (version, producer, outside, fault) = (None, None, false, None);
        let batch = Batch { dataset: id, version, producer, schema_hash, content, outside, fault };
        let new = self.fitting(org, &found, publish, batch).await?;
        self.shared()
            .store
            .publish(org, &[NewPublish { digest, bytes: bytes as i64, ..new }])
            .await
            .map_err(EngineError::from)?;
        self.recorded();
        Ok(Accepted { id: publish, duplicate: false })
    }

    /// Records that do not fit into a message are stored as lines.
    async fn fitting(
        &self,
        org: &Arc<str>,
        dataset: &Buffered,
        id: PublishId,
        batch: Batch,
    ) -> Result<NewPublish, PublishError> {
        let batch = match &batch.content {
            Content::Records(records) if message(org, id, &batch).len() > INLINE_BYTES => {
                let lines = lines(records).map_err(|_| PublishError::TooLarge)?;
                let content = self.store_lines(batch.dataset, id, lines).await?;
                Batch { content, ..batch }
            }
            _ => batch,
        };
        Ok(NewPublish::of(id, batch, self.queue(dataset)))
    }

    async fn store_lines(&self, dataset: DatasetId, id: PublishId, lines: Bytes) -> Result<Content, PublishError> {
        let objects = self.inner.objects.as_ref().ok_or(PublishError::NoObjects)?;
        let prefix = objects.layout().buffers(Uuid::from_u128(dataset.as_u128()));
        let prefix = prefix.map_err(|error| PublishError::Objects(error.into()))?;
        let (name, bytes) = (format!("{id}.jsonl"), lines.len() as u64);
        objects.put_new(&prefix, &name, lines).await.map_err(PublishError::Objects)?;
        Ok(Content::Artifact { uri: format!("{prefix}{name}").into(), bytes: Some(bytes) })
    }

    /// Dead letters of a dataset, in the order in which they were published.
    pub async fn dead(
        &self,
        org: &Arc<str>,
        dataset: &str,
        after: i64,
        limit: usize,
    ) -> Result<Page<PublishRow>, PublishError> {
        let found = self.find(org, dataset).await?.ok_or(PublishError::UnknownDataset)?;
        let dead = self.shared().store.dead_publishes(org, found.table.dataset, after, limit).await;
        Ok(dead.map_err(EngineError::from)?)
    }

    /// Dead letters are tried again: these, or all. Returns how many.
    pub async fn replay(&self, org: &Arc<str>, dataset: &str, ids: Option<&[PublishId]>) -> Result<u64, PublishError> {
        let found = self.find(org, dataset).await?.ok_or(PublishError::UnknownDataset)?;
        let replayed = self.shared().store.replay_publishes(org, found.table.dataset, ids).await;
        self.recorded();
        Ok(replayed.map_err(EngineError::from)?)
    }

    /// How to read the tables of datasets as of one moment, in their order. `None` where there is no such buffered dataset.
    pub async fn readings(
        &self,
        org: &Arc<str>,
        datasets: &[DatasetId],
    ) -> Result<Result<Vec<Option<Reading>>, DataError>, EngineError> {
        let view = self.inner.dags.view(org).await?;
        let found: Vec<Option<Table>> = datasets
            .iter()
            .map(|dataset| Buffered::of(org, &view.deployment, *dataset).map(|found| found.table))
            .collect();
        let tables: Vec<Table> = found.iter().flatten().cloned().collect();
        for table in &tables {
            if let Err(error) = self.ensure(table).await {
                return Ok(Err(error));
            }
        }
        let mut readings = match self.inner.data.readings(&tables).await {
            Ok(readings) => readings.into_iter(),
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(found.iter().map(|table| table.as_ref().and_then(|_| readings.next())).collect()))
    }

    /// Makes the tables of an organisation. What cannot be made now is made by the sink.
    pub async fn ensure_tables(&self, org: &Arc<str>) -> Result<(), EngineError> {
        let view = self.inner.dags.view(org).await?;
        for dataset in buffered(org, &view.deployment) {
            if let Err(error) = self.ensure(&dataset.table).await {
                tracing::warn!(dataset.id = %dataset.table.dataset, error = error.chain(), "the table of a dataset cannot be made yet");
            }
        }
        Ok(())
    }

    /// The table is there and has the columns of its schema.
    async fn ensure(&self, table: &Table) -> Result<(), DataError> {
        let hash: Arc<str> = format!("{}{:?}", table.schema.hash(), table.schema.indexes).into();
        if lock(&self.inner.ensured).get(&table.dataset) == Some(&hash) {
            return Ok(());
        }
        self.inner.data.ensure(table).await?;
        let mut ensured = lock(&self.inner.ensured);
        if ensured.len() >= REMEMBERED {
            ensured.clear();
        }
        ensured.insert(table.dataset, hash);
        Ok(())
    }

    async fn keep_pruning(self) {
        let shared = Arc::clone(&self.inner.dags.engine().shared);
        let mut pacer = Pacer::new(&shared);
        while pacer.turn(Duty::Sink, PRUNE_EVERY).await {
            if let Err(error) = self.prune().await {
                tracing::debug!(%error, "old batches are kept for now");
            }
        }
    }

    /// Forgets old batches, and removes what users uploaded for those that nobody replayed. A crash in between leaves such
    /// an upload behind.
    pub async fn prune(&self) -> Result<(), EngineError> {
        let store = &self.shared().store;
        let now = store.now().await?;
        loop {
            let (done, dead) = (now.plus(-DONE_KEPT_MS), now.plus(-DEAD_KEPT_MS));
            let forgotten = store.prune_publishes(done, dead, PRUNE_ROWS).await?;
            self.forget_uploads(forgotten.iter().flatten()).await;
            if forgotten.len() < PRUNE_ROWS {
                return Ok(());
            }
        }
    }
}

/// A JSON array as lines.
fn lines(records: &str) -> Result<Bytes, serde_json::Error> {
    let records: Vec<&serde_json::value::RawValue> = serde_json::from_str(records)?;
    let mut lines = String::with_capacity(records.iter().map(|record| record.get().len() + 1).sum());
    for record in records {
        // White space between tokens may have line breaks; texts have none.
        lines.push_str(&record.get().replace(['\n', '\r'], " "));
        lines.push('\n');
    }
    Ok(lines.into())
}

/// An object's directory and name.
fn place(objects: &Objects, uri: &str) -> Result<(Prefix, String), ObjectError> {
    let (folder, name) = uri.rsplit_once('/').unwrap_or((uri, ""));
    if name.is_empty() {
        return Err(ObjectError::OddObject);
    }
    Ok((objects.parse(&format!("{folder}/"))?, name.to_owned()))
}

fn rejected(code: &str, message: impl Into<Arc<str>>) -> BatchError {
    BatchError { code: code.into(), message: message.into(), line: None }
}
