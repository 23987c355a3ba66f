//! A worker that asks for its work.
//!
//! ```text
//! tenure up &
//! TENURE_TOKEN=... cargo run -p tenure-client --example pull_worker
//! tenure task submit etl extract --payload '{"day":"2025-01-15"}'
//! ```

use serde::{Deserialize, Serialize};
use tenure_client::{TaskContext, TaskError, Worker};

#[derive(Debug, Deserialize)]
pub struct Order {
    pub day: String,
}

#[derive(Debug, Serialize)]
pub struct Extracted {
    pub day: String,
    pub rows: u32,
}

const PARTS: u32 = 10;

/// Goes on where the attempt before it was, says how far it is, and stops when it is told to.
pub async fn extract(task: TaskContext) -> Result<Extracted, TaskError> {
    let order: Order = task.payload()?;
    let done: u32 = task.checkpoint()?.unwrap_or_default();
    for part in done..PARTS {
        if task.cancellation().is_cancelled() {
            return Err(TaskError::cancelled(format!("after {part} of {PARTS} parts")));
        }
        // The work of a part would be here.
        tokio::task::yield_now().await;
        task.save_checkpoint(&(part + 1))?;
        task.report_progress(u8::try_from((part + 1) * 100 / PARTS)?, format!("part {} of {PARTS}", part + 1));
    }
    Ok(Extracted { day: order.day, rows: PARTS * 1000 })
}

/// The worker; `main` only says where.
pub fn worker(server: &str, token: &str) -> Worker {
    Worker::new(server).token(token).queues(["etl"]).concurrency(4).operator("extract", extract)
}

#[allow(dead_code, reason = "tests run the worker without it")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("TENURE_URL").unwrap_or_else(|_| "http://127.0.0.1:7423".to_owned());
    let token = std::env::var("TENURE_TOKEN")?;
    worker(&server, &token).run_until(tenure_client::stop_signal()).await?;
    Ok(())
}
