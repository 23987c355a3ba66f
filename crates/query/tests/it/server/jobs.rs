//! Jobs with the operator `query`, run by a real query process.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_engine::store::Asker;
use tenure_server::{QueryConfig, QueryPlace};
use tenure_testkit::wait_until;

use super::kit::{self, DAG, Plane, SOON, alert, files, on_both};

on_both!(a_query_writes_its_output);

/// `big` reads each partition, `recent` and `again` the new rows of a table, `total` everything.
const JOBS: &str = "
  - name: big
    activation: reactive
    runtime: dispatcher
    operator: query
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs: [{ from: { job: import, output: 0 }, alias: raw, where: \"n < 100\" }]
    config: { query: \"SELECT n, n * 2 AS twice FROM raw WHERE n > 5\" }
  - name: recent
    activation: reactive
    runtime: dispatcher
    operator: query
    outputs: 1
    execution_strategy: PerUpdate
    update_strategy: append
    unique_key: [key]
    inputs: [{ from: { dataset: alerts }, where: { severity: [critical, fatal], n: [1, 2, 3, 4] } }]
    config: { query: SELECT key FROM dataset }
  - name: again
    activation: reactive
    runtime: dispatcher
    operator: query
    outputs: 1
    execution_strategy: PerUpdate
    update_strategy: append
    unique_key: [key]
    inputs: [{ from: { dataset: alerts }, where: \"severity IN ('critical', 'fatal') AND n IN (1, 2, 3, 4)\" }]
    config: { query: SELECT key FROM alerts }
  - name: total
    activation: reactive
    runtime: dispatcher
    operator: query
    outputs: 1
    execution_strategy: PerUpdate
    update_strategy: replace
    inputs: [{ from: { job: big, output: 0 }, alias: big }, { from: { dataset: alerts } }]
    config: { query: \"SELECT (SELECT count(*) FROM big) AS blocks, (SELECT count(*) FROM alerts) AS alerts\" }
  - name: after
    activation: reactive
    runtime: worker
    operator: after
    outputs: 0
    execution_strategy: PerPartition
    inputs: [{ from: { job: total, output: 0 } }]
publish:
  big: { from: { job: big, output: 0 } }
  recent: { from: { job: recent, output: 0 } }
  again: { from: { job: again, output: 0 } }
  total: { from: { job: total, output: 0 } }
";

fn dag() -> String {
    DAG.replace("publish:\n", JOBS.trim_start_matches('\n'))
}

async fn tasks(plane: &Plane, operator: &str) -> Vec<Value> {
    let path = format!("/api/v1/tasks?operator={operator}");
    plane.call(Method::GET, &path, &[], None).await.ok()["items"].as_array().unwrap().clone()
}

/// Waits until no task of a query is left.
async fn settled(plane: &Plane) {
    wait_until("the queries have run", SOON, async || {
        let tasks = tasks(plane, "query").await;
        !tasks.is_empty() && tasks.iter().all(|task| ["Succeeded", "Failed"].contains(&task["state"].as_str().unwrap()))
    })
    .await;
}

async fn keys(plane: &Plane, dataset: &str) -> Vec<String> {
    let found = plane.call(Method::GET, &format!("/api/v1/datasets/{dataset}"), &[], None).await.ok();
    let items = found["partitions"]["items"].as_array().unwrap().clone();
    items.iter().map(|row| row["partition_key"].as_str().unwrap().to_owned()).collect()
}

async fn a_query_writes_its_output(plane: Plane) {
    plane.deploy("default", &dag()).await;
    plane.import("default", 0, 9).await;
    plane.import("default", 90, 109).await;
    plane.publish("default", vec![alert("a", "critical", 1), alert("b", "info", 2)]).await;
    wait_until("every block is read", SOON, async || {
        plane.rows("SELECT count(*), max(n), max(twice) FROM big").await == json!([[14, 99, 198]])
    })
    .await;
    settled(&plane).await;
    assert_eq!(keys(&plane, "big").await, ["0-9", "90-109"]);
    assert_eq!(plane.rows("SELECT key FROM recent").await, json!([["a"]]));
    assert_eq!(keys(&plane, "recent").await, ["1-2"]);
    plane.publish("default", vec![alert("c", "critical", 3)]).await;
    wait_until("new rows are read", SOON, async || {
        plane.rows("SELECT key FROM recent ORDER BY 1").await == json!([["a"], ["c"]])
    })
    .await;
    wait_until("the totals follow", SOON, async || {
        plane.rows("SELECT blocks, alerts FROM total").await == json!([[14, 3]])
    })
    .await;
    settled(&plane).await;
    // Rows without a match have no task of their own to wait for: the cursor passes them.
    plane.publish("default", vec![alert("d", "info", 4)]).await;
    wait_until("the totals follow", SOON, async || plane.rows("SELECT alerts FROM total").await == json!([[4]])).await;
    settled(&plane).await;
    assert_eq!(plane.rows("SELECT count(*) FROM recent").await, json!([[2]]), "no row twice");
    // Both spellings of a condition leave out the same rows.
    let rows = async |dataset: &str| plane.rows(&format!("SELECT key FROM {dataset} ORDER BY 1")).await;
    assert_eq!(
        (rows("recent").await, keys(&plane, "recent").await),
        (rows("again").await, keys(&plane, "again").await)
    );
    assert_eq!(keys(&plane, "total").await, ["all"]);
    // Its readers are told each time that it was written anew.
    let writes = tasks(&plane, "query").await.iter().filter(|task| job_of(task) == "total").count();
    wait_until("the readers of the totals", SOON, async || tasks(&plane, "after").await.len() == writes).await;
    let written = files(&plane.folder.path().join("objects"));
    let named = |name: &str| written.iter().any(|path| path.file_name().unwrap() == name);
    assert!(named("big_0_9.parquet") && named("recent_1_2.parquet") && named("total.parquet"), "{written:?}");
    assert!(tasks(&plane, "query").await.iter().all(|task| task["state"] == "Succeeded" && task["attempt"] == 1));
}

fn job_of(task: &Value) -> String {
    task["queue"].as_str().unwrap().split(':').nth(2).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_cannot_run_fails_with_its_reason_and_one_without_a_process_waits() {
    let mut plane = kit::sqlite().await;
    let wrong = dag().replace("SELECT n, n * 2 AS twice FROM raw WHERE n > 5", "SELECT missing FROM raw");
    plane.deploy("default", &wrong).await;
    plane.import("default", 0, 9).await;
    let failed = wait_until("the task fails", SOON, async || {
        tasks(&plane, "query").await.into_iter().find(|task| task["state"] == "Failed")
    })
    .await;
    let task =
        plane.call(Method::GET, &format!("/api/v1/tasks/{}", failed["task_id"].as_str().unwrap()), &[], None).await;
    let task = task.ok();
    assert_eq!((&task["attempt"], &task["error"]["code"]), (&json!(1), &json!("INVALID_SQL")), "{task}");
    assert!(task["error"]["message"].as_str().unwrap().contains("missing"), "{task}");
    assert!(keys(&plane, "big").await.is_empty());
    plane.stop().await;

    let nowhere = QueryConfig { place: QueryPlace::Nowhere("build tenure-query".to_owned()), ..QueryConfig::default() };
    let plane = kit::plane(None, |config| config.query = nowhere).await;
    plane.deploy("default", &dag()).await;
    plane.import("default", 0, 9).await;
    plane.nth("query", 1).await;
    let waiting = tasks(&plane, "query").await;
    assert!(waiting.iter().all(|task| task["state"] == "Ready"), "{waiting:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_query_is_a_task_that_exports() {
    let plane = kit::sqlite().await;
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 9).await;
    let ask = async |body: Value| plane.query_of("default", body).await;
    let batch = ask(json!({"sql": "SELECT sum(n) AS s FROM blocks", "mode": "batch", "format": "csv"})).await.ok();
    let of = |name: &str| batch[name].as_str().unwrap();
    assert_eq!((of("mode"), of("delivery"), of("reason")), ("batch", "export", "requested"), "{batch}");
    assert!(of("output_location").ends_with(&format!("/{}/", of("query_id"))), "{batch}");
    let path = format!("/api/v1/tasks/{}", of("task_id"));
    let task = wait_until("the task has run", SOON, async || {
        let task = plane.call(Method::GET, &path, &[], None).await.ok();
        Some(task).filter(|task| task["state"] == "Succeeded" || task["state"] == "Failed")
    })
    .await;
    let result = &task["result"];
    assert_eq!((&task["operator"], &task["attempt"]), (&json!("query"), &json!(1)), "{task}");
    assert_eq!((&result["row_count"], &result["file"]), (&json!(1), &json!("result.csv")), "{task}");
    assert_eq!(result["output_location"], of("output_location"));
    let file = plane.call(Method::GET, &format!("/api/v1/query/{}/result", of("query_id")), &[], None).await;
    assert_eq!(file.body, json!("s\r\n45\r\n"));
    assert!(matches!(plane.audited(&batch).await.unwrap().entry.asker, Asker::User(_)));
    // What is wrong with the query is the failure of the task; what is wrong with the request is said at once.
    let wrong = ask(json!({"sql": "SELECT x FROM blocks", "mode": "batch"})).await.ok();
    let path = format!("/api/v1/tasks/{}", wrong["task_id"].as_str().unwrap());
    let failed = wait_until("the task has failed", SOON, async || {
        let task = plane.call(Method::GET, &path, &[], None).await.ok();
        Some(task).filter(|task| task["state"] == "Failed")
    })
    .await;
    assert_eq!((&failed["attempt"], &failed["error"]["code"]), (&json!(1), &json!("INVALID_SQL")), "{failed}");
    ask(json!({"sql": "SELECT 1", "mode": "batch", "datasets": ["none"]})).await.refused(404, "dataset_not_found");
    ask(json!({"sql": "SELECT 1", "mode": "batch", "format": "xml"})).await.refused(422, "invalid_argument");
    ask(json!({"sql": "SELECT 1", "mode": "later"})).await.refused(422, "invalid_argument");
}
