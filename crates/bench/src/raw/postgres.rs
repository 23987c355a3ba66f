//! The raw limit of Postgres: several clients, prepared statements, rows taken with `SKIP LOCKED`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::CLIENTS;
use crate::load::{self, Pace};
use crate::progress::Watch;
use crate::stand::connect;

const TABLE: &str = "\
DROP TABLE IF EXISTS tenure_bench_raw;
CREATE TABLE tenure_bench_raw (
    seq bigint PRIMARY KEY, queue int NOT NULL, priority smallint NOT NULL, state smallint NOT NULL,
    payload text NOT NULL, worker text, token bytea, expires_at timestamptz, result text, finished_at timestamptz
);
CREATE INDEX ON tenure_bench_raw (queue, priority, seq) WHERE state = 0;";

const FILL: &str = "\
INSERT INTO tenure_bench_raw (seq, queue, priority, state, payload)
SELECT i, 1, 5, 0, '{\"n\":' || i || '}' FROM generate_series(1, $1::bigint) i";

const CLAIM: &str = "\
UPDATE tenure_bench_raw SET state = 1, worker = $1, token = $2, expires_at = now() + interval '60 s'
WHERE seq IN (SELECT seq FROM tenure_bench_raw WHERE queue = 1 AND state = 0 ORDER BY priority, seq LIMIT $3
              FOR UPDATE SKIP LOCKED)
RETURNING seq, payload";

const COMPLETE: &str = "\
UPDATE tenure_bench_raw SET state = 2, result = $1, finished_at = now() WHERE seq = ANY($2) AND token = $3";

/// Claims and completes `batch` rows a transaction until none is left or the time is up.
pub async fn run(url: &str, rows: usize, batch: usize, progress: &Watch) -> Result<Pace> {
    let keeper = connect(url).await?;
    keeper.batch_execute(TABLE).await?;
    keeper.execute(FILL, &[&i64::try_from(rows)?]).await?;
    keeper.batch_execute("VACUUM ANALYZE tenure_bench_raw").await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect(url).await?);
    }
    let done = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut running = JoinSet::new();
    for client in clients {
        let (done, progress) = (Arc::clone(&done), Arc::clone(progress));
        running.spawn(async move { work(&client, batch, started, &done, &progress).await });
    }
    load::all(running).await?;
    let pace = Pace::of(done.load(Ordering::Relaxed), started.elapsed());
    keeper.batch_execute("DROP TABLE tenure_bench_raw").await?;
    Ok(pace)
}

async fn work(client: &Client, batch: usize, started: Instant, done: &AtomicUsize, progress: &Watch) -> Result<()> {
    let claim = client.prepare(CLAIM).await?;
    let complete = client.prepare(COMPLETE).await?;
    let token: &[u8] = &[7; 16];
    let limit = super::time_limit(batch);
    while started.elapsed() < limit {
        let claimed = client.query(&claim, &[&"worker", &token, &(batch as i64)]).await?;
        if claimed.is_empty() {
            break;
        }
        let rows: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
        let changed = client.execute(&complete, &[&"{\"ok\":true}", &rows, &token]).await?;
        ensure!(changed == rows.len() as u64, "a row was lost");
        done.fetch_add(rows.len(), Ordering::Relaxed);
        progress.advance(rows.len() as u64);
    }
    Ok(())
}
