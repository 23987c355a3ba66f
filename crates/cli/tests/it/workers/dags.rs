//! The worker for jobs of DAGs, against a real control plane.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::dags::DatasetPartition;
use tenure_client::dispatch::{Output, Task, Worker};
use tenure_client::user::{CancelRequest, Task as TaskView};
use tenure_client::{Client, DeployOptions, PartitionFilter, TaskError, WorkerError};
use tenure_testkit::{Tenure, wait_until};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::workers::kit::PATIENCE;
use crate::workers::proxy::Proxy;

/// Outlives a machine that stands still for a while, in seconds.
const LONG_LEASE: u32 = 30;

fn chain(lease: u32) -> String {
    format!(
        "name: chain
defaults: {{ max_attempts: 1, heartbeat_timeout_seconds: {lease} }}
jobs:
  - {{ name: fetch, activation: source, runtime: worker, operator: fetch, outputs: 1, source: {{ kind: manual }} }}
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs: [{{ from: {{ job: fetch, output: 0 }}, alias: raw }}]
publish:
  raw: {{ from: {{ job: fetch, output: 0 }} }}
  decoded: {{ from: {{ job: decode, output: 0 }} }}
"
    )
}

/// A control plane with a DAG of two jobs, and a link to it.
struct Site {
    server: Tenure,
    client: Client,
    proxy: Proxy,
    token: String,
}

impl Site {
    async fn new(lease: u32) -> Self {
        let server = Tenure::serve(&[]).await;
        let client = Client::new(server.url()).unwrap();
        client.deploy_dag(&chain(lease), DeployOptions::default()).await.unwrap();
        let address = server.url().strip_prefix("http://").unwrap().parse().unwrap();
        let token = std::fs::read_to_string(server.data().join("worker-token")).unwrap().trim().to_owned();
        Self { server, client, proxy: Proxy::start(address).await, token }
    }

    /// A worker at this address, with an operator `decode` that keeps what it reads.
    fn worker(&self, url: &str) -> Worker {
        Worker::new(url).shared_token(&self.token).poll_wait(Duration::from_secs(1)).operator("decode", decode)
    }

    async fn fire(&self, input: Value) -> String {
        self.client.trigger_job("chain", "fetch", None, Some(input.into())).await.unwrap().task_id
    }

    async fn ended(&self, id: &str) -> TaskView {
        self.client.wait(id, PATIENCE).await.unwrap()
    }

    async fn partitions(&self, dataset: &str) -> Vec<DatasetPartition> {
        self.client.dataset(dataset, &PartitionFilter::default()).await.unwrap().partitions.items
    }

    /// Waits for a partition that was committed.
    async fn committed(&self, dataset: &str, key: &str) -> DatasetPartition {
        wait_until(&format!("{key} of {dataset}"), PATIENCE, async || {
            let is_it = |found: &DatasetPartition| found.partition_key == key && found.location.is_some();
            self.partitions(dataset).await.into_iter().find(is_it)
        })
        .await
    }
}

fn text_in(partition: &DatasetPartition) -> String {
    let folder = partition.location.as_deref().unwrap().strip_prefix("file://").unwrap();
    assert!(Path::new(folder).join("_SUCCESS").exists());
    std::fs::read_to_string(Path::new(folder).join("rows.txt")).unwrap()
}

async fn write(task: &Task, key: &str, text: String) -> Result<Output, TaskError> {
    let staging = task.writer(0).await?;
    tokio::fs::write(staging.path().join("rows.txt"), text).await?;
    staging.finish().await?;
    Ok(Output::new(0, key))
}

async fn decode(task: Task) -> Result<Output, TaskError> {
    let key = task.partition("raw")?.partition_key.clone();
    let raw = tokio::fs::read_to_string(task.input_folder("raw")?.join("rows.txt")).await?;
    write(&task, &key, format!("{raw} decoded")).await
}

/// The key that a source was fired with.
fn key(task: &Task) -> Result<String, TaskError> {
    Ok(task.work_payload::<HashMap<String, Value>>()?["key"].as_str().unwrap_or_default().to_owned())
}

fn spawn(worker: Worker) -> (oneshot::Sender<()>, JoinHandle<Result<(), WorkerError>>) {
    let (stop, stopped) = oneshot::channel::<()>();
    (stop, tokio::spawn(worker.run_until(async { drop(stopped.await) })))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_and_events_make_tasks_downstream() {
    let site = Site::new(LONG_LEASE).await;
    let (release, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (wait, tell) = (Arc::clone(&release), Arc::clone(&released));
    // The first partition is told of while the task runs: the source is in its staging folder, so none is committed yet.
    let worker = site.worker(site.server.url()).concurrency(2).operator("fetch", move |task: Task| {
        let (wait, tell) = (Arc::clone(&wait), Arc::clone(&tell));
        async move {
            task.emit(0, (1, 5)).await?;
            task.flush().await?;
            tell.notify_one();
            wait.notified().await;
            task.set_state(&json!({"last": 9}))?;
            write(&task, "6-9", "rows".to_owned()).await
        }
    });
    let worker = worker.operator("decode", async |task: Task| {
        let key = task.partition("raw")?.partition_key.clone();
        write(&task, &key, format!("{key} decoded")).await
    });
    let (stop, run) = spawn(worker);
    let id = site.fire(json!({})).await;
    released.notified().await;
    assert_eq!(text_in(&site.committed("decoded", "1-5").await), "1-5 decoded");
    assert_eq!(site.client.get(&id).await.unwrap().state, "Running", "its event was routed before its end");
    release.notify_one();
    assert_eq!(site.ended(&id).await.state, "Succeeded");
    assert_eq!(text_in(&site.committed("raw", "6-9").await), "rows");
    assert_eq!(text_in(&site.committed("decoded", "6-9").await), "6-9 decoded");
    drop(stop);
    run.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_lease_stops_the_handler_and_its_completion_is_refused() {
    let site = Site::new(1).await;
    let (go, dropped) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
    let (wait, drops) = (Arc::clone(&go), Arc::clone(&dropped));
    let started = Arc::new(Mutex::new(0));
    let starts = Arc::clone(&started);
    // One never ends by itself, the other one ends while it cannot say so.
    let first = site.worker(&site.proxy.url).concurrency(2).operator("fetch", move |task: Task| {
        let (wait, drops) = (Arc::clone(&wait), Noted(Arc::clone(&drops)));
        *starts.lock().unwrap() += 1;
        async move {
            let _drops = drops;
            match key(&task)?.as_str() {
                "ends" => wait.notified().await,
                _ => std::future::pending().await,
            }
            write(&task, "ends", "of the first attempt".to_owned()).await
        }
    });
    let (stop_first, run_first) = spawn(first);
    let ids = [site.fire(json!({"key": "ends"})).await, site.fire(json!({"key": "holds"})).await];
    wait_until("both run", PATIENCE, async || *started.lock().unwrap() == 2).await;
    site.proxy.cut(true);
    for id in &ids {
        let task = site.ended(id).await;
        assert_eq!((task.state.as_str(), task.error.unwrap().code.as_str()), ("Failed", "HEARTBEAT_TIMEOUT"));
        site.client.retry(id).await.unwrap();
    }
    let second = site
        .worker(site.server.url())
        .operator("fetch", async |task: Task| write(&task, &key(&task)?, "of the second attempt".to_owned()).await);
    let (stop_second, run_second) = spawn(second);
    for name in ["ends", "holds"] {
        assert_eq!(text_in(&site.committed("raw", name).await), "of the second attempt");
    }
    go.notify_one();
    wait_until("the first attempt ends", PATIENCE, async || dropped.lock().unwrap().len() == 1).await;
    site.proxy.cut(false);
    wait_until("the other one is stopped", PATIENCE, async || dropped.lock().unwrap().len() == 2).await;
    // A worker that ends has had an answer to every report.
    drop((stop_first, stop_second));
    run_first.await.unwrap().unwrap();
    run_second.await.unwrap().unwrap();
    assert_eq!(text_in(&site.committed("raw", "ends").await), "of the second attempt");
    for id in &ids {
        let attempts = site.client.attempts(id, None).await.unwrap().items;
        assert_eq!(attempts[0].reason.as_deref(), Some("HEARTBEAT_TIMEOUT"));
        assert!(attempts[0].fence < attempts[1].fence);
        assert_eq!(site.ended(id).await.state, "Succeeded");
    }
}

/// Notes that it is dropped.
struct Noted(Arc<Mutex<Vec<()>>>);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_handler_and_nothing_it_returns_counts() {
    let site = Site::new(4).await;
    let started = Arc::new(Notify::new());
    let tell = Arc::clone(&started);
    let worker = site.worker(site.server.url()).operator("fetch", move |task: Task| {
        let tell = Arc::clone(&tell);
        async move {
            tell.notify_one();
            task.cancelled().await;
            write(&task, "late", "rows".to_owned()).await
        }
    });
    let (stop, run) = spawn(worker);
    let id = site.fire(json!({})).await;
    started.notified().await;
    site.client.cancel(&id, &CancelRequest { reason: None, mode: None }).await.unwrap();
    assert_eq!(site.ended(&id).await.state, "Canceled");
    drop(stop);
    run.await.unwrap().unwrap();
    assert_eq!(site.partitions("raw").await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_kept_and_can_be_retried() {
    let site = Site::new(LONG_LEASE).await;
    let worker = site.worker(site.server.url()).operator("fetch", async |task: Task| match task.attempt() {
        1 => Err(TaskError::data_quality("no such block").with_stack("trace")),
        _ => write(&task, "a", "rows".to_owned()).await,
    });
    let (_stop, _run) = spawn(worker);
    let id = site.fire(json!({})).await;
    let failed = site.ended(&id).await;
    let error = failed.error.unwrap();
    assert_eq!(
        (failed.state.as_str(), error.code.as_str(), error.message.as_str()),
        ("Failed", "DATA_QUALITY", "no such block")
    );
    assert_eq!(site.partitions("raw").await, []);
    site.client.retry(&id).await.unwrap();
    assert_eq!(text_in(&site.committed("decoded", "a").await), "rows decoded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_cost_no_attempt() {
    let site = Site::new(LONG_LEASE).await;
    let go = Arc::new(Notify::new());
    let (wait, started) = (Arc::clone(&go), Arc::new(Notify::new()));
    let tell = Arc::clone(&started);
    let worker = site.worker(&site.proxy.url).operator("fetch", move |task: Task| {
        let (wait, tell) = (Arc::clone(&wait), Arc::clone(&tell));
        async move {
            tell.notify_one();
            wait.notified().await;
            task.emit(0, "early").await?;
            task.emit(0, "early").await?;
            write(&task, &key(&task)?, "rows".to_owned()).await
        }
    });
    // Its partition has no data.
    let worker = worker.operator("decode", async |task: Task| {
        let key = task.partition("raw")?.partition_key.clone();
        Ok(Output::new(0, key))
    });
    let (_stop, _run) = spawn(worker);
    for (name, answers) in [("one", 1), ("two", 2), ("three", 3)] {
        // Also those of the start.
        site.proxy.lose(answers);
        let id = site.fire(json!({"key": name})).await;
        started.notified().await;
        wait_until("the answers were lost", PATIENCE, async || site.proxy.to_lose() == 0).await;
        site.proxy.lose(answers);
        go.notify_one();
        let task = site.ended(&id).await;
        assert_eq!((task.state.as_str(), task.attempt), ("Succeeded", 1));
        assert_eq!(text_in(&site.committed("raw", name).await), "rows");
        wait_until("the answers were lost", PATIENCE, async || site.proxy.to_lose() == 0).await;
    }
    site.committed("decoded", "three").await;
    site.committed("decoded", "early").await;
    let decode =
        site.client.dag("chain", None).await.unwrap().jobs.into_iter().find(|job| job.name == "decode").unwrap();
    let filter = tenure_client::TaskFilter { queue: Some(decode.queue), ..Default::default() };
    let tasks = site.client.list(&filter).await.unwrap().items;
    assert_eq!(tasks.len(), 4, "one task for each partition, however often it was told of");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_ends_gives_back_what_it_cannot_finish() {
    let site = Site::new(LONG_LEASE).await;
    let started = Arc::new(Notify::new());
    let tell = Arc::clone(&started);
    let worker = site.worker(site.server.url()).drain_timeout(Duration::ZERO).stop_grace(Duration::ZERO).operator(
        "fetch",
        move |_task: Task| {
            let tell = Arc::clone(&tell);
            async move {
                tell.notify_one();
                std::future::pending::<Result<(), TaskError>>().await
            }
        },
    );
    let (stop, run) = spawn(worker);
    let id = site.fire(json!({})).await;
    started.notified().await;
    drop(stop);
    run.await.unwrap().unwrap();
    // It was reported, and did not just run out.
    let task = site.client.get(&id).await.unwrap();
    assert_eq!(task.state.as_str(), "Ready");
    let attempt = site.client.attempts(&id, None).await.unwrap().items.remove(0);
    let error = attempt.error.unwrap();
    assert_eq!((attempt.reason.as_deref(), error.code.as_str()), (Some("HANDED_BACK"), "INFRASTRUCTURE"));
    assert!(error.message.contains("shut down"), "{}", error.message);
}
