//! Partitions that were made and read long ago, written straight into the store: making a million of them with workers
//! would take longer than everything that is measured with them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rusqlite::{Connection, params};

use crate::stand::{Place, connect};

/// Rows of one transaction: the control plane writes in between.
const PAGE: usize = 20_000;
const BUSY: Duration = Duration::from_secs(30);

/// An output of a job whose partitions are all read.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    pub dag: &'a str,
    pub dataset: u128,
    pub version: u128,
}

const SQLITE_PARTITIONS: &str = "\
WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
INSERT INTO dataset_partitions (version_id, key, generation, location, materialized_at)
SELECT ?3, 'done-' || i, 0, 'none:', ?4 FROM n";
const SQLITE_EVENTS: &str = "\
WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
INSERT INTO dataset_events (org, dataset_id, version_id, position, generation, partition_key, recorded_at, routed_at)
SELECT 'default', ?5, ?3, 'done-' || i, 0, 'done-' || i, ?4, ?4 FROM n";
const SQLITE_READ: &str = "\
WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
INSERT INTO edge_partitions (job_id, version_id, key, generation)
SELECT j.job_id, ?3, 'done-' || i, 0 FROM n, dag_jobs j WHERE j.dag = ?4 AND j.name <> 'source'";

const POSTGRES_PARTITIONS: &str = "\
INSERT INTO dataset_partitions (version_id, key, generation, location, materialized_at)
SELECT $3::text::uuid, 'done-' || i, 0, 'none:', now() FROM generate_series($1::bigint, $2) i";
const POSTGRES_EVENTS: &str = "\
INSERT INTO dataset_events (org, dataset_id, version_id, position, generation, partition_key, recorded_at, routed_at)
SELECT 'default', $4::text::uuid, $3::text::uuid, 'done-' || i, 0, 'done-' || i, now(), now()
FROM generate_series($1::bigint, $2) i";
const POSTGRES_READ: &str = "\
INSERT INTO edge_partitions (job_id, version_id, key, generation)
SELECT j.job_id, $3::text::uuid, 'done-' || i, 0 FROM generate_series($1::bigint, $2) i, dag_jobs j
WHERE j.dag = $4 AND j.name <> 'source'";

/// Adds `partitions` to an output, each already read by every other job of its DAG.
pub async fn write(place: &Place, output: Output<'_>, partitions: usize) -> Result<()> {
    let pages = (0..partitions).step_by(PAGE).map(|first| (first as i64 + 1, (first + PAGE).min(partitions) as i64));
    match place.postgres_url() {
        None => {
            let db = Connection::open(place.sqlite_file()).context("the store could not be opened")?;
            db.busy_timeout(BUSY)?;
            let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
            let (dataset, version) = (output.dataset.to_be_bytes(), output.version.to_be_bytes());
            for (first, last) in pages {
                db.execute(SQLITE_PARTITIONS, params![first, last, version, now])?;
                db.execute(SQLITE_EVENTS, params![first, last, version, now, dataset])?;
                db.execute(SQLITE_READ, params![first, last, version, output.dag])?;
            }
            db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        }
        Some(url) => {
            let client = connect(url).await?;
            let (dataset, version) = (format!("{:032x}", output.dataset), format!("{:032x}", output.version));
            for (first, last) in pages {
                client.execute(POSTGRES_PARTITIONS, &[&first, &last, &version]).await?;
                client.execute(POSTGRES_EVENTS, &[&first, &last, &version, &dataset]).await?;
                client.execute(POSTGRES_READ, &[&first, &last, &version, &output.dag]).await?;
            }
            client.batch_execute("ANALYZE dataset_partitions, dataset_events, edge_partitions").await?;
        }
    }
    Ok(())
}
