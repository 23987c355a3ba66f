//! Writes batches to the tables of their datasets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure_core::TaskId;
use tenure_core::command::Reach;
use tenure_core::dag::buffer::{BATCH_BYTES, Batch, BatchError, Content, retry_ms};
use tenure_core::dag::data::Position;
use tenure_core::dag::{DatasetId, PublishId, VersionId, org_id};
use tenure_core::objects::Staged;
use tenure_data::{DataError, Rows};
use tenure_objects::{ObjectError, Objects};
use tenure_store::buffers::{PublishRow, Settled};

use super::{Buffered, Buffers, place, rejected};
use crate::background::Pacer;
use crate::duty::Duty;
use crate::error::EngineError;

/// How soon batches are found that another control plane recorded.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Datasets that are written to at once.
const SINKS: usize = 4;
/// Datasets of one look.
const DATASETS: usize = 100;
/// Batches of one dataset that are taken at once.
const TAKEN: usize = 64;
/// Bytes of batches that are written in one transaction, but for a single larger one.
const TRANSACTION_BYTES: u64 = BATCH_BYTES;
/// How long a batch is its taker's. It is longer than a transaction of the data store may take.
const HOLD_MS: i64 = 180_000;
/// When a batch is tried again that could not be tried.
const AWAY_MS: i64 = 1_000;

/// Why a batch was not turned into rows.
enum NotRead {
    Rejected(BatchError),
    /// Something is away, which says nothing about the batch.
    Away(String),
}

type Prepared = (PublishRow, Rows);

impl Buffers {
    pub(super) async fn keep_sinking(self) {
        let shared = Arc::clone(&self.inner.dags.engine().shared);
        let mut pacer = Pacer::new(&shared);
        loop {
            tokio::select! {
                more = pacer.pause(LOOK_EVERY) => if !more { return },
                () = self.inner.work.notified() => {}
            }
            while shared.duties.is_mine(Duty::Sink) && !shared.stopping.is_cancelled() {
                match self.sink_all().await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        tracing::debug!(%error, "batches wait");
                        break;
                    }
                }
            }
        }
    }

    /// Writes what is due. Returns whether there may be more.
    async fn sink_all(&self) -> Result<bool, EngineError> {
        let due = self.shared().store.due_buffers(DATASETS).await?;
        let sinks = due.clone().into_iter().map(|(org, dataset)| async move { self.sink(&org, dataset).await });
        let done: Vec<Result<(), EngineError>> = stream::iter(sinks).buffer_unordered(SINKS).collect().await;
        done.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(!due.is_empty())
    }

    /// Takes some batches of a dataset and writes them, as many at a time as fit into a transaction.
    async fn sink(&self, org: &Arc<str>, dataset: DatasetId) -> Result<(), EngineError> {
        let taken = self.shared().store.take_publishes(dataset, TAKEN, HOLD_MS).await?;
        let Some(found) = self.dataset(org, dataset).await? else {
            let error = rejected("dataset_not_found", "no deployed version has the dataset as a buffered one");
            return self.reject_all(None, taken.iter().map(|row| (row, error.clone()))).await;
        };
        if let Err(error) = self.ensure(&found.table).await {
            return self.not_written(&found, taken, &error).await;
        }
        let mut waiting = taken.into_iter();
        loop {
            let (mut prepared, mut bytes) = (Vec::new(), 0);
            for row in waiting.by_ref() {
                match self.read(&found, &row).await {
                    Ok((rows, size)) => {
                        bytes += size;
                        prepared.push((row, rows));
                    }
                    Err(NotRead::Rejected(error)) => self.reject_all(Some(&found), [(&row, error)].into_iter()).await?,
                    Err(NotRead::Away(why)) => {
                        tracing::warn!(publish.id = %row.id, error = why, "a batch cannot be read now");
                        self.settle(&[(row.id, Settled::PutOff { after_ms: AWAY_MS })]).await?;
                    }
                }
                if bytes >= TRANSACTION_BYTES {
                    break;
                }
            }
            if prepared.is_empty() {
                return Ok(());
            }
            self.write(&found, prepared).await?;
        }
    }

    /// The rows of a batch, and how many bytes they were.
    async fn read(&self, dataset: &Buffered, row: &PublishRow) -> Result<(Rows, u64), NotRead> {
        let gone = || NotRead::Rejected(rejected("malformed_batch", "the batch cannot be read from the store"));
        let batch = row.batch.as_ref().ok_or_else(gone)?;
        if let Some(fault) = &batch.fault {
            return Err(NotRead::Rejected(fault.clone()));
        }
        if batch.schema_hash.as_ref().is_some_and(|hash| !dataset.knows_hash(hash)) {
            let message = "schema_hash is not that of the schema of the dataset";
            return Err(NotRead::Rejected(rejected("schema_hash_mismatch", message)));
        }
        let (schema, org) = (Arc::clone(&dataset.table.schema), org_id(&dataset.org));
        let read = match &batch.content {
            Content::Records(records) => {
                let (records, size) = (Arc::clone(records), records.len() as u64);
                let read = move || Rows::of_records(&schema, org, &records);
                tokio::task::spawn_blocking(read).await.map(|read| (read, size))
            }
            Content::Artifact { uri, .. } => {
                let bytes = self.artifact(dataset, batch, uri).await?;
                let size = bytes.len() as u64;
                tokio::task::spawn_blocking(move || Rows::parse(&schema, org, &bytes)).await.map(|read| (read, size))
            }
        };
        let (rows, size) = read.map_err(|error| NotRead::Away(error.to_string()))?;
        let rows = rows.map_err(|fault| {
            let (code, message) = (fault.code.as_str().into(), fault.message.into());
            NotRead::Rejected(BatchError { code, message, line: Some(fault.line) })
        })?;
        Ok((rows, size))
    }

    async fn artifact(&self, dataset: &Buffered, batch: &Batch, uri: &str) -> Result<bytes::Bytes, NotRead> {
        let refuse = |error: ObjectError| match error {
            ObjectError::Unavailable(source) | ObjectError::Denied(source) => NotRead::Away(source.to_string()),
            ObjectError::NotFound => NotRead::Rejected(rejected("batch_not_found", "batch_uri names no object")),
            ObjectError::TooLarge(limit) => {
                let message = format!("the object of batch_uri has more than {limit} bytes");
                NotRead::Rejected(rejected("batch_too_large", message))
            }
            other => NotRead::Rejected(rejected(other.code(), other.to_string())),
        };
        let Some(objects) = &self.inner.objects else { return Err(NotRead::Away("there is no object store".into())) };
        let (prefix, name) = place(objects, uri).map_err(refuse)?;
        // Tasks are judged by their tokens when they publish, users upload to one place. Anybody else may have written
        // anything into a message.
        let own = objects.layout().buffers(uuid::Uuid::from_u128(batch.dataset.as_u128()));
        let open = !batch.outside || own.is_ok_and(|own| own.covers(&prefix));
        if !open && !self.is_scratch_of(&dataset.org, objects, uri).await? {
            return Err(refuse(ObjectError::NotGranted));
        }
        objects.get(&prefix, &name, BATCH_BYTES).await.map_err(refuse)
    }

    /// Whether an object is in the scratch folder of a task of this organisation.
    async fn is_scratch_of(&self, org: &str, objects: &Objects, uri: &str) -> Result<bool, NotRead> {
        let Some(Staged::Scratch { task, .. }) = objects.staged(uri) else { return Ok(false) };
        let task = self.shared().store.task(TaskId::from_u128(task.as_u128()), &Reach::All).await;
        let task = task.map_err(|error| NotRead::Away(error.chain()))?;
        Ok(task.is_some_and(|task| *task.body.tenant == *org))
    }

    /// Writes batches in one transaction, then records the dataset event, then settles them.
    async fn write(&self, dataset: &Buffered, prepared: Vec<Prepared>) -> Result<(), EngineError> {
        let (rows, batches): (Vec<PublishRow>, Vec<Rows>) = prepared.into_iter().unzip();
        let number: usize = batches.iter().map(Rows::len).sum();
        let one_by_one = (rows.len() > 1).then(|| batches.clone());
        match self.inner.data.append(&dataset.table, batches).await {
            Ok(appended) => {
                metrics::counter!("tenure_buffer_rows_total").increment(appended.rows);
                metrics::counter!("tenure_buffer_duplicate_rows_total").increment(number as u64 - appended.rows);
                if let Some(upto) = appended.upto {
                    self.tell(dataset, &rows, upto).await?;
                }
                let done: Vec<(PublishId, Settled)> = rows.iter().map(|row| (row.id, Settled::Done)).collect();
                self.settle(&done).await?;
                self.forget_uploads(rows.iter().filter_map(|row| row.batch.as_ref())).await;
                Ok(())
            }
            // Which of them it was is found out one by one.
            Err(DataError::Failed { .. }) if one_by_one.is_some() => {
                for prepared in rows.into_iter().zip(one_by_one.into_iter().flatten()) {
                    Box::pin(self.write(dataset, vec![prepared])).await?;
                }
                Ok(())
            }
            Err(error) => self.not_written(dataset, rows, &error).await,
        }
    }

    /// Records the event of the dataset, for each generation that the batches belong to.
    async fn tell(&self, dataset: &Buffered, rows: &[PublishRow], upto: i64) -> Result<(), EngineError> {
        let of = |row: &PublishRow| row.batch.as_ref().and_then(|batch| batch.version).or(dataset.version);
        let versions: BTreeSet<VersionId> = rows.iter().filter_map(of).collect();
        for version in versions {
            let id = dataset.table.dataset;
            self.shared().store.record(&dataset.org, id, version, &Position::Cursor(upto)).await?;
        }
        self.inner.dags.recorded();
        Ok(())
    }

    async fn not_written(
        &self,
        dataset: &Buffered,
        rows: Vec<PublishRow>,
        error: &DataError,
    ) -> Result<(), EngineError> {
        let code = match error {
            DataError::Unavailable { .. } => {
                tracing::warn!(dataset.id = %dataset.table.dataset, error = error.chain(), "the data store is unavailable: batches wait");
                metrics::counter!("tenure_data_store_failures_total").increment(1);
                let put_off = rows.iter().map(|row| (row.id, Settled::PutOff { after_ms: AWAY_MS }));
                return self.settle(&put_off.collect::<Vec<_>>()).await;
            }
            DataError::Incompatible(_) => "incompatible_schema",
            DataError::Failed { .. } => {
                tracing::error!(dataset.id = %dataset.table.dataset, error = error.chain(), "the data store refused a batch");
                "data_store_failed"
            }
        };
        let error = rejected(code, error.to_string());
        self.reject_all(Some(dataset), rows.iter().map(|row| (row, error.clone()))).await
    }

    async fn reject_all<'a>(
        &self,
        dataset: Option<&Buffered>,
        rejected: impl Iterator<Item = (&'a PublishRow, BatchError)>,
    ) -> Result<(), EngineError> {
        let most =
            dataset.map_or(tenure_core::dag::definition::BUFFER_RECEIVES_DEFAULT, |dataset| dataset.max_receives);
        let settled = rejected.map(|(row, error)| {
            let is_last = row.receives >= most;
            tracing::warn!(
                publish.id = %row.id, dataset.id = %row.dataset, code = &*error.code, receives = row.receives, dead = is_last,
                "a batch was rejected"
            );
            metrics::counter!("tenure_buffer_rejections_total").increment(1);
            let settled = if is_last {
                let queue = dataset.and_then(|dataset| self.dead_queue(dataset));
                Settled::Dead { error, receives: row.receives, queue }
            } else {
                Settled::Rejected { error, after_ms: retry_ms(row.receives) }
            };
            (row.id, settled)
        });
        let settled: Vec<_> = settled.collect();
        self.settle(&settled).await
    }

    async fn settle(&self, settled: &[(PublishId, Settled)]) -> Result<(), EngineError> {
        if !settled.is_empty() {
            self.shared().store.settle_publishes(settled).await?;
        }
        Ok(())
    }

    /// What users uploaded is only needed until it is written, or until its dead letter is forgotten.
    pub(super) async fn forget_uploads(&self, batches: impl Iterator<Item = &Batch>) {
        let Some(objects) = &self.inner.objects else { return };
        for Batch { content, dataset, .. } in batches {
            let Content::Artifact { uri, .. } = content else { continue };
            let own = objects.layout().buffers(uuid::Uuid::from_u128(dataset.as_u128()));
            if let (Ok((prefix, name)), Ok(own)) = (place(objects, uri), own)
                && own.covers(&prefix)
                && let Err(error) = objects.delete(&prefix, &name).await
            {
                tracing::debug!(dataset.id = %dataset, %error, "an upload is left behind");
            }
        }
    }
}
