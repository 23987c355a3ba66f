//! What is kept about DAGs and datasets.

mod deploy;
mod rows;
pub mod save;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::batch::Counts;
use tenure_core::dag::data::{NewEvent, NewInvalidation, Position};
use tenure_core::dag::{DagVersionId, DatasetId, InvalidationId, JobId, VersionId};
use tenure_core::time::DurationMs;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::columns::Columns;
use super::deal::{Answers, Ask, Deal, Params, Write, clock};
use super::load::query;
use super::rows::{Time, text};
use super::{Postgres, sql};
use crate::codec;
use crate::dags::plan::DataWrites;
use crate::dags::{
    CronSlot, DATA_PAGE, DELIVERIES_PRUNED, DagStore, DagVersionRow, DataEvent, DeploymentRow, DeploymentWrites,
    GenerationRow, InvalidationRow, JobRow, JobState, Moved, PartitionRow, Routed, TaskCounts, Unread, WebhookRow,
};
use crate::error::StoreError;
use crate::identity::page;
use crate::model::Page;

type Result<T> = std::result::Result<T, StoreError>;
type Checked<T> = std::result::Result<T, Moved>;

fn uuid(bits: u128) -> Uuid {
    Uuid::from_u128(bits)
}

fn uuids(versions: &[VersionId]) -> Vec<Uuid> {
    versions.iter().map(|version| uuid(version.as_u128())).collect()
}

fn numbers(jobs: &[JobId]) -> Vec<i64> {
    jobs.iter().map(|job| job.0).collect()
}

fn texts(texts: &[Arc<str>]) -> Vec<&str> {
    texts.iter().map(|text| &**text).collect()
}

fn limited(limit: usize) -> i64 {
    limit.min(DATA_PAGE) as i64
}

fn params<'a>(columns: &'a Columns<'_>) -> Params<'a> {
    columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect()
}

impl Postgres {
    /// Begins a transaction that keeps the deployment as it is, if it is still the one that the caller has read.
    async fn with_deployment<'s>(
        &'s self,
        operation: &'static str,
        org: &str,
        seen: i64,
    ) -> Result<Checked<(Deal<'s>, Answers)>> {
        let asks = vec![Ask(sql::DEPLOYMENT_SEQ, vec![&org]), clock()];
        let (deal, mut answers) = Deal::begin(self, &self.work, operation, asks).await?;
        let seq = answers.one(|row| row.try_get::<_, i64>(0))?.unwrap_or(0);
        if seq != seen {
            deal.end().await?;
            return Ok(Err(Moved));
        }
        Ok(Ok((deal, answers)))
    }

    /// Writes rows about datasets in a transaction of their own, and asks for something before it is committed.
    pub(super) async fn write_data(
        &self,
        operation: &'static str,
        writes: &DataWrites,
        ask: Option<Write<'_>>,
    ) -> Result<Option<Row>> {
        let (deal, mut answers) = Deal::begin(self, &self.work, operation, vec![clock()]).await?;
        let steps = save::steps(writes, answers.now(self)?);
        let mut sent: Vec<Write<'_>> =
            steps.iter().map(|(name, sql, columns)| Write(name, sql, params(columns))).collect();
        sent.extend(ask);
        Ok(deal.commit(sent).await?.last())
    }
}

#[async_trait]
impl DagStore for Postgres {
    async fn deployment(&self, org: &str) -> Result<DeploymentRow> {
        let read = |row: &Row| Ok((row.try_get(0)?, text(row, 1)?));
        let found = self.list("read a deployment", sql::DEPLOYMENT_GET, &[&org], read).await?;
        let (seq, document) = found.into_iter().next().unwrap_or((0, "".into()));
        Ok(DeploymentRow { org: org.into(), seq, document })
    }

    async fn deployment_newer(&self, org: &str, seen: i64) -> Result<Option<DeploymentRow>> {
        let read = |row: &Row| Ok(DeploymentRow { org: org.into(), seq: row.try_get(0)?, document: text(row, 1)? });
        let found = self.list("read a deployment", sql::DEPLOYMENT_NEWER, &[&org, &seen], read).await?;
        Ok(found.into_iter().next())
    }

    async fn deployments(&self) -> Result<Vec<(Arc<str>, i64)>> {
        let read = |row: &Row| Ok((text(row, 0)?, row.try_get(1)?));
        self.list("list deployments", sql::DEPLOYMENTS_LIST, &[], read).await
    }

    async fn apply_deployment(&self, org: &str, seen: i64, writes: &DeploymentWrites) -> Result<Checked<i64>> {
        deploy::apply(self, org, seen, writes).await
    }

    async fn dag_version(&self, org: &str, id: DagVersionId) -> Result<Option<DagVersionRow>> {
        let id = uuid(id.as_u128());
        let found = self.list("read a DAG version", sql::DAG_VERSION_GET, &[&id, &org], rows::dag_version).await?;
        Ok(found.into_iter().next())
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<JobRow>> {
        self.list("read jobs", sql::DAG_JOBS_OF_IDS, &[&numbers(ids)], rows::job).await
    }

    async fn busy_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>> {
        let read = |row: &Row| Ok(JobId(row.try_get(0)?));
        self.list("find jobs with tasks", sql::DAG_JOBS_BUSY, &[&numbers(jobs)], read).await
    }

    async fn count_tasks(&self, org: &str, jobs: &[JobId], tag: (&str, &str)) -> Result<TaskCounts> {
        let workspaces: Vec<String> = jobs.iter().map(|job| job.workspace()).collect();
        let pattern = codec::tag_pattern(tag.0, tag.1);
        let count = |row: &Row, n: usize| Ok(row.try_get::<_, i64>(n)?.unsigned_abs());
        let read =
            |row: &Row| Ok(TaskCounts { total: count(row, 0)?, succeeded: count(row, 1)?, failed: count(row, 2)? });
        let found = self.list("count tasks", sql::TASKS_COUNTED, &[&org, &workspaces, &pattern], read).await?;
        self.faults.after("count tasks")?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    async fn job_counts(&self, ids: &[JobId]) -> Result<Vec<Counts>> {
        let read = |row: &Row| Ok((row.try_get::<_, i64>(0)?, super::rows::counts(row, 1)?));
        let found = self.list("count tasks of jobs", sql::DAG_JOBS_COUNTS, &[&numbers(ids)], read).await?;
        let found: std::collections::HashMap<i64, Counts> = found.into_iter().collect();
        Ok(ids.iter().map(|id| found.get(&id.0).copied().unwrap_or_default()).collect())
    }

    async fn recorded(&self, events: &[(VersionId, Position)]) -> Result<Vec<Option<DataEvent>>> {
        let versions: Vec<Uuid> = events.iter().map(|(version, _)| uuid(version.as_u128())).collect();
        let positions: Vec<String> = events.iter().map(|(_, position)| position.text()).collect();
        let keys: Vec<Option<&str>> =
            events.iter().map(|(_, position)| position.partition().map(|partition| &*partition.key)).collect();
        let params: [&(dyn ToSql + Sync); 3] = [&versions, &positions, &keys];
        let found = self.list("find events", sql::DATA_EVENTS_RECORDED, &params, rows::recorded).await?;
        let mut recorded: Vec<Option<DataEvent>> = vec![None; events.len()];
        for (place, event) in found {
            let place = usize::try_from(place - 1).ok();
            if let Some(slot) = place.and_then(|place| recorded.get_mut(place)) {
                *slot = Some(event);
            }
        }
        Ok(recorded)
    }

    async fn unrouted(&self, except: &[Arc<str>], after: i64, limit: usize) -> Result<Vec<DataEvent>> {
        let params: [&(dyn ToSql + Sync); 3] = [&texts(except), &after, &limited(limit)];
        self.list("find unrouted events", sql::DATA_EVENTS_UNROUTED, &params, rows::event).await
    }

    async fn routed(&self, org: &str, seen: i64, events: &[Routed]) -> Result<Checked<()>> {
        let (deal, mut answers) = match self.with_deployment("mark events as routed", org, seen).await? {
            Ok(begun) => begun,
            Err(moved) => return Ok(Err(moved)),
        };
        let now = Time(answers.now(self)?);
        let mut events: Vec<&Routed> = events.iter().collect();
        events.sort_unstable_by_key(|routed| routed.event);
        events.dedup_by_key(|routed| routed.event);
        let ids: Vec<i64> = events.iter().map(|routed| routed.event).collect();
        let reasons: Vec<Option<&str>> = events.iter().map(|routed| routed.why_not).collect();
        let params: Params<'_> = vec![&org, &ids, &reasons, &now];
        deal.commit(vec![Write("mark events", sql::DATA_EVENTS_ROUTED, params)]).await?;
        Ok(Ok(()))
    }

    async fn record(&self, org: &str, dataset: DatasetId, version: VersionId, position: &Position) -> Result<()> {
        let event = NewEvent { dataset, version, position: position.clone() };
        self.write_data("record an event", &DataWrites::event(org, &event), None).await.map(drop)
    }

    async fn job_state(&self, job: JobId, versions: &[VersionId]) -> Result<JobState> {
        let operation = "read the state of a job";
        let states = self.list(operation, sql::OPERATOR_STATE_GET, &[&job.0], |row| text(row, 0)).await?;
        let read = |row: &Row| Ok((rows::version_id(row, 0)?, row.try_get(1)?));
        let params: [&(dyn ToSql + Sync); 2] = [&job.0, &uuids(versions)];
        let cursors = self.list(operation, sql::EDGE_CURSORS_OF_JOB, &params, read).await?;
        Ok(JobState { operator_state: states.into_iter().next(), cursors })
    }

    async fn generations(&self, versions: &[VersionId]) -> Result<Vec<GenerationRow>> {
        self.list("read generations", sql::GENERATIONS_GET, &[&uuids(versions)], rows::generation).await
    }

    async fn partitions(&self, version: VersionId, after: Option<&str>, limit: usize) -> Result<Page<PartitionRow>> {
        let limit = limit.min(DATA_PAGE);
        let params: [&(dyn ToSql + Sync); 3] =
            [&uuid(version.as_u128()), &after.unwrap_or_default(), &(limit as i64 + 1)];
        let found = self.list("list partitions", sql::PARTITIONS_LIST, &params, rows::partition).await?;
        Ok(page(found, limit, |row| row.key.to_string()))
    }

    async fn partition(&self, version: VersionId, key: &str) -> Result<Option<PartitionRow>> {
        let params: [&(dyn ToSql + Sync); 2] = [&uuid(version.as_u128()), &key];
        let found = self.list("read a partition", sql::PARTITION_GET, &params, rows::partition).await?;
        Ok(found.into_iter().next())
    }

    async fn cursors(&self, jobs: &[JobId]) -> Result<Vec<(JobId, VersionId, i64)>> {
        let read = |row: &Row| Ok((JobId(row.try_get(0)?), rows::version_id(row, 1)?, row.try_get(2)?));
        self.list("read cursors", sql::EDGE_CURSORS_OF_JOBS, &[&numbers(jobs)], read).await
    }

    async fn unread(&self, job: JobId, version: VersionId, after: Option<&str>, limit: usize) -> Result<Vec<Unread>> {
        let params: [&(dyn ToSql + Sync); 4] =
            [&job.0, &uuid(version.as_u128()), &after.unwrap_or_default(), &limited(limit)];
        self.list("find unread partitions", sql::PARTITIONS_UNREAD, &params, rows::unread).await
    }

    async fn invalidate(&self, org: &str, new: &NewInvalidation) -> Result<InvalidationRow> {
        let (operation, id) = ("invalidate data", uuid(new.id.as_u128()));
        let ask = Write("read an invalidation", sql::INVALIDATION_GET, vec![&id]);
        let row = self.write_data(operation, &DataWrites::invalidation(org, new), Some(ask)).await?;
        let row = row.as_ref().map(rows::invalidation).transpose();
        row.map_err(|error| super::failed(operation, error))?.ok_or(StoreError::Contention)
    }

    async fn open_invalidations(&self, except: &[Arc<str>], limit: usize) -> Result<Vec<InvalidationRow>> {
        let params: [&(dyn ToSql + Sync); 2] = [&texts(except), &limited(limit)];
        let open = self.list("find invalidations", sql::INVALIDATIONS_OPEN, &params, rows::invalidation).await?;
        self.faults.after("find invalidations")?;
        Ok(open)
    }

    async fn invalidation_routed(
        &self,
        org: &str,
        seen: i64,
        id: InvalidationId,
        jobs: &[JobId],
    ) -> Result<Checked<()>> {
        let deal = match self.with_deployment("mark an invalidation as routed", org, seen).await? {
            Ok((deal, _)) => deal,
            Err(moved) => return Ok(Err(moved)),
        };
        let jobs: Vec<i64> = jobs.iter().map(|job| job.0).collect::<BTreeSet<_>>().into_iter().collect();
        let id = uuid(id.as_u128());
        let params: Params<'_> = vec![&id, &org, &jobs];
        deal.commit(vec![Write("write dependents", sql::INVALIDATION_ROUTED, params)]).await?;
        Ok(Ok(()))
    }

    async fn retire(&self, org: &str, seen: i64, jobs: &[JobId], versions: &[VersionId]) -> Result<Checked<u64>> {
        deploy::retire(self, org, seen, &numbers(jobs), &uuids(versions)).await
    }

    async fn cron_slots(&self, org: &str) -> Result<Vec<CronSlot>> {
        let read = |row: &Row| {
            let (dag, job, schedule) = (text(row, 0)?, text(row, 1)?, text(row, 2)?);
            Ok(CronSlot { dag, job, schedule, next_ms: row.try_get(3)? })
        };
        self.list("read slots", sql::CRON_SLOTS_OF_ORG, &[&org], read).await
    }

    async fn save_cron_slots(
        &self,
        org: &str,
        seen: i64,
        slots: &[CronSlot],
        gone: &[(Arc<str>, Arc<str>)],
    ) -> Result<Checked<()>> {
        let deal = match self.with_deployment("write slots", org, seen).await? {
            Ok((deal, _)) => deal,
            Err(moved) => return Ok(Err(moved)),
        };
        let gone_dags: Vec<&str> = gone.iter().map(|(dag, _)| &**dag).collect();
        let gone_jobs: Vec<&str> = gone.iter().map(|(_, job)| &**job).collect();
        let dags: Vec<&str> = slots.iter().map(|slot| &*slot.dag).collect();
        let jobs: Vec<&str> = slots.iter().map(|slot| &*slot.job).collect();
        let schedules: Vec<&str> = slots.iter().map(|slot| &*slot.schedule).collect();
        let times: Vec<i64> = slots.iter().map(|slot| slot.next_ms).collect();
        let writes = vec![
            Write("forget slots", sql::CRON_SLOTS_DELETE, vec![&org, &gone_dags, &gone_jobs]),
            Write("write slots", sql::CRON_SLOTS_PUT, vec![&org, &dags, &jobs, &schedules, &times]),
        ];
        deal.commit(writes).await?;
        Ok(Ok(()))
    }

    async fn webhooks(&self, paths: &[Arc<str>]) -> Result<Vec<WebhookRow>> {
        let read = |row: &Row| Ok(WebhookRow { path: text(row, 0)?, org: text(row, 1)?, dag: text(row, 2)? });
        self.list("find webhooks", sql::WEBHOOK_PATHS_GET, &[&texts(paths)], read).await
    }

    async fn name_delivery(&self, digest: [u8; 32], name: &str, kept_ms: DurationMs) -> Result<Arc<str>> {
        self.outbox_write("name a delivery", async |conn, now| {
            query(conn, sql::WEBHOOK_SIGNATURES_PRUNE, &[&Time(now), &DELIVERIES_PRUNED]).await?;
            let put: [&(dyn ToSql + Sync); 3] = [&&digest[..], &name, &Time(now.plus(kept_ms))];
            let rows = query(conn, sql::WEBHOOK_SIGNATURES_PUT, &put).await?;
            rows.first().map_or_else(|| Ok(name.into()), |row| text(row, 0))
        })
        .await
    }
}
