//! The worker that is pushed to, against a control plane that does what each test scripts.

mod blocked;
mod calls;
mod dispatches;
mod stops;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::plane::{Called, Plane, Rules, Say, after};
use serde_json::{Value, json};
use tenure_client::callback::{Ended, ErrorCode, Reported, SECRET_HEADER, Worker};
use tenure_client::{CancelReason, Json, TaskContext, TaskError, WorkerError};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;

const SECRET: &str = "between-us";

fn worker(plane: &Plane) -> Worker {
    Worker::new().callback_url(&plane.url).secret(SECRET).scope("acme", "prod").operator("echo", echo)
}

async fn echo(task: TaskContext) -> Result<Json, TaskError> {
    Ok(task.raw_payload().clone())
}

/// A worker that is served beside the test; dropping the sender shuts it down.
struct Site {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), WorkerError>>,
    ended: Arc<Mutex<Vec<Ended>>>,
    told: Arc<Notify>,
}

async fn serve(worker: Worker) -> Site {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (ended, told) = (Arc::<Mutex<Vec<Ended>>>::default(), Arc::<Notify>::default());
    let (list, bell) = (Arc::clone(&ended), Arc::clone(&told));
    let worker = worker.on_ended(move |end| {
        list.lock().unwrap().push(end.clone());
        bell.notify_one();
    });
    let run = tokio::spawn(worker.run_until(listener, async { drop(stopped.await) }));
    Site { address, stop: Some(stop), run, ended, told }
}

impl Site {
    /// Pushes, and gives status and body of the answer.
    async fn push(&self, envelope: &Value) -> (u16, Value) {
        let (status, _, body) = push(self.address, envelope, Some(SECRET)).await;
        (status, body)
    }

    /// Waits for so many attempts that the worker is done with.
    async fn until_ended(&self, count: usize) -> Vec<Ended> {
        let wait = async {
            loop {
                let told = self.told.notified();
                let ended = self.ended.lock().unwrap().clone();
                if ended.len() >= count {
                    return ended;
                }
                told.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the attempts never ended")
    }

    async fn shut_down(mut self) -> Result<(), WorkerError> {
        self.stop = None;
        tokio::time::timeout(Duration::from_secs(30), self.run).await.expect("the worker ends").unwrap()
    }
}

async fn push(address: SocketAddr, envelope: &Value, secret: Option<&str>) -> (u16, Option<String>, Value) {
    let mut request = reqwest::Client::new().post(format!("http://{address}/dispatch")).json(envelope);
    if let Some(secret) = secret {
        request = request.header(SECRET_HEADER, secret);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    let body = answer.bytes().await.unwrap();
    (status, retry_after, serde_json::from_slice(&body).unwrap_or_default())
}

fn changed(mut envelope: Value, changes: Value) -> Value {
    envelope.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    envelope
}

async fn pass(gate: &Semaphore) -> Result<(), TaskError> {
    gate.acquire().await?.forget();
    Ok(())
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
