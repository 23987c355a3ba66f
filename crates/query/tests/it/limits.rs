//! Time, memory, numbers of queries, rows and bytes.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
use serde_json::json;
use tenure_contract::query::process::{Failure, Format, View};

use crate::support::{MIB, Stand, ask};

fn view(stand: &Stand, rows: i64) -> View {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let file = stand.write("n.parquet", vec![("n", numbers)]);
    stand.view(&["v"], vec![file])
}

async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    tenure_testkit::wait_until(what, Duration::from_secs(60), async || holds()).await;
}

/// Takes far longer than any test.
const ENDLESS: &str = "SELECT count(*) FROM v a, v b, v c, v d WHERE a.n + b.n + c.n + d.n = -1";

#[tokio::test(flavor = "multi_thread")]
async fn rows_beyond_the_limit_are_cut_and_told() {
    let stand = Stand::new();
    let view = view(&stand, 10);
    let mut asked = ask("SELECT n FROM v ORDER BY n", &[view]);
    asked.bounds.rows = Some(10);
    let whole = stand.run(asked.clone()).await;
    assert_eq!((whole.done().rows, whole.done().truncated), (10, false));
    asked.bounds.rows = Some(3);
    let cut = stand.run(asked.clone()).await;
    assert_eq!((cut.rows(), cut.done().truncated), (json!([[0], [1], [2]]), true));
    asked.bounds.rows = Some(1_000);
    // `[0],[1],[2]` has eleven bytes.
    asked.bounds.bytes = Some(11);
    let cut = stand.run(asked.clone()).await;
    assert_eq!((cut.rows(), cut.done().truncated), (json!([[0], [1], [2]]), true));
    asked.bounds.bytes = Some(12);
    assert_eq!(stand.run(asked.clone()).await.done().rows, 3);
    // A file is whole or there is none.
    asked.format = Format::Csv;
    assert_eq!(stand.run(asked).await.failed().error, Failure::QueryFailed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_ends_at_its_time_limit_and_frees_its_place() {
    let stand = Stand::new();
    let mut asked = ask(ENDLESS, &[view(&stand, 2_000)]);
    asked.bounds.timeout_ms = 200;
    let answer = stand.run(asked).await;
    assert_eq!(answer.failed().error, Failure::QueryTimeout);
    wait_until("the place is free", || stand.runner.running() == 0).await;
    assert_eq!(std::fs::read_dir(stand.spill.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_whose_caller_goes_away_ends() {
    let stand = Stand::new();
    let receive = stand.runner.start(ask(ENDLESS, &[view(&stand, 2_000)]));
    wait_until("it runs", || stand.runner.running() == 1).await;
    drop(receive);
    wait_until("the place is free", || stand.runner.running() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_may_wait_are_refused() {
    let stand = Stand::with(|settings| tenure_query::run::Settings { at_once: 1, waiting: 1, ..settings });
    let view = view(&stand, 2_000);
    let running = stand.runner.start(ask(ENDLESS, std::slice::from_ref(&view)));
    wait_until("it runs", || stand.runner.running() == 1).await;
    let waiting = stand.runner.start(ask("SELECT 1", &[]));
    wait_until("one waits", || stand.runner.waiting() == 1).await;
    assert_eq!(stand.run(ask("SELECT 1", &[])).await.failed().error, Failure::QueryBusy);
    // One that gave up waiting is not counted any more.
    drop(waiting);
    wait_until("nobody waits", || stand.runner.waiting() == 0).await;
    let next = stand.runner.start(ask("SELECT 1", &[]));
    wait_until("one waits again", || stand.runner.waiting() == 1).await;
    drop(running);
    let mut next = next;
    let mut bytes = Vec::new();
    while let Some(piece) = next.recv().await {
        bytes.extend_from_slice(&piece);
    }
    assert_eq!(crate::support::Answer::read(&bytes).rows(), json!([[1]]));
}

/// 400,000 texts of 100 bytes are more than fits.
fn texts(stand: &Stand) -> View {
    let files = (0..4_i64).map(|at| {
        let keys = (0..100_000_i64).map(|n| (n * 7_919 + at) % 100_003);
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(keys.clone()));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(keys.map(|n| format!("{n:0>100}"))));
        stand.write(&format!("{at}.parquet"), vec![("n", numbers), ("x", texts)])
    });
    let files = files.collect();
    stand.view(&["v"], files)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_into_memory_goes_to_disk_and_is_removed() {
    let stand = Stand::new();
    let view = texts(&stand);
    let mut asked = ask("SELECT n, x FROM v ORDER BY x, n", &[view]);
    asked.bounds.memory_bytes = 64 * MIB;
    asked.bounds.rows = None;
    asked.bounds.bytes = None;
    asked.format = Format::Csv;
    let mut receive = stand.runner.start(asked);
    let (mut bytes, mut spilled) = (Vec::new(), false);
    while let Some(piece) = receive.recv().await {
        spilled |= std::fs::read_dir(stand.spill.path()).unwrap().any(|query| holds_files(&query.unwrap().path()));
        bytes.extend_from_slice(&piece);
    }
    let answer = crate::support::Answer::read(&bytes);
    assert_eq!(answer.done().rows, 400_000);
    assert!(answer.text().lines().skip(1).is_sorted_by_key(|line| line.split_once(',').unwrap().1.to_owned()));
    assert!(spilled, "nothing went to disk: the test has too few rows");
    wait_until("the place is free", || stand.runner.running() == 0).await;
    assert_eq!(std::fs::read_dir(stand.spill.path()).unwrap().count(), 0);
}

fn holds_files(folder: &std::path::Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| {
        entries.flatten().any(|entry| if entry.path().is_dir() { holds_files(&entry.path()) } else { true })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_go_to_disk_is_refused() {
    let stand = Stand::new();
    let view = texts(&stand);
    let mut asked = ask("SELECT count(*) FROM v a JOIN v b ON a.x = b.x", &[view]);
    asked.bounds.memory_bytes = 16 * MIB;
    let answer = stand.run(asked).await;
    assert_eq!(answer.failed().error, Failure::QueryMemoryExceeded, "{}", answer.failed().message);
}
