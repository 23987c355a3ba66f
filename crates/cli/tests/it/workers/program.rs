//! The Rust workers of these tests: this test binary, started again as a program.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tenure_client::{CancelReason, Json, TaskContext, TaskError, Worker, callback};
use tokio::net::TcpListener;

/// Set for a process that is to be a worker: `push` or `pull`.
const ROLE: &str = "TENURE_TEST_WORKER";

/// The command that is such a worker.
pub fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["workers::program::worker", "--exact", "--nocapture"]).env(ROLE, role);
    command
}

/// Not a test: the worker, when [`command`] starts this binary.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let set = |name: &str| std::env::var(name).unwrap();
        match role.as_str() {
            "pull" => {
                let worker = Worker::new(set("TENURE_URL")).token(set("TENURE_WORKER_TOKEN")).concurrency(4);
                let worker = worker.queues([set("TENURE_QUEUE")]).poll_wait(Duration::from_secs(1));
                println!("ready");
                let worker = worker.operator("echo", echo).operator("block", block).operator("hold", hold);
                let worker = worker.operator("finish", finish).operator("who", who);
                worker.operator("fail", fail).operator("panic", panic).operator("resume", resume).run().await.unwrap();
            }
            _ => {
                let worker = callback::Worker::new().callback_url(set("TENURE_URL")).name("rust-push");
                let worker = worker.secret(set("TENURE_DISPATCH_SECRET"));
                let listener = TcpListener::bind(set("TENURE_LISTEN")).await.unwrap();
                println!("ready");
                let worker = worker.operator("echo", echo).operator("block", block).operator("hold", hold);
                let worker = worker.operator("finish", finish).operator("who", who);
                let worker = worker.operator("fail", fail).operator("panic", panic).operator("resume", resume);
                worker.run(listener).await.unwrap();
            }
        }
    });
}

#[derive(Deserialize)]
struct Order {
    /// A line for each thing that happens goes here.
    trace: PathBuf,
    /// The task ends when this is there.
    #[serde(default)]
    go: PathBuf,
    /// The result counts whatever the task was told.
    #[serde(default)]
    keep: bool,
}

impl Order {
    fn note(&self, line: &str) {
        let mut trace = std::fs::OpenOptions::new().create(true).append(true).open(&self.trace).unwrap();
        trace.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

async fn echo(task: TaskContext) -> Result<Json, TaskError> {
    if let Ok(order) = task.payload::<Order>() {
        order.note("start");
    }
    Ok(task.raw_payload().clone())
}

/// Blocks its thread.
async fn block(task: TaskContext) -> Result<Value, TaskError> {
    let order: Order = task.payload()?;
    order.note("start");
    while !order.go.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    order.note("end");
    Ok(json!({"attempt": task.attempt(), "fence": task.fence()}))
}

/// Waits, and stops when it is told to.
async fn hold(task: TaskContext) -> Result<Value, TaskError> {
    let order: Order = task.payload()?;
    order.note("start");
    task.enter_phase("holding");
    task.report_progress(50, "half way");
    let trace = Order { trace: order.trace.clone(), go: PathBuf::new(), keep: false };
    let _lost = task.on_lease_lost(move || trace.note("lost"));
    while !order.go.exists() {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
            reason = task.cancelled() => {
                if let CancelReason::Requested(reason) = reason {
                    order.note(&format!("cancel {reason}"));
                }
                return Err(TaskError::cancelled("told to"));
            }
        }
    }
    order.note("end");
    Ok(json!({"attempt": task.attempt(), "fence": task.fence()}))
}

/// Returns when it is told to stop.
async fn finish(task: TaskContext) -> Result<Value, TaskError> {
    let order: Order = task.payload()?;
    order.note("start");
    if let CancelReason::Requested(reason) = task.cancelled().await {
        order.note(&format!("cancel {reason}"));
    }
    if order.keep {
        task.keep_result();
    }
    Ok(json!({"attempt": task.attempt(), "fence": task.fence()}))
}

async fn who(task: TaskContext) -> Result<Value, TaskError> {
    Ok(json!({"task_id": task.task_id()}))
}

async fn fail(task: TaskContext) -> Result<(), TaskError> {
    #[derive(Deserialize)]
    struct Failure {
        category: String,
    }
    let failure: Failure = task.payload()?;
    Err(match failure.category.as_str() {
        "DATA_QUALITY" => TaskError::data_quality("as ordered"),
        "CONFIGURATION" => TaskError::configuration("as ordered"),
        "INFRASTRUCTURE" => TaskError::infrastructure("as ordered"),
        "TIMEOUT" => TaskError::timeout("as ordered"),
        _ => TaskError::user_code("as ordered"),
    })
}

async fn panic(_task: TaskContext) -> Result<(), TaskError> {
    panic!("as ordered")
}

/// The first attempt leaves something and fails; the next returns what it finds.
async fn resume(task: TaskContext) -> Result<Value, TaskError> {
    if task.attempt() == 1 {
        task.save_checkpoint(&json!({"rows": 5}))?;
        return Err(TaskError::infrastructure("half way"));
    }
    Ok(task.checkpoint()?.unwrap_or_default())
}
