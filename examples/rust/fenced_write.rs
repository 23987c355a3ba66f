//! A handler whose rows cannot be overwritten by an attempt that was taken for dead.
//!
//! ```text
//! tenure up &
//! DATABASE_URL=postgres://... TENURE_TOKEN=... cargo run -p tenure-client --example fenced_write
//! tenure task submit etl report --payload '{"day":"2025-01-15","rows":10}'
//! ```

use std::sync::Arc;

use serde::Deserialize;
use tenure_client::fence::sql;
use tenure_client::{TaskContext, TaskError, Worker};
use tokio_postgres::NoTls;

#[derive(Deserialize)]
struct Report {
    day: String,
    rows: i64,
}

/// The row belongs to the task. The comparison with the fence is part of the write: asking first and writing then would
/// leave a gap.
pub async fn report(task: TaskContext, db: Arc<tokio_postgres::Client>) -> Result<(), TaskError> {
    let report: Report = task.payload()?;
    let fence = task.guard();
    let written = db
        .execute(
            "INSERT INTO report (task, fence, day, rows) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (task) DO UPDATE SET fence = excluded.fence, rows = excluded.rows \
             WHERE report.fence <= excluded.fence",
            &[&fence.task_id(), &fence.as_i64(), &report.day, &report.rows],
        )
        .await?;
    sql::written(&fence, written)?;
    Ok(())
}

/// A connection, and the table in it.
pub async fn database(url: &str) -> Result<Arc<tokio_postgres::Client>, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let columns = "task TEXT PRIMARY KEY, fence BIGINT NOT NULL, day TEXT NOT NULL, rows BIGINT NOT NULL";
    client.batch_execute(&format!("CREATE TABLE IF NOT EXISTS report ({columns})")).await?;
    Ok(Arc::new(client))
}

/// The worker; `main` only says where.
pub fn worker(server: &str, token: &str, db: Arc<tokio_postgres::Client>) -> Worker {
    Worker::new(server).token(token).queues(["etl"]).operator("report", move |task| report(task, Arc::clone(&db)))
}

#[allow(dead_code, reason = "tests run the worker without it")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("TENURE_URL").unwrap_or_else(|_| "http://127.0.0.1:7423".to_owned());
    let db = database(&std::env::var("DATABASE_URL")?).await?;
    let worker = worker(&server, &std::env::var("TENURE_TOKEN")?, db);
    worker.run_until(tenure_client::stop_signal()).await?;
    Ok(())
}
