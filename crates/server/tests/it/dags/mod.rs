//! DAGs and datasets over HTTP: deploy, look, switch versions, trigger, invalidate.

mod datasets;
mod deploy;
mod hostile;
mod versions;

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_core::TaskId;
use tenure_core::attempt::{Failure, Report};
use tenure_core::command::claim::{ClaimTask, Claimant, Claimer, Grant};
use tenure_core::command::report::AttemptReport;
use tenure_core::dag::data::Scope;
use tenure_core::dag::judge::{self, Rules, Said, SaidOutput, SaidVersion, Where};
use tenure_core::dag::range::Cursor;
use tenure_core::dag::task::TaskInput;
use tenure_core::dag::{DatasetId, InvalidationId};
use tenure_engine::{TaskClaim, random_seed};
use tenure_testkit::wait_until;

use crate::harness::{Answer, SOON, Server};

pub const DAGS: &str = "/api/v1/dags";
pub const DATASETS: &str = "/api/v1/datasets";

/// `import` fires by hand, `decode` reads it, `count` reads `decode`. `config` decides what `decode` is.
pub fn chain(config: u32) -> String {
    format!(
        "name: chain
jobs:
  - {{ name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: {{ kind: manual }} }}
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs: [{{ from: {{ job: import, output: 0 }}, alias: raw }}]
    config: {{ n: {config} }}
  - name: count
    activation: reactive
    runtime: worker
    operator: count
    outputs: 0
    execution_strategy: PerPartition
    inputs: [{{ from: {{ dataset: decoded }} }}]
publish:
  decoded: {{ from: {{ job: decode, output: 0 }} }}
"
    )
}

/// Posts a text as it is.
pub async fn post_yaml(server: &Server, query: &str, headers: &[(&str, &str)], yaml: &str) -> Answer {
    let headers = [&[("Content-Type", "application/yaml")], headers].concat();
    server.send(&format!("{DAGS}{query}"), &headers, yaml.to_owned()).await
}

pub async fn deploy(server: &Server, yaml: &str) -> Value {
    let answer = post_yaml(server, "", &[], yaml).await;
    assert_eq!(answer.status.as_u16(), 201, "{}", answer.body);
    answer.body
}

pub async fn shown(server: &Server, dag: &str) -> Value {
    server.get(&format!("{DAGS}/{dag}")).await.ok()
}

/// Versions of a DAG, newest first.
pub async fn versions(server: &Server, dag: &str) -> Vec<Value> {
    server.get(&format!("{DAGS}/{dag}/versions")).await.ok()["items"].as_array().unwrap().clone()
}

pub async fn state(server: &Server, version: i64) -> String {
    let versions = versions(server, "chain").await;
    let found = versions.iter().find(|it| it["version"] == version).unwrap_or_else(|| panic!("{versions:?}"));
    found["state"].as_str().unwrap().to_owned()
}

pub async fn until_state(server: &Server, version: i64, expected: &str) {
    wait_until(expected, SOON, async || state(server, version).await == expected).await;
}

pub async fn cutover(server: &Server, version: i64) -> Answer {
    server.post(&format!("{DAGS}/chain/cutover"), json!({"version": version})).await
}

pub async fn rollback(server: &Server) -> Answer {
    server.call(Method::POST, &format!("{DAGS}/chain/rollback"), &[], None).await
}

/// Fires `import` and gives the task.
pub async fn fire(server: &Server, request: &str) -> String {
    let answer = server.post(&format!("{DAGS}/chain/jobs/import/trigger"), json!({"request_id": request})).await;
    assert_eq!(answer.status.as_u16(), 202, "{}", answer.body);
    answer.body["task_id"].as_str().unwrap().to_owned()
}

/// Counts of tasks of a job in the shown version: queued, running, failed.
pub async fn counts(server: &Server, job: &str) -> (u64, u64, u64) {
    let dag = shown(server, "chain").await;
    let jobs = dag["jobs"].as_array().unwrap();
    let tasks = &jobs.iter().find(|it| it["name"] == job).unwrap()["tasks"];
    let count = |name: &str| tasks[name].as_u64().unwrap();
    (count("queued"), count("running"), count("failed"))
}

/// The tasks of an operator, newest first.
pub async fn tasks(server: &Server, operator: &str) -> Vec<Value> {
    server.get(&format!("/api/v1/tasks?operator={operator}")).await.ok()["items"].as_array().unwrap().clone()
}

/// The newest task of an operator, when there are so many.
pub async fn nth(server: &Server, operator: &str, count: usize) -> String {
    wait_until(operator, SOON, async || tasks(server, operator).await.len() >= count).await;
    let tasks = tasks(server, operator).await;
    assert_eq!(tasks.len(), count, "{operator}");
    tasks[0]["task_id"].as_str().unwrap().to_owned()
}

pub async fn claim(server: &Server, task: &str) -> Grant {
    let claimant =
        Claimant { id: "w".into(), incarnation: None, claim_id: None, kills_on_expiry: false, dispatch: true };
    let claimer = Claimer { worker: Some(claimant), seed: random_seed() };
    let task = TaskId::parse(task).unwrap();
    match server.engine.claim_task(ClaimTask { claimer, task, message: None }).await.unwrap().unwrap() {
        TaskClaim::Granted(mut claimed) => claimed.grants.remove(0),
        TaskClaim::NotGranted(not) => panic!("{:?}", not.reason),
    }
}

/// Reports a success that wrote this to every output of the job.
pub async fn complete(server: &Server, grant: &Grant, at: Where) {
    let input: TaskInput = serde_json::from_str(&grant.body.as_ref().unwrap().payload).unwrap();
    let outputs = input.outputs.iter().map(|output| SaidOutput {
        dataset: output.dataset,
        version: SaidVersion::Generation(output.version),
        at: at.clone(),
        location: "s3://tenure/staging/".into(),
        row_count: Some(20),
        bytes: Some(4_096),
        schema_hash: None,
        manifest: None,
    });
    let said = Said { outputs: outputs.collect(), ..Said::default() };
    let cascade = |dataset: DatasetId, _: &Scope| InvalidationId::from_u128(grant.task.as_u128() ^ dataset.as_u128());
    let org = Arc::clone(&grant.body.as_ref().unwrap().tenant);
    let rules = Rules { org, replaces: true, ends: true, knows: &|_, _| true, cascade: &cascade };
    let data = judge::judge(&input, &said, &rules).unwrap();
    report(server, grant, Report::succeeded(Some("{}".into())), Some(Arc::new(data))).await;
}

pub async fn fail(server: &Server, grant: &Grant) {
    let failure = Failure::new("E", "m", None, Some(false));
    report(server, grant, Report::failed(failure), None).await;
}

async fn report(server: &Server, grant: &Grant, report: Report, data: Option<Arc<tenure_core::dag::DataReport>>) {
    let report = AttemptReport { task: grant.task, attempt_id: grant.attempt_id, token: grant.token, report, data };
    server.engine.report(report, 0).await.unwrap().unwrap();
}

pub fn partition(key: &str) -> Where {
    Where { partition_key: Some(key.into()), ..Where::default() }
}

pub fn cursor(value: u64) -> Where {
    Where { cursor: Cursor::new(value), ..Where::default() }
}

pub async fn run(server: &Server, task: &str, key: &str) {
    let grant = claim(server, task).await;
    complete(server, &grant, partition(key)).await;
}

/// Fires the source and runs everything that follows for one partition.
pub async fn run_all(server: &Server, key: &str, nth_task: usize) {
    let import = fire(server, key).await;
    run(server, &import, key).await;
    for operator in ["decode", "count"] {
        let task = nth(server, operator, nth_task).await;
        run(server, &task, key).await;
    }
}
