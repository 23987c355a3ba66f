//! The Rust examples, as they stand in `examples/`, against a real control plane.

#[path = "../../../../../examples/rust/dispatch_worker.rs"]
mod dispatch_worker;
#[path = "../../../../../examples/rust/fenced_write.rs"]
mod fenced_write;
#[path = "../../../../../examples/rust/pull_worker.rs"]
mod pull_worker;
#[path = "../../../../../examples/rust/push_worker.rs"]
mod push_worker;
#[path = "../../../../../examples/rust/run.rs"]
mod run;
#[path = "../../../../../examples/rust/submit.rs"]
mod submit;

use serde_json::json;
use tenure_client::{Client, DeployOptions, PartitionFilter, TaskFilter, TaskSubmission, TestLease};
use tenure_testkit::{Postgres, Tenure, wait_until};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::workers::kit::PATIENCE;

fn token(server: &Tenure) -> String {
    std::fs::read_to_string(server.data().join("worker-token")).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_worker_that_pulls() {
    let server = Tenure::serve(&[]).await;
    let client = Client::new(server.url()).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = pull_worker::worker(server.url(), &token(&server)).run_until(async { drop(stopped.await) });
    let running = tokio::spawn(worker);
    let task = submit::submit(&client, "2025-01-15").await.unwrap();
    assert_eq!(task.state, "Succeeded");
    assert_eq!(task.result.unwrap().value(), json!({"day": "2025-01-15", "rows": 10_000}));
    // The same once more is the same task.
    let again = submit::submit(&client, "2025-01-15").await.unwrap();
    assert_eq!(again.task_id, task.task_id);
    drop(stop);
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_for_jobs_of_dags() {
    let server = Tenure::serve(&[]).await;
    let client = Client::new(server.url()).unwrap();
    let ranges = include_str!("../../../../../examples/dags/ranges.yaml");
    client.deploy_dag(ranges, DeployOptions::default()).await.unwrap();
    tokio::spawn(dispatch_worker::worker(server.url(), &token(&server)).run());
    let wanted = json!({"start": 1000, "end": 1999}).into();
    let fired = client.trigger_job("ranges", "fetch", None, Some(wanted)).await.unwrap();
    assert_eq!(client.wait(&fired.task_id, PATIENCE).await.unwrap().state, "Succeeded");
    let decoded = wait_until("the range is decoded", PATIENCE, async || {
        let dataset = client.dataset("transfers", &PartitionFilter::default()).await.unwrap();
        dataset.partitions.items.into_iter().next().filter(|partition| partition.location.is_some())
    })
    .await;
    assert_eq!((decoded.partition_key.as_str(), decoded.start, decoded.end), ("1000-1999", Some(1000), Some(1999)));
    let folder = decoded.location.unwrap().strip_prefix("file://").unwrap().to_owned();
    assert!(std::path::Path::new(&folder).join("logs_1000_1999.parquet").exists(), "{folder}");
    wait_until("the day is summarised", PATIENCE, async || {
        let daily = client.dag("ranges", None).await.unwrap().jobs.into_iter().find(|job| job.name == "daily").unwrap();
        let tasks = client.list(&TaskFilter { queue: Some(daily.queue), ..TaskFilter::default() }).await.unwrap();
        tasks.items.iter().any(|task| task.state == "Succeeded")
    })
    .await;
}

#[tokio::test]
async fn a_run_of_tasks_that_depend_on_each_other() {
    let server = Tenure::serve(&[]).await;
    let client = Client::new(server.url()).unwrap();
    let worker = pull_worker::worker(server.url(), &token(&server)).operator("load", run::load);
    tokio::spawn(worker.run());
    let ended = run::submit(&client, "2025-01-15").await.unwrap();
    assert_eq!((ended.state.as_str(), ended.counts.succeeded), ("Succeeded", 2));
    let load = ended.tasks.iter().find(|task| task.key == "load").unwrap();
    let load = client.get(&load.task_id).await.unwrap();
    assert_eq!(load.result.unwrap().value(), json!("10000 rows loaded"));
    // The same once more is the same run.
    assert_eq!(run::submit(&client, "2025-01-15").await.unwrap().run_id, ended.run_id);
}

#[tokio::test]
async fn a_worker_that_is_pushed_to() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenure.yaml");
    std::fs::write(&config, "push: {secrets: {etl: a-secret-of-the-example}}\n").unwrap();
    let server = Tenure::serve(&["--config", config.to_str().unwrap()]).await;
    let client = Client::new(server.url()).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let push = json!({"push": {"url": format!("http://{address}/dispatch"), "secret_ref": "etl"}});
    let queue = format!("{}/api/v1/queues/etl", server.url());
    let answer = reqwest::Client::new().put(queue).json(&push).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());

    let (stop, stopped) = oneshot::channel::<()>();
    let service = push_worker::service(server.url(), "a-secret-of-the-example").unwrap();
    let serving = tokio::spawn(push_worker::serve(service, listener, async { drop(stopped.await) }));
    let task = submit::submit(&client, "2025-01-15").await.unwrap();
    assert_eq!(task.state, "Succeeded");
    assert_eq!(task.result.unwrap().value(), json!({"day": "2025-01-15", "rows": 10_000}));
    assert_eq!(reqwest::get(format!("http://{address}/healthz")).await.unwrap().text().await.unwrap(), "ok");
    drop(stop);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_write_behind_a_fence() {
    let database = Postgres::shared().await.database().await;
    let server = Tenure::serve(&[]).await;
    let client = Client::new(server.url()).unwrap();
    let db = fenced_write::database(database.url()).await.unwrap();
    tokio::spawn(fenced_write::worker(server.url(), &token(&server), db.clone()).run());
    let payload = json!({"day": "2025-01-15", "rows": 1});
    let task = TaskSubmission {
        queue: "etl".into(),
        operator: "report".into(),
        payload: Some(payload.clone().into()),
        ..TaskSubmission::default()
    };
    let id = client.submit(&task).await.unwrap().task_id;
    assert_eq!(client.wait(&id, PATIENCE).await.unwrap().state, "Succeeded");
    let count = "SELECT count(*) FROM report WHERE task = $1 AND rows = $2";
    let rows = async |task: &str, rows: i64| db.query_one(count, &[&task, &rows]).await.unwrap().get::<_, i64>(0);
    assert_eq!(rows(&id, 1).await, 1);
    // Another task, whose second attempt writes before the first one does.
    let first = TestLease::new("report", &payload);
    let second = first.attempt(2, None);
    fenced_write::report(second.context(), db.clone()).await.unwrap();
    let refused = fenced_write::report(first.context(), db.clone()).await.unwrap_err();
    assert!(refused.message().ends_with("is stale"), "{refused}");
}
