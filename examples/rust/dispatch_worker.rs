//! A worker for jobs of DAGs: it claims tasks by their ids.
//!
//! ```text
//! tenure up &
//! tenure dag apply examples/dags/ranges.yaml
//! TENURE_TOKEN=... cargo run -p tenure-client --example dispatch_worker
//! tenure dag trigger ranges fetch --input '{"start":1000,"end":1999}'
//! tenure dataset show transfers
//! ```

use serde::Deserialize;
use tenure_client::TaskError;
use tenure_client::dispatch::{Output, Task, Worker};

/// What the manual source is fired with.
#[derive(Debug, Deserialize)]
pub struct Wanted {
    pub start: u64,
    pub end: u64,
}

pub async fn fetch(task: Task) -> Result<Output, TaskError> {
    let Wanted { start, end } = task.work_payload()?;
    let staging = task.writer(0).await?; // the staging folder of output 0
    tokio::fs::write(staging.path().join(format!("logs_{start}_{end}.parquet")), b"PAR1").await?;
    staging.finish().await?; // writes `_SUCCESS`
    Ok(Output::new(0, (start, end)).rows(end - start + 1))
}

pub async fn decode(task: Task) -> Result<Output, TaskError> {
    let key = task.partition("raw_logs")?.partition_key.clone();
    let staging = task.writer(0).await?;
    let mut files = tokio::fs::read_dir(task.input_folder("raw_logs")?).await?;
    while let Some(file) = files.next_entry().await? {
        if task.cancellation().is_cancelled() {
            return Err(TaskError::cancelled("between two files"));
        }
        if file.file_name().to_string_lossy().ends_with(".parquet") {
            tokio::fs::copy(file.path(), staging.path().join(file.file_name())).await?;
        }
    }
    staging.finish().await?;
    Ok(Output::new(0, key))
}

/// The worker; `main` only says where.
pub fn worker(server: &str, token: &str) -> Worker {
    Worker::new(server)
        .shared_token(token)
        .concurrency(4)
        .operator("fetch_range", fetch)
        .operator("decode_logs", decode)
        // It has nothing to write yet.
        .operator("summarise", async |task: Task| {
            Ok(Output::new(0, task.partition("transfers")?.partition_key.as_str()))
        })
}

#[allow(dead_code, reason = "tests run the worker without it")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("TENURE_URL").unwrap_or_else(|_| "http://127.0.0.1:7423".to_owned());
    let token = std::env::var("TENURE_TOKEN")?;
    worker(&server, &token).run_until(tenure_client::stop_signal()).await?;
    Ok(())
}
