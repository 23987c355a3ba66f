//! A data store that fails, at every place where that matters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::json;
use tenure_data::{Appended, DataError, DataStore, Reading, Rows, Table};
use tenure_testkit::wait_until;

use super::stand::{DAG, Stand, row, written};
use crate::dispatch::kit;
use crate::harness::{Home, SOON, database};

/// Loses the answer to the first commits: the rows are there, and nobody knows.
#[derive(Debug)]
struct Forgetful {
    data: Arc<dyn DataStore>,
    left: AtomicUsize,
}

#[async_trait]
impl DataStore for Forgetful {
    fn name(&self) -> &'static str {
        self.data.name()
    }

    async fn ensure(&self, table: &Table) -> Result<(), DataError> {
        self.data.ensure(table).await
    }

    async fn append(&self, table: &Table, batches: Vec<Rows>) -> Result<Appended, DataError> {
        let appended = self.data.append(table, batches).await?;
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(DataError::Unavailable { operation: "commit", source: "the answer was lost".into() }),
            Err(_) => Ok(appended),
        }
    }

    async fn readings(&self, tables: &[Table]) -> Result<Vec<Reading>, DataError> {
        self.data.readings(tables).await
    }
}

async fn homes() -> [Home; 2] {
    [Home::Sqlite(tempfile::tempdir().unwrap()), Home::Postgres(database().await)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_commit_and_event_loses_no_event_and_doubles_no_row() {
    for home in homes().await {
        let plane = kit::plane_on(Arc::new(home), Arc::default(), |dispatch| {
            let data = dispatch.data.take().unwrap();
            dispatch.data = Some(Arc::new(Forgetful { data, left: AtomicUsize::new(3) }));
        })
        .await;
        let stand = Stand::deploy(plane, DAG).await;
        let claim = stand.claim("r-1").await;
        stand.publish(&claim, json!({"records": [row("a", 1), row("b", 2)]})).await.ok();
        written(&stand, 2).await;
        let reader = stand.plane.claim(&stand.nth("alert", 1).await).await;
        assert_eq!(reader["task"]["inputs"][0]["cursor"]["upto"], 2);
        assert_eq!(stand.keys().await, ["a", "b"]);
        assert!(stand.plane.get(&stand.path("dead")).await.ok()["items"].as_array().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_data_store_away_all_else_goes_on() {
    for home in homes().await {
        let folder = tempfile::tempdir().unwrap();
        let away = folder.path().join("away");
        let path = away.join("data.db");
        let plane = kit::plane_on(Arc::new(home), Arc::default(), |dispatch| {
            dispatch.data = Some(Arc::new(tenure_data::Sqlite::new(path)));
        })
        .await;
        // Deployed, claimed, published, renewed, completed.
        let stand = Stand::deploy(plane, DAG).await;
        let claim = stand.claim("r-1").await;
        stand.publish(&claim, json!({"records": [row("a", 1)]})).await.ok();
        stand.plane.beat(&claim).await.ok();
        stand.plane.complete(&claim, json!({"status": "Completed"})).await.ok();
        // However long it is away, the batch is no worse for it.
        for _ in 0..15 {
            stand.plane.clock.advance(2_000);
            tokio::task::yield_now().await;
        }
        let other = stand.claim("r-2").await;
        stand.publish(&other, json!({"records": [row("b", 2)]})).await.ok();
        std::fs::create_dir(&away).unwrap();
        stand.plane.clock.advance(2_000);
        written(&stand, 2).await;
        // The two batches may be written together or one after the other.
        wait_until("the reader runs", SOON, async || (1..=2).contains(&stand.plane.count("alert").await)).await;
        assert!(stand.plane.get(&stand.path("dead")).await.ok()["items"].as_array().unwrap().is_empty());
    }
}
