//! A worker that work is pushed to, inside an HTTP service that does other things too.
//!
//! ```text
//! tenure serve --config tenure.yaml &     # with push.secrets: {etl: SECRET}
//! tenure queue create etl --push-url http://127.0.0.1:8080/dispatch --push-secret-ref etl
//! DISPATCH_SECRET=SECRET cargo run -p tenure-client --example push_worker
//! tenure task submit etl extract --payload '{"day":"2025-01-15"}'
//! ```

use axum::Router;
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tenure_client::callback::{Service, Worker};
use tenure_client::{TaskContext, TaskError, WorkerError};
use tokio::net::TcpListener;

#[derive(Debug, Deserialize)]
pub struct Order {
    pub day: String,
}

#[derive(Debug, Serialize)]
pub struct Extracted {
    pub day: String,
    pub rows: u32,
}

/// A handler is the same whether its work is pulled or pushed. This one blocks its thread, as much code does; heartbeats
/// come from another one.
pub async fn extract(task: TaskContext) -> Result<Extracted, TaskError> {
    let order: Order = task.payload()?;
    task.enter_phase("reading");
    task.report_progress(50, format!("reading {}", order.day));
    let context = task.clone();
    let rows = tokio::task::spawn_blocking(move || count_rows(&context)).await??;
    Ok(Extracted { day: order.day, rows })
}

fn count_rows(task: &TaskContext) -> Result<u32, TaskError> {
    let mut rows = 0;
    for _ in 0..10 {
        if task.cancellation().is_cancelled() {
            return Err(TaskError::cancelled("told to stop"));
        }
        rows += 1000;
    }
    Ok(rows)
}

/// The worker; `main` only says where.
pub fn service(control_plane: &str, secret: &str) -> Result<Service, WorkerError> {
    Worker::new()
        .callback_url(control_plane)
        .secret(secret)
        .operator("extract", extract)
        .on_ended(|ended| tracing::info!(task.id = ended.task_id, "done: {:?}", ended.reported))
        .start()
}

/// The route of the worker beside one of the service's own. Ends when `shutdown` does and all tasks are reported.
pub async fn serve(
    service: Service,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let app = Router::new().route("/healthz", get(|| async { "ok" })).merge(service.router());
    let draining = service.clone();
    let stop = async move {
        shutdown.await;
        if let Err(error) = draining.drain().await {
            tracing::error!(%error, "not all tasks were reported");
        }
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    Ok(())
}

#[allow(dead_code, reason = "tests run the service without it")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let control_plane = std::env::var("TENURE_URL").unwrap_or_else(|_| "http://127.0.0.1:7423".to_owned());
    let service = service(&control_plane, &std::env::var("DISPATCH_SECRET")?)?;
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    serve(service, listener, tenure_client::stop_signal()).await
}
