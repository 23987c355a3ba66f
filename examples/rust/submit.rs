//! Submits a task and waits for what comes of it.
//!
//! ```text
//! cargo run -p tenure-client --example submit
//! ```

use std::time::Duration;

use serde_json::json;
use tenure_client::{Client, ClientError, TaskSubmission, user::Task};

/// The key makes it safe to run this twice: the second time finds the task of the first.
pub async fn submit(client: &Client, day: &str) -> Result<Task, ClientError> {
    let task = TaskSubmission {
        queue: "etl".into(),
        operator: "extract".into(),
        payload: Some(json!({"day": day}).into()),
        idempotency_key: Some(format!("extract-{day}")),
        ..TaskSubmission::default()
    };
    let submitted = client.submit(&task).await?;
    client.wait(&submitted.task_id, Duration::from_secs(60)).await
}

#[allow(dead_code, clippy::print_stdout, reason = "tests run it without this; it is a program")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("TENURE_URL").unwrap_or_else(|_| "http://127.0.0.1:7423".to_owned());
    let mut client = Client::builder(server);
    if let Ok(key) = std::env::var("TENURE_API_KEY") {
        client = client.api_key(key);
    }
    let task = submit(&client.build()?, "2025-01-15").await?;
    println!("{} {}", task.state, task.result.unwrap_or_default().as_str());
    Ok(())
}
