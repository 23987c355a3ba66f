//! A deployed DAG with buffered datasets, and what is in their tables.

use std::sync::Arc;

use base64::Engine as _;
use serde_json::{Value, json};
use tenure_core::dag::{DatasetId, Schema};
use tenure_data::{Access, DataStore, Reading, Table};
use tenure_testkit::{Postgres, wait_until};

use super::super::kit::{self, Claim, ORG, Plane};
use crate::harness::{Answer, Home, SOON};

/// Two jobs write to `alerts`, which a third one reads. `twice` writes to both datasets.
pub const DAG: &str = "name: chain
jobs:
  - { name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: { kind: manual } }
  - { name: second, activation: source, runtime: worker, operator: second, outputs: 1, source: { kind: manual } }
  - { name: twice, activation: source, runtime: worker, operator: twice, outputs: 2, source: { kind: manual } }
  - name: alert
    activation: reactive
    runtime: worker
    operator: alert
    outputs: 0
    execution_strategy: PerUpdate
    inputs: [{ from: { dataset: alerts } }]
publish:
  alerts:
    from: [{ job: import, output: 0 }, { job: second, output: 0 }, { job: twice, output: 0 }]
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{ name: org_id, type: uuid, nullable: false }, { name: dedupe_key, type: text, nullable: false }, { name: n, type: int64 }]
      unique: [org_id, dedupe_key]
  notes:
    from: { job: twice, output: 1 }
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{ name: org_id, type: uuid, nullable: false }, { name: text, type: text, nullable: false }]
      unique: [org_id, text]
";

pub struct Stand {
    pub plane: Plane,
    /// The id of `alerts`.
    pub dataset: String,
}

pub fn row(key: &str, n: i64) -> Value {
    json!({"dedupe_key": key, "n": n})
}

pub async fn sqlite_with_other_data() -> Plane {
    let database = Box::leak(Box::new(Postgres::shared().await.database().await));
    let data: Arc<dyn DataStore> = Arc::new(tenure_data::Postgres::new(database.url(), None).unwrap());
    let home = Arc::new(Home::Sqlite(tempfile::tempdir().unwrap()));
    kit::plane_on(home, Arc::default(), |dispatch| dispatch.data = Some(data)).await
}

/// Waits until the table has so many rows.
pub async fn written(stand: &Stand, rows: usize) {
    wait_until("the rows are written", SOON, async || stand.keys().await.len() == rows).await;
}

impl Stand {
    pub async fn deploy(plane: Plane, yaml: &str) -> Self {
        plane.deploy(yaml).await;
        let id = plane.dags.view(ORG).await.unwrap().deployment.dataset_named("alerts").unwrap();
        Self { plane, dataset: id.to_string() }
    }

    pub async fn claim(&self, request: &str) -> Claim {
        self.plane.claim(&self.plane.fire(request).await).await
    }

    pub async fn publish(&self, claim: &Claim, body: Value) -> Answer {
        self.plane.as_task("buffer-publish", claim.token(), &claim.with(body)).await
    }

    pub async fn nth(&self, operator: &str, count: usize) -> String {
        self.plane.nth(operator, count).await
    }

    pub fn path(&self, call: &str) -> String {
        format!("/api/v1/buffers/alerts/{call}")
    }

    /// Writes an object below the scratch prefix of an attempt. Returns its address.
    pub fn artifact(&self, claim: &Claim, name: &str, text: &str) -> String {
        let payload = claim.token().split('.').nth(1).unwrap();
        let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).unwrap();
        let claims: Value = serde_json::from_slice(&payload).unwrap();
        let uri = format!("{}buffers/{name}", claims["s3"]["scratch_prefix"].as_str().unwrap());
        let path = std::path::PathBuf::from(uri.strip_prefix("file://").unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        uri
    }

    /// The dead letters, when there are so many. Time passes until then.
    pub async fn dead(&self, count: usize) -> Vec<Value> {
        wait_until("batches are dead letters", SOON * 2, async || {
            let dead = self.plane.get(&self.path("dead")).await.ok()["items"].as_array().unwrap().clone();
            if dead.len() < count {
                self.plane.clock.advance(60_000);
            }
            Some(dead).filter(|dead| dead.len() >= count)
        })
        .await
    }

    pub async fn schema(&self) -> Schema {
        let view = self.plane.dags.view(ORG).await.unwrap();
        let published = &view.deployment.active("chain").unwrap().published["alerts"];
        serde_json::from_str(published.schema.as_ref().unwrap()).unwrap()
    }

    async fn reading(&self) -> Reading {
        let table = Table::new(DatasetId::parse(&self.dataset).unwrap(), Arc::new(self.schema().await));
        let data = self.plane.server.config.dispatch.data.as_ref().unwrap();
        data.ensure(&table).await.unwrap();
        data.reading(&table).await.unwrap()
    }

    pub async fn keys(&self) -> Vec<String> {
        self.column("dedupe_key").await.into_iter().map(Option::unwrap).collect()
    }

    /// A column in the order of the rows.
    pub async fn column(&self, name: &str) -> Vec<Option<String>> {
        let Reading { access, table, .. } = self.reading().await;
        match access {
            Access::Sqlite { path } => {
                let file = rusqlite::Connection::open(path).unwrap();
                file.busy_timeout(SOON).unwrap();
                let sql = format!("SELECT {name} FROM \"{table}\" ORDER BY _seq");
                let mut statement = file.prepare(&sql).unwrap();
                statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            }
            Access::Postgres { url, schema, .. } => {
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                let sql = format!("SELECT {name} FROM {schema}.\"{table}\" ORDER BY _seq");
                client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
        }
    }
}
