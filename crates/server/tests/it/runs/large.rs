//! Runs of thousands of tasks.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, fatal};
use crate::runs::kit::{claim, claim_many, report, shown, submit, work_off};

cases!(
    Server,
    on_sqlite: [a_thousand_out_and_a_thousand_in, a_failure_at_the_head_skips_ten_thousand],
    on_both_stores: [ten_thousand_tasks_in_chains_and_diamonds, ten_thousand_tasks_are_cancelled_at_once],
);

fn small(key: &str, depends_on: &[String]) -> Value {
    json!({"key": key, "queue": "q", "operator": "op", "depends_on": depends_on, "max_attempts": 1})
}

/// One before many, and all of them before one.
fn diamond(wide: usize) -> Vec<Value> {
    let middle: Vec<String> = (0..wide).map(|n| format!("m{n}")).collect();
    let mut tasks = vec![small("first", &[])];
    tasks.extend(middle.iter().map(|key| small(key, &["first".to_owned()])));
    tasks.push(small("last", &middle));
    tasks
}

async fn a_thousand_out_and_a_thousand_in(server: Server) {
    let run = submit(&server, diamond(1_000)).await;
    let first = claim_many(&server, "w-1").await;
    assert_eq!(first.len(), 1);
    let turn = json!({"worker_id": "w-1", "complete": [report(&first[0], json!({"result": 1}))]});
    server.worker("exchange", turn).await.ok();
    assert_eq!(shown(&server, &run).await["counts"]["ready"], 1_000);
    // Four workers at a time.
    let workers = ["w-1", "w-2", "w-3", "w-4"];
    let done = futures_util::future::join_all(workers.map(|worker| work_off(&server, worker))).await;
    let mut done: usize = done.into_iter().sum();
    done += work_off(&server, "w-1").await;
    assert_eq!(done, 1_001, "each was granted once");
    let run = shown(&server, &run).await;
    assert_eq!((&run["state"], &run["counts"]["succeeded"]), (&json!("Succeeded"), &json!(1_002)));
}

/// Forty diamonds in a row, of ten thousand tasks in all: the last of each is before the first of the next.
fn chain_of_diamonds() -> Vec<Value> {
    let mut tasks: Vec<Value> = Vec::new();
    let mut before: Vec<String> = Vec::new();
    for link in 0..40 {
        let first = format!("{link}-first");
        tasks.push(small(&first, &before));
        let middle: Vec<String> = (0..248).map(|n| format!("{link}-{n}")).collect();
        tasks.extend(middle.iter().map(|key| small(key, std::slice::from_ref(&first))));
        let last = format!("{link}-last");
        tasks.push(small(&last, &middle));
        before = vec![last];
    }
    assert_eq!(tasks.len(), 10_000);
    tasks
}

async fn ten_thousand_tasks_in_chains_and_diamonds(server: Server) {
    let run = submit(&server, chain_of_diamonds()).await;
    assert_eq!(work_off(&server, "w-1").await, 10_000);
    let run = shown(&server, &run).await;
    assert_eq!(
        (&run["state"], &run["counts"]["succeeded"], &run["counts"]["open"]),
        (&json!("Succeeded"), &json!(10_000), &json!(0))
    );
    assert!(run["tasks"].as_array().unwrap().iter().all(|task| task["attempt"] == 1));
}

async fn a_failure_at_the_head_skips_ten_thousand(server: Server) {
    let run = submit(&server, chain_of_diamonds()).await;
    let job = claim(&server, &run, "0-first").await;
    server.fail("w-1", &job, fatal()).await.ok();
    let run = shown(&server, &run).await;
    assert_eq!((&run["state"], &run["counts"]["skipped"]), (&json!("Failed"), &json!(9_999)));
}

async fn ten_thousand_tasks_are_cancelled_at_once(server: Server) {
    let run = submit(&server, chain_of_diamonds()).await;
    claim(&server, &run, "0-first").await;
    let answer = server.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await.ok();
    assert_eq!(answer["state"], "Canceling");
    assert_eq!(shown(&server, &run).await["counts"]["canceled"], 9_999);
}
