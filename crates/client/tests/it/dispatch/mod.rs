//! The worker for jobs of DAGs, against a control plane that does what each test scripts.

mod queries;
mod reports;
mod rules;
mod stops;
mod tasks;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::dispatch::{Output, Position, Task, Worker};
use tenure_client::{CancelReason, TaskError, WorkerError, WorkerToken};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::support::dispatch::{DispatchPlane, claimed, id};
use crate::support::plane::Say;

const TOKEN: &str = "the-worker-token";

fn worker(plane: &DispatchPlane) -> Worker {
    Worker::new(&plane.url).shared_token(TOKEN).worker_id("w-1").operator("done", done)
}

async fn done(_task: Task) -> Result<Output, TaskError> {
    Ok(Output::new(0, "all"))
}

/// Runs a worker beside the test; dropping the sender shuts it down.
fn spawn(worker: Worker) -> (oneshot::Sender<()>, JoinHandle<Result<(), WorkerError>>) {
    let (stop, stopped) = oneshot::channel::<()>();
    (stop, tokio::spawn(worker.run_until(async { drop(stopped.await) })))
}

async fn end(run: JoinHandle<Result<(), WorkerError>>) -> Result<(), WorkerError> {
    tokio::time::timeout(Duration::from_secs(30), run).await.expect("the worker ends").unwrap()
}

/// An operator that never ends by itself. The receiver fails when its future is dropped.
fn endless(worker: Worker) -> (Worker, oneshot::Receiver<()>) {
    let (dropped, was_dropped) = oneshot::channel::<()>();
    let dropped = Mutex::new(Some(dropped));
    let worker = worker.operator("endless", move |_task| {
        let dropped = dropped.lock().unwrap().take();
        async move {
            let _dropped = dropped;
            std::future::pending::<Result<(), TaskError>>().await
        }
    });
    (worker, was_dropped)
}

fn plain(number: u32, operator: &str) -> Value {
    claimed(number, operator, None, json!({}))
}

/// What the completions say of these fields.
fn fields<'a>(body: &'a Value, names: &[&str]) -> Vec<&'a Value> {
    names.iter().map(|name| &body[*name]).collect()
}
