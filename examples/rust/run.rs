//! Tasks that depend on each other, submitted and followed as one.
//!
//! ```text
//! cargo run -p tenure-client --example run
//! ```

use serde::Deserialize;
use serde_json::json;
use tenure_client::run::{Run, RunSubmission};
use tenure_client::{Client, TaskContext, TaskError};

/// `load` waits for `extract`, and gets the rows that it returned.
pub fn daily(day: &str) -> Result<RunSubmission, serde_json::Error> {
    serde_json::from_value(json!({
        // The same key with the same content is the same run.
        "run_key": format!("daily-{day}"),
        "tasks": [
            {"key": "extract", "operator": "extract", "queue": "etl", "payload": {"day": day}},
            {"key": "load", "operator": "load", "queue": "etl", "depends_on": ["extract"],
             "payload": {"rows": {"$from": "extract", "path": "/rows"}}},
        ],
    }))
}

#[derive(Deserialize)]
struct Rows {
    rows: u32,
}

/// For a worker beside `extract`.
#[allow(dead_code, reason = "the worker has it, and this program only submits")]
pub async fn load(task: TaskContext) -> Result<String, TaskError> {
    let Rows { rows } = task.payload()?;
    Ok(format!("{rows} rows loaded"))
}

/// Submits the run and follows it to its end.
pub async fn submit(client: &Client, day: &str) -> Result<Run, Box<dyn std::error::Error>> {
    let submitted = client.submit_run(&daily(day)?).await?;
    let mut changes = client.watch_run(&submitted.run_id);
    let mut last = submitted;
    while let Some(run) = changes.next().await {
        last = run?;
        tracing::info!("{}: {} of {} tasks are done", last.state, last.counts.succeeded, last.counts.total);
    }
    Ok(last)
}

#[allow(dead_code, clippy::print_stdout, reason = "tests run it without this; it is a program")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("TENURE_URL").unwrap_or_else(|_| "http://127.0.0.1:7423".to_owned());
    let run = submit(&Client::new(server)?, "2025-01-15").await?;
    for task in &run.tasks {
        println!("{:<10} {}", task.key, task.state);
    }
    println!("{}", run.state);
    Ok(())
}
