//! What is kept about DAGs and datasets.

mod rows;
pub mod save;

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tenure_core::batch::Counts;
use tenure_core::dag::data::{NewEvent, NewInvalidation, Position};
use tenure_core::dag::{DagVersionId, DatasetId, InvalidationId, JobId, VersionId};
use tenure_core::queue::{Queue, QueueId, Transport};
use tenure_core::time::DurationMs;

use super::sandboxes::{Tx, all, one, run};
use super::save::each;
use super::{Sqlite, sql};
use crate::codec;
use crate::dags::plan::DataWrites;
use crate::dags::{
    CronSlot, DATA_PAGE, DELIVERIES_PRUNED, DagStore, DagVersionRow, DataEvent, DeploymentRow, DeploymentWrites,
    GenerationRow, InvalidationRow, JobRow, JobState, Moved, NewJob, PartitionRow, Routed, TaskCounts, Unread,
    WebhookRow,
};
use crate::error::StoreError;
use crate::identity::page;
use crate::model::Page;
use crate::store::Lane;

type Result<T> = std::result::Result<T, StoreError>;
type Checked<T> = std::result::Result<T, Moved>;

fn bytes(version: VersionId) -> [u8; 16] {
    version.as_u128().to_be_bytes()
}

/// As a list for `json_each`.
fn texts(texts: &[Arc<str>]) -> String {
    crate::sandboxes::plan::json(&texts.iter().map(|text| &**text).collect::<Vec<_>>())
}

fn limited(limit: usize) -> i64 {
    limit.min(DATA_PAGE) as i64
}

/// Whether the deployment is still the one that the caller has read.
fn is_current(tx: &Tx<'_>, org: &str, seen: i64) -> Result<bool> {
    let seq = tx.step("read a deployment", |conn| one(conn, sql::DEPLOYMENT_SEQ, [org], |row| row.get::<_, i64>(0)))?;
    Ok(seq.unwrap_or(0) == seen)
}

fn apply(tx: &Tx<'_>, org: &str, seen: i64, writes: &DeploymentWrites, transport: Transport) -> Result<Checked<i64>> {
    let now = tx.now().as_millis();
    // Before anything is written: what comes back from here is committed.
    for (path, _) in writes.webhooks.iter().flatten() {
        let owner =
            tx.step("find webhooks", |conn| one(conn, sql::WEBHOOK_PATHS_GET, [path], |row| row.get::<_, String>(1)))?;
        if owner.is_some_and(|owner| owner != org) {
            return Ok(Err(Moved));
        }
    }
    let changed = tx.step("write a deployment", |conn| match seen {
        0 => one(conn, sql::DEPLOYMENT_INSERT, params![org, writes.document, now], |row| row.get(0)),
        _ => one(conn, sql::DEPLOYMENT_UPDATE, params![org, seen, writes.document, now], |row| row.get(0)),
    })?;
    let Some(seq) = changed else { return Ok(Err(Moved)) };
    if let Some(webhooks) = &writes.webhooks {
        tx.step("write webhook paths", |conn| put_webhooks(conn, org, webhooks))?;
    }
    tx.step("write DAG versions", |conn| {
        for version in &writes.versions {
            let id = version.id.as_u128().to_be_bytes();
            run(conn, sql::DAG_VERSIONS_INSERT, params![id, org, version.dag, version.number, version.yaml, now])?;
        }
        Ok(())
    })?;
    tx.step("write jobs", |conn| writes.jobs.iter().try_for_each(|job| insert_job(conn, org, job, transport)))?;
    tx.step("write generations", |conn| {
        for new in &writes.generations {
            let dataset = new.dataset.as_u128().to_be_bytes();
            run(conn, sql::GENERATIONS_INSERT, params![bytes(new.version), dataset, org, now])?;
        }
        Ok(())
    })?;
    tx.step("forget DAG versions", |conn| {
        for id in &writes.forgotten {
            run(conn, sql::DAG_VERSIONS_DELETE, params![org, id.as_u128().to_be_bytes()])?;
        }
        Ok(())
    })?;
    tx.step("remove a bundle", |conn| match &writes.removed_bundle {
        Some(id) => run(conn, sql::BUNDLES_DELETE, params![org, id.as_bytes()]),
        None => Ok(0),
    })?;
    tx.step("hold queues", |conn| {
        for (job, held) in &writes.held {
            run(conn, sql::QUEUES_SET_HELD, params![org, job.0, if *held { "true" } else { "false" }])?;
        }
        Ok(())
    })?;
    Ok(Ok(seq))
}

fn put_webhooks(conn: &Connection, org: &str, webhooks: &[(Arc<str>, Arc<str>)]) -> rusqlite::Result<()> {
    let paths: Vec<&str> = webhooks.iter().map(|(path, _)| &**path).collect();
    run(conn, sql::WEBHOOK_PATHS_DELETE, params![org, crate::sandboxes::plan::json(&paths)])?;
    for (path, dag) in webhooks {
        one(conn, sql::WEBHOOK_PATHS_PUT, params![path, org, dag], |_| Ok(()))?;
    }
    Ok(())
}

fn insert_job(conn: &Connection, org: &str, job: &NewJob, transport: Transport) -> rusqlite::Result<()> {
    let queue = Queue { settings: job.settings.clone(), ..Queue::new(QueueId(0), Arc::clone(&job.queue)) };
    let settings = &queue.settings;
    run(
        conn,
        sql::QUEUES_MAKE_FOR_JOBS,
        params![
            job.queue,
            org,
            codec::transport(if settings.push.is_some() { Transport::Embedded } else { transport }),
            settings.max_running,
            settings.rate.map(|rate| rate.per_second),
            settings.rate.map(|rate| rate.burst),
            settings.fairness_key.as_ref().map(ToString::to_string),
            settings.lease_ttl_ms,
            settings.heartbeat_ms,
            settings.no_dead_letter,
            codec::encode_push(&queue),
            settings.strict,
            codec::encode_dispatch(&queue),
        ],
    )?;
    run(conn, sql::DAG_JOBS_INSERT, params![job.id.0, org, job.dag, job.name, job.definition, job.queue])?;
    Ok(())
}

/// Writes rows about datasets in a transaction of their own.
pub fn write_data(tx: &Tx<'_>, writes: &DataWrites) -> Result<()> {
    let now = tx.now();
    save::STEPS.iter().try_for_each(|(name, save)| tx.step(name, |conn| save(conn, writes, now)))
}

fn mark_routed(conn: &Connection, org: &str, events: &[Routed], now: i64) -> rusqlite::Result<()> {
    each(conn, sql::DATA_EVENTS_ROUTED, events, |mark, routed| {
        mark.execute(params![org, routed.event, routed.why_not, now]).map(drop)
    })
}

fn mark_dependents(conn: &Connection, org: &str, id: InvalidationId, jobs: &[JobId]) -> rusqlite::Result<()> {
    let id = id.as_u128().to_be_bytes();
    if run(conn, sql::INVALIDATION_ROUTED, params![id, org, jobs.len() as i64])? > 0 {
        for job in jobs {
            run(conn, sql::DEPENDENTS_INSERT, params![id, job.0])?;
        }
    }
    Ok(())
}

/// Jobs and generations that are not in these lists.
fn unnamed(conn: &Connection, org: &str, jobs: &str, versions: &str) -> rusqlite::Result<(Vec<i64>, Vec<VersionId>)> {
    let limit = DATA_PAGE as i64;
    Ok((
        all(conn, sql::DAG_JOBS_UNNAMED, params![org, jobs, limit], |row| row.get(0))?,
        all(conn, sql::GENERATIONS_UNNAMED, params![org, versions, limit], |row| rows::version_id(row, 0))?,
    ))
}

fn retire(tx: &Tx<'_>, org: &str, jobs: &str, versions: &str) -> Result<u64> {
    let (gone_jobs, gone_versions) =
        tx.step("find what no deployment names", |conn| unnamed(conn, org, jobs, versions))?;
    tx.step("remove jobs", |conn| {
        for statement in [sql::EDGE_CURSORS_DELETE, sql::EDGE_PARTITIONS_DELETE, sql::DEPENDENTS_DELETE] {
            let mut left = DATA_PAGE;
            for job in &gone_jobs {
                left = left.saturating_sub(run(conn, statement, params![job, left as i64])?);
            }
        }
        for job in &gone_jobs {
            run(conn, sql::OPERATOR_STATE_DELETE, [job])?;
            if let Some(queue) = one(conn, sql::DAG_JOBS_DELETE, [job], |row| row.get::<_, i32>(0))? {
                run(conn, sql::COUNTS_DELETE, [queue])?;
                run(conn, sql::QUEUE_DELETE, [queue])?;
            }
        }
        Ok(())
    })?;
    tx.step("remove generations", |conn| {
        for statement in [
            sql::DEPENDENTS_DELETE_OF_VERSIONS,
            sql::INVALIDATIONS_DELETE,
            sql::DATA_EVENTS_DELETE,
            sql::PARTITIONS_DELETE,
            sql::ARTIFACTS_DELETE,
        ] {
            // Dependents are counted by their invalidations.
            let counted = statement != sql::DEPENDENTS_DELETE_OF_VERSIONS;
            let mut left = DATA_PAGE;
            for version in &gone_versions {
                let removed = run(conn, statement, params![bytes(*version), left as i64])?;
                left = left.saturating_sub(if counted { removed } else { 0 });
            }
        }
        gone_versions.iter().try_for_each(|version| run(conn, sql::GENERATIONS_DELETE, [bytes(*version)]).map(drop))
    })?;
    let (jobs, versions) = tx.step("count what is left", |conn| unnamed(conn, org, jobs, versions))?;
    Ok((jobs.len() + versions.len()) as u64)
}

#[async_trait]
impl DagStore for Sqlite {
    async fn deployment(&self, org: &str) -> Result<DeploymentRow> {
        let org: Arc<str> = org.into();
        self.read("read a deployment", move |tx| {
            let found = one(tx, sql::DEPLOYMENT_GET, [&org], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let (seq, document) = found.unwrap_or((0, "".into()));
            Ok(DeploymentRow { org, seq, document })
        })
        .await
    }

    async fn deployment_newer(&self, org: &str, seen: i64) -> Result<Option<DeploymentRow>> {
        let org: Arc<str> = org.into();
        self.read("read a deployment", move |tx| {
            one(tx, sql::DEPLOYMENT_NEWER, params![org, seen], |row| {
                Ok(DeploymentRow { org: Arc::clone(&org), seq: row.get(0)?, document: row.get(1)? })
            })
        })
        .await
    }

    async fn deployments(&self) -> Result<Vec<(Arc<str>, i64)>> {
        self.read("list deployments", |tx| all(tx, sql::DEPLOYMENTS_LIST, [], |row| Ok((row.get(0)?, row.get(1)?))))
            .await
    }

    async fn apply_deployment(&self, org: &str, seen: i64, writes: &DeploymentWrites) -> Result<Checked<i64>> {
        let (org, writes, transport) = (org.to_owned(), writes.clone(), self.transport.get());
        self.transact_queues("change a deployment", move |tx| apply(tx, &org, seen, &writes, transport)).await
    }

    async fn dag_version(&self, org: &str, id: DagVersionId) -> Result<Option<DagVersionRow>> {
        let org = org.to_owned();
        self.read("read a DAG version", move |tx| {
            one(tx, sql::DAG_VERSION_GET, params![id.as_u128().to_be_bytes(), org], rows::dag_version)
        })
        .await
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<JobRow>> {
        let ids = ids.to_vec();
        self.read("read jobs", move |tx| {
            let found = ids.iter().map(|id| one(tx, sql::DAG_JOBS_OF_IDS, [id.0], rows::job));
            Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
        .await
    }

    async fn busy_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>> {
        let jobs = jobs.to_vec();
        self.read("find jobs with tasks", move |tx| {
            let found = jobs.iter().map(|job| one(tx, sql::DAG_JOBS_BUSY, [job.0], |row| row.get(0).map(JobId)));
            Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
        .await
    }

    async fn count_tasks(&self, org: &str, jobs: &[JobId], tag: (&str, &str)) -> Result<TaskCounts> {
        let (org, jobs, pattern) = (org.to_owned(), jobs.to_vec(), codec::tag_pattern(tag.0, tag.1));
        self.read("count tasks", move |tx| {
            let mut counts = TaskCounts::default();
            for job in &jobs {
                let read = |row: &rusqlite::Row<'_>| {
                    let count = |n: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(n)?.unsigned_abs());
                    Ok((count(0)?, count(1)?, count(2)?))
                };
                let found = one(tx, sql::TASKS_COUNTED, params![org, job.workspace(), pattern], read)?;
                let (total, succeeded, failed) = found.unwrap_or_default();
                counts.total += total;
                counts.succeeded += succeeded;
                counts.failed += failed;
            }
            Ok(counts)
        })
        .await
    }

    async fn job_counts(&self, ids: &[JobId]) -> Result<Vec<Counts>> {
        let ids = ids.to_vec();
        self.read("count tasks of jobs", move |tx| {
            let found = ids.iter().map(|id| one(tx, sql::DAG_JOBS_COUNTS, [id.0], super::rows::counts));
            found.map(|counts| counts.map(Option::unwrap_or_default)).collect()
        })
        .await
    }

    async fn recorded(&self, events: &[(VersionId, Position)]) -> Result<Vec<Option<DataEvent>>> {
        let events = events.to_vec();
        self.read("find events", move |tx| {
            let found = events.iter().map(|(version, position)| {
                let key = position.partition().map(|partition| &*partition.key);
                one(tx, sql::DATA_EVENTS_RECORDED, params![bytes(*version), position.text(), key], rows::event)
            });
            found.collect()
        })
        .await
    }

    async fn unrouted(&self, except: &[Arc<str>], after: i64, limit: usize) -> Result<Vec<DataEvent>> {
        let params = (texts(except), after, limited(limit));
        self.read("find unrouted events", move |tx| all(tx, sql::DATA_EVENTS_UNROUTED, params, rows::event)).await
    }

    async fn routed(&self, org: &str, seen: i64, events: &[Routed]) -> Result<Checked<()>> {
        let (org, events) = (org.to_owned(), events.to_vec());
        self.transact(Lane::Work, "mark events as routed", move |tx| {
            if !is_current(tx, &org, seen)? {
                return Ok(Err(Moved));
            }
            let now = tx.now().as_millis();
            tx.step("mark events", |conn| mark_routed(conn, &org, &events, now)).map(Ok)
        })
        .await
    }

    async fn record(&self, org: &str, dataset: DatasetId, version: VersionId, position: &Position) -> Result<()> {
        let event = NewEvent { dataset, version, position: position.clone() };
        let writes = DataWrites::event(org, &event);
        self.transact(Lane::Work, "record an event", move |tx| write_data(tx, &writes)).await
    }

    async fn job_state(&self, job: JobId, versions: &[VersionId]) -> Result<JobState> {
        let versions = versions.to_vec();
        self.read("read the state of a job", move |tx| {
            let operator_state = one(tx, sql::OPERATOR_STATE_GET, [job.0], |row| row.get(0))?;
            let cursors = versions.iter().map(|version| {
                let value = one(tx, sql::EDGE_CURSORS_OF_JOB, params![job.0, bytes(*version)], |row| row.get(1))?;
                Ok(value.map(|value| (*version, value)))
            });
            let mut cursors: Vec<_> = cursors.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect();
            cursors.sort_unstable();
            cursors.dedup();
            Ok(JobState { operator_state, cursors })
        })
        .await
    }

    async fn generations(&self, versions: &[VersionId]) -> Result<Vec<GenerationRow>> {
        let versions = versions.to_vec();
        self.read("read generations", move |tx| {
            let found =
                versions.iter().map(|version| one(tx, sql::GENERATIONS_GET, [bytes(*version)], rows::generation));
            Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
        .await
    }

    async fn partitions(&self, version: VersionId, after: Option<&str>, limit: usize) -> Result<Page<PartitionRow>> {
        let (after, limit) = (after.unwrap_or_default().to_owned(), limit.min(DATA_PAGE));
        let params = (bytes(version), after, limit as i64 + 1);
        let found =
            self.read("list partitions", move |tx| all(tx, sql::PARTITIONS_LIST, params, rows::partition)).await?;
        Ok(page(found, limit, |row| row.key.to_string()))
    }

    async fn partition(&self, version: VersionId, key: &str) -> Result<Option<PartitionRow>> {
        let key = key.to_owned();
        self.read("read a partition", move |tx| {
            one(tx, sql::PARTITION_GET, params![bytes(version), key], rows::partition)
        })
        .await
    }

    async fn cursors(&self, jobs: &[JobId]) -> Result<Vec<(JobId, VersionId, i64)>> {
        let mut jobs = jobs.to_vec();
        jobs.sort_unstable();
        jobs.dedup();
        self.read("read cursors", move |tx| {
            let found = jobs.iter().map(|job| {
                all(tx, sql::EDGE_CURSORS_OF_JOBS, [job.0], |row| {
                    Ok((JobId(row.get(0)?), rows::version_id(row, 1)?, row.get(2)?))
                })
            });
            Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.concat())
        })
        .await
    }

    async fn unread(&self, job: JobId, version: VersionId, after: Option<&str>, limit: usize) -> Result<Vec<Unread>> {
        let params = (job.0, bytes(version), after.unwrap_or_default().to_owned(), limited(limit));
        self.read("find unread partitions", move |tx| all(tx, sql::PARTITIONS_UNREAD, params, rows::unread)).await
    }

    async fn invalidate(&self, org: &str, new: &NewInvalidation) -> Result<InvalidationRow> {
        let (writes, id) = (DataWrites::invalidation(org, new), new.id.as_u128().to_be_bytes());
        self.transact(Lane::Work, "invalidate data", move |tx| {
            write_data(tx, &writes)?;
            let found =
                tx.step("read an invalidation", |conn| one(conn, sql::INVALIDATION_GET, [id], rows::invalidation))?;
            found.ok_or(StoreError::Contention)
        })
        .await
    }

    async fn open_invalidations(&self, except: &[Arc<str>], limit: usize) -> Result<Vec<InvalidationRow>> {
        let params = (texts(except), limited(limit));
        self.read("find invalidations", move |tx| all(tx, sql::INVALIDATIONS_OPEN, params, rows::invalidation)).await
    }

    async fn invalidation_routed(
        &self,
        org: &str,
        seen: i64,
        id: InvalidationId,
        jobs: &[JobId],
    ) -> Result<Checked<()>> {
        let (org, jobs) = (org.to_owned(), jobs.to_vec());
        self.transact(Lane::Work, "mark an invalidation as routed", move |tx| {
            if !is_current(tx, &org, seen)? {
                return Ok(Err(Moved));
            }
            tx.step("write dependents", |conn| mark_dependents(conn, &org, id, &jobs)).map(Ok)
        })
        .await
    }

    async fn retire(&self, org: &str, seen: i64, jobs: &[JobId], versions: &[VersionId]) -> Result<Checked<u64>> {
        let jobs = crate::sandboxes::plan::json(&jobs.iter().map(|job| job.0).collect::<Vec<_>>());
        let versions: Vec<_> = versions.iter().map(|version| format!("{:032x}", version.as_u128())).collect();
        let (org, versions) = (org.to_owned(), crate::sandboxes::plan::json(&versions));
        self.transact_queues("retire jobs", move |tx| {
            if !is_current(tx, &org, seen)? {
                return Ok(Err(Moved));
            }
            retire(tx, &org, &jobs, &versions).map(Ok)
        })
        .await
    }

    async fn cron_slots(&self, org: &str) -> Result<Vec<CronSlot>> {
        let org = org.to_owned();
        self.read("read slots", move |tx| {
            all(tx, sql::CRON_SLOTS_OF_ORG, [org], |row| {
                Ok(CronSlot { dag: row.get(0)?, job: row.get(1)?, schedule: row.get(2)?, next_ms: row.get(3)? })
            })
        })
        .await
    }

    async fn save_cron_slots(
        &self,
        org: &str,
        seen: i64,
        slots: &[CronSlot],
        gone: &[(Arc<str>, Arc<str>)],
    ) -> Result<Checked<()>> {
        let (org, slots, gone) = (org.to_owned(), slots.to_vec(), gone.to_vec());
        self.transact(Lane::Work, "write slots", move |tx| {
            if !is_current(tx, &org, seen)? {
                return Ok(Err(Moved));
            }
            tx.step("write slots", |conn| {
                for (dag, job) in &gone {
                    run(conn, sql::CRON_SLOTS_DELETE, params![org, dag, job])?;
                }
                for slot in &slots {
                    run(conn, sql::CRON_SLOTS_PUT, params![org, slot.dag, slot.job, slot.schedule, slot.next_ms])?;
                }
                Ok(())
            })
            .map(Ok)
        })
        .await
    }

    async fn webhooks(&self, paths: &[Arc<str>]) -> Result<Vec<WebhookRow>> {
        let paths = paths.to_vec();
        self.read("find webhooks", move |tx| {
            let found = paths.iter().map(|path| {
                one(tx, sql::WEBHOOK_PATHS_GET, [path], |row| {
                    Ok(WebhookRow { path: row.get(0)?, org: row.get(1)?, dag: row.get(2)? })
                })
            });
            Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
        .await
    }

    async fn name_delivery(&self, digest: [u8; 32], name: &str, kept_ms: DurationMs) -> Result<Arc<str>> {
        let (now, name) = (self.clock.read_process().now, name.to_owned());
        self.write("name a delivery", move |tx| {
            run(tx, sql::WEBHOOK_SIGNATURES_PRUNE, params![now.as_millis(), DELIVERIES_PRUNED])?;
            let put = params![digest, name, now.plus(kept_ms).as_millis()];
            tx.prepare_cached(sql::WEBHOOK_SIGNATURES_PUT)?.query_row(put, |row| row.get(0))
        })
        .await
    }
}
