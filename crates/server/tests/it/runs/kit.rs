//! Runs in short.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::harness::{SOON, Server, fatal, merge};

/// An entry of queue `q` that waits for these. One attempt, so that every failure is final.
pub fn entry(key: &str, depends_on: &[&str]) -> Value {
    json!({"key": key, "queue": "q", "operator": "op", "depends_on": depends_on, "max_attempts": 1})
}

pub fn with(mut entry: Value, extra: Value) -> Value {
    merge(&mut entry, extra);
    entry
}

/// Submits a run of these entries and gives its id.
pub async fn submit(server: &Server, entries: Vec<Value>) -> String {
    let run = server.post("/api/v1/runs", json!({"tasks": entries})).await;
    assert_eq!(run.status.as_u16(), 201, "{}", run.body);
    run.body["run_id"].as_str().unwrap().to_owned()
}

/// `extract` → `load` → `report`, and `other` by itself.
pub async fn chain(server: &Server) -> String {
    let entries =
        vec![entry("extract", &[]), entry("load", &["extract"]), entry("report", &["load"]), entry("other", &[])];
    submit(server, entries).await
}

pub async fn shown(server: &Server, run: &str) -> Value {
    server.get(&format!("/api/v1/runs/{run}")).await.ok()
}

pub fn task<'a>(run: &'a Value, key: &str) -> &'a Value {
    run["tasks"].as_array().unwrap().iter().find(|task| task["key"] == key).unwrap_or_else(|| panic!("no {key}: {run}"))
}

/// The states of the tasks by their keys.
pub async fn states(server: &Server, run: &str) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let run = shown(server, run).await;
    run["tasks"].as_array().unwrap().iter().map(|task| (text(&task["key"]), text(&task["state"]))).collect()
}

pub fn these(states: &[(&str, &str)]) -> BTreeMap<String, String> {
    states.iter().map(|(key, state)| ((*key).to_owned(), (*state).to_owned())).collect()
}

/// Claims that very task of a run.
pub async fn claim(server: &Server, run: &str, key: &str) -> Value {
    let id = task(&shown(server, run).await, key)["task_id"].clone();
    let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": id})).await.ok();
    assert_eq!(job["claimed"], true, "{key}: {job}");
    job
}

pub async fn complete(server: &Server, run: &str, key: &str, result: Value) -> Value {
    let job = claim(server, run, key).await;
    server.complete("w-1", &job, result).await.ok();
    job
}

pub async fn fail(server: &Server, run: &str, key: &str) -> Value {
    let job = claim(server, run, key).await;
    server.fail("w-1", &job, fatal()).await.ok();
    job
}

pub async fn until(server: &Server, run: &str, state: &str) -> Value {
    wait_until(state, SOON, async || Some(shown(server, run).await).filter(|run| run["state"] == state)).await
}

/// Up to a hundred jobs of queue `q` for this worker, without waiting.
pub async fn claim_many(server: &Server, worker: &str) -> Vec<Value> {
    let turn = json!({"worker_id": worker, "claim": {"streams": ["q"], "max_jobs": 100, "max_wait_ms": 0}});
    server.worker("exchange", turn).await.ok()["jobs"].as_array().cloned().unwrap_or_default()
}

pub fn report(job: &Value, extra: Value) -> Value {
    let item = json!({"job_id": job["job_id"], "attempt_id": job["attempt_id"], "lease_token": job["lease_token"]});
    with(item, extra)
}

/// Works on queue `q` until nothing is left, a hundred jobs at a time. Gives how many there were.
pub async fn work_off(server: &Server, worker: &str) -> usize {
    let (mut done, mut reports) = (0, Vec::new());
    loop {
        let claim = json!({"streams": ["q"], "max_jobs": 100, "max_wait_ms": 0});
        let turn = json!({"worker_id": worker, "complete": reports, "claim": claim});
        let answer = server.worker("exchange", turn).await.ok();
        for answer in answer["complete"].as_array().into_iter().flatten() {
            assert_eq!(answer["ok"], true, "{answer}");
        }
        let jobs = answer["jobs"].as_array().cloned().unwrap_or_default();
        if jobs.is_empty() && reports.is_empty() {
            return done;
        }
        done += jobs.len();
        reports = jobs.iter().map(|job| report(job, json!({"result": 1}))).collect();
    }
}
